"""Settings change the runs that they are said to be of; those that would change nothing are refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from comparisons import TINY, record, rows_in, streamer

from streamer.errors import SettingsError, SourceError, StreamerError
from streamer.model.settings import LearnerSettings
from streamer.replay.evaluation.record import Records, Spec, check_writable, write_file
from streamer.replay.evaluation.runs import parse_changes, spec_settings
from streamer.replay.evaluation.tables import about, main_table


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A log in which the items of a user are of one kind, and have a price."""
    lines = ["user_id,item_id,timestamp,kind,price,town"]
    for k in range(600):
        user, item = k * 7 % 30, k * 11 % 90
        item += (user - item) % 3  # users keep to a third of the items
        lines.append(f"u{user},i{item},{1_700_000_000 + k},k{item % 3},{item % 5},t{user % 4}")
    path = tmp_path / "shop.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def figures(*arguments: object) -> list[float]:
    """The figures of a method, without those of time."""
    rows = json.loads(streamer("evaluate", "--method", "ssl-pop", "--json", *TINY, *arguments))
    return [row["value"] for row in rows if "method" in row and row["k"]]


class TestWhatChangesNothing:
    @pytest.mark.parametrize(
        ("setting", "instead"),
        [
            ("min_rating=4", "--min-rating"),
            ("event-type=buy", "--event-type"),
            ("max_events=10", "--limit"),
            ("limit=10", "--limit"),
            ("field=user_id=uid", "--column"),
            ("threads=1", "--threads"),
        ],
    )
    def test_an_option_of_the_log_is_named_instead(self, setting, instead):
        with pytest.raises(SettingsError, match=f"is not a setting, {instead} chooses it"):
            parse_changes((setting,), "set")

    def test_all_that_are_no_settings_are_reported_at_once(self):
        with pytest.raises(SettingsError) as caught:
            parse_changes(("min_rating=4", "max_events=10", "dim"), "set")
        assert len(caught.value.problems) == 3

    @pytest.mark.parametrize("name", ["max_id_length", "topic", "max_age", "evaluation_share", "redis_url"])
    def test_other_options_of_run_are_refused(self, name):
        with pytest.raises(SettingsError, match=f"{name} is a setting of `streamer run` that has no effect here"):
            spec_settings(Spec("d", "prequential", "xir", 0, {name: "1"}))

    def test_every_setting_that_is_offered_changes_the_learner(self):
        other = {"hash_slots": "7", "admit_after": "2", "learning_rate_decay": "0.5", "cache_weight": "1"}
        usual = spec_settings(Spec("d", "prequential", "xir", 0))
        for name, setting in LearnerSettings.all().items():
            if name in ("method", "seed"):
                continue
            value = other.get(name) or next((c for c in setting.choices if c != setting.default), None)
            value = value or ("false" if setting.default is True else "cpu" if name == "device" else "1")
            if name == "init_std":
                value = "0.5"
            changed = spec_settings(Spec("d", "prequential", "xir", 0, {name: value}))
            assert getattr(changed, name) != getattr(usual, name), name


class TestFeatures:
    def test_a_feature_of_the_log_that_is_asked_for_is_learned_from(self, shop):
        asked = figures("--data", shop, "--item-feature", "kind")
        assert asked != figures("--data", shop)
        assert asked == figures("--data", shop, "--item-feature", "kind", "--set", "item_feature=kind")

    @pytest.mark.parametrize(
        ("options", "settings"),
        [
            ("--item-feature kind", {"item_features": ["kind"]}),
            (
                "--item-feature kind --item-feature price:float",
                {"item_features": ["kind"], "item_numeric_features": ["price"]},
            ),
            ("--user-feature town", {"user_features": ["town"]}),
            ("--item-feature kind --item-feature price --set item_features=price", {"item_features": "price"}),
        ],
    )
    def test_figures_tell_which_are_learned_from(self, shop, tmp_path, options, settings):
        command = ["compare", "--data", shop, "--methods", "bir", "--out", tmp_path, "--threads", 1]
        streamer(*command, *options.split())
        assert {str(row["settings"]) for row in rows_in(tmp_path) if "method" in row} == {str(settings)}

    def test_several_are_named_with_commas_or_one_by_one(self):
        for texts in (("item_feature=kind,price",), ("item_feature=kind", "item-feature=price")):
            settings = spec_settings(Spec("d", "prequential", "xir", 0, parse_changes(texts, "set")))
            assert settings.item_features == ("kind", "price")

    @pytest.mark.parametrize(
        ("setting", "said"),
        [
            ("item_feature=kind,colour", "has the item feature 'colour', of those that are read (kind)"),
            ("item_numeric_feature=weight", "has the item feature 'weight', of those that are read (kind)"),
            ("user_feature=kind", "has the user feature 'kind', of those that are read (none)"),
        ],
    )
    def test_one_that_the_log_does_not_have_is_refused(self, shop, tmp_path, setting, said):
        command = ["compare", "--data", shop, "--item-feature", "kind", "--set", setting, "--out", tmp_path / "out"]
        with pytest.raises(SettingsError, match=re.escape(said)):
            streamer(*command, *TINY)
        assert not list((tmp_path / "out").glob("runs/*"))

    def test_the_offline_protocol_has_none(self, shop):
        with pytest.raises(SettingsError, match="--user-feature: the offline protocol learns from ids alone"):
            streamer("evaluate", "--data", shop, "--protocol", "offline", "--user-feature", "town")


class TestBeforeTheFirstRun:
    def test_methods_that_do_not_exist_are_refused_with_those_that_do(self, log, tmp_path):
        with pytest.raises(SettingsError, match="there is no method 'magic': choose among ssl, ssl-pop, mns"):
            streamer("compare", "--data", log, "--methods", "magic", "--out", tmp_path)

    @pytest.mark.parametrize("protocol", ["offline", "prequential"])
    def test_a_device_that_is_not_there_is_reported(self, log, tmp_path, protocol):
        with pytest.raises(SettingsError, match="no device 'tpu'"):
            streamer("compare", "--protocol", protocol, "--data", log, "--set", "device=tpu", "--out", tmp_path / "o")
        assert not (tmp_path / "o").exists()

    def test_a_name_that_is_too_long_for_a_file_is_reported(self, log, tmp_path):
        with pytest.raises(SettingsError, match="File name too long; give a shorter --name"):
            streamer("compare", "--data", log, "--name", "n" * 250, "--out", tmp_path / "out", *TINY)
        assert not list((tmp_path / "out").glob("runs/*"))

    @pytest.mark.parametrize("name", ["results.json", "results.md", "report.html"])
    def test_a_directory_in_the_place_of_a_file_is_reported(self, log, tmp_path, name):
        (tmp_path / name).mkdir()
        with pytest.raises(SettingsError, match=f"{name} cannot be written: Is a directory; choose another --out"):
            streamer("compare", "--data", log, "--out", tmp_path, *TINY)
        assert not list((tmp_path / "runs").iterdir())

    def test_looking_whether_a_file_can_be_written_leaves_it_as_it_is(self, tmp_path):
        records, ours = Records(tmp_path), record()
        check_writable([records.path(ours)])
        assert records.all() == []
        records.put(ours)
        check_writable([records.path(ours)])
        assert records.all() == [ours]

    def test_a_file_that_cannot_be_written_in_the_end_is_reported(self, tmp_path):
        with pytest.raises(StreamerError, match=r"away/results\.md cannot be written: No such file or directory"):
            write_file(tmp_path / "away" / "results.md", b"")


class TestNothingToMeasure:
    def small(self, path: Path, items: int) -> Path:
        pairs = [f"u{user},i{(3 * user + k) % 20}" for user in range(20) for k in range(items)]
        path.write_text("\n".join(["user_id,item_id", *pairs]) + "\n")
        return path

    @pytest.mark.parametrize(("items", "hint"), [(1, "try a log"), (2, "try a larger test_share, a log")])
    def test_no_user_has_a_test_item(self, tmp_path, items, hint):
        log = self.small(tmp_path / "few.csv", items)
        with pytest.raises(SettingsError, match=f"20 users have at most {items} distinct items each.*{hint}"):
            streamer("evaluate", "--data", log, "--protocol", "offline", *TINY)

    def test_a_larger_share_helps(self, tmp_path):
        log = self.small(tmp_path / "few.csv", 2)
        shown = streamer("evaluate", "--data", log, "--protocol", "offline", "--set", "test_share=0.5", *TINY)
        assert "20 users, 20 items" in shown

    def test_how_many_users_are_tested_is_reported_if_not_all_are(self, tmp_path):
        log = self.small(tmp_path / "few.csv", 4)
        log.write_text(log.read_text() + "lonely,i0\n")
        assert "21 users (20 tested), " in streamer("evaluate", "--data", log, "--protocol", "offline", *TINY)

    def test_a_log_whose_events_are_all_refused_is_reported_with_the_reason(self, tmp_path):
        names = [f"f{k}" for k in range(65)]
        path = tmp_path / "wide.csv"
        path.write_text("\n".join([",".join(["user_id", "item_id", *names]), *[",".join(["u", "i"] + ["x"] * 65)] * 9]))
        columns = [part for name in names for part in ("--item-feature", name)]
        with pytest.raises(SourceError, match="9 events were refused, and none was ranked: 9 too_many_features"):
            streamer("evaluate", "--data", path, *columns, *TINY)

    def test_why_some_events_were_refused_is_reported(self):
        letters = {"accounting": {"dead_letters": {"bad_rating": 1, "id_too_long": 1999}}}
        run = record(about={"users": 3, "items": 4, "events": 5000, "slices": {"all": 3000}} | letters)
        assert "5,000 events (3,000 ranked; refused: 1,999 id_too_long, 1 bad_rating), " in about([run])


def test_a_method_that_the_paper_does_not_have_has_no_figure_of_the_paper():
    sizes = {"users": 29858, "items": 40988, "events": 1_027_464, "epochs": 2}
    table = main_table([record(m, data="gowalla", about=sizes) for m in ("xir", "full-softmax")])
    ours, other = table.splitlines()[2:]
    assert ours.endswith("| 0.1169 | 0.1543 |")
    assert other.endswith("|  |  |")
