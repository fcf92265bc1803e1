"""Comparisons: every method sees the same events, runs are kept, and figures are shown as they are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from click.testing import CliRunner
from comparisons import SIZES, TINY, compare, figures, run, streamer
from msgspec.structs import replace

from streamer.cli.main import cli
from streamer.errors import SettingsError, SourceError
from streamer.model.settings import LearnerSettings
from streamer.replay.evaluation.baselines import BASELINES
from streamer.replay.evaluation.printed import printed, verdict
from streamer.replay.evaluation.results import Measure, Results, Run, Spec
from streamer.replay.evaluation.runs import parse_changes, spec_settings
from streamer.replay.evaluation.slices import OF_TYPE, RETRIEVED, SECOND_HALF
from streamer.replay.evaluation.tables import Figures, about, main_table, stream_figures
from streamer.settings import RunSettings


@pytest.mark.slow
def test_weights_by_type_are_shown_by_the_type_of_what_was_predicted(tmp_path):
    log = tmp_path / "typed.csv"
    kinds = ["view", "view", "cart", ""]
    rows = [f"u{n % 7},i{n % 5},{1_700_000_000 + n},{kinds[n % 4]}" for n in range(400)]
    log.write_text("\n".join(["user_id,item_id,timestamp,event_type", *rows]))
    weights = ["event_weights=view=1 cart=1", "event_weights=view=1 cart=9"]
    runs = compare(log, "--methods", "xir", "--over", f"{weights[0]},{weights[1].removeprefix('event_weights=')}")
    assert [run["settings"]["event_weights"] for run in runs] == ["view=1 cart=1", "view=1 cart=9"]
    for found in runs:
        slices = found["about"]["slices"]
        assert (slices[OF_TYPE + "view"], slices[OF_TYPE + "cart"]) == (100, 50)
        of_types = {m["slice"] for m in found["measures"] if m["slice"].startswith(OF_TYPE)}
        assert of_types == {OF_TYPE + "view", OF_TYPE + "cart"}
    plain = compare(log, "--methods", "xir")
    same = [m for m in runs[0]["measures"] if not m["slice"].startswith(OF_TYPE) and m["metric"] != "step-ms"]
    assert same == [m for m in plain[0]["measures"] if m["metric"] != "step-ms"]


@pytest.mark.slow
class TestCompare:
    def test_every_method_and_baseline_is_measured_on_the_same_events(self, log):
        runs = compare(log, "--methods", "ssl-pop,xir", "--seeds", 2)
        assert [(r["method"], r["seed"]) for r in runs] == [("ssl-pop", 0), ("xir", 0), ("ssl-pop", 1), ("xir", 1)]
        for found in runs:
            assert (found["data"], found["protocol"]) == ("tiny", "prequential")
            assert {m["baseline"] for m in found["measures"]} == {None, *BASELINES}
            assert {m["slice"] for m in found["measures"]} >= {"all", "new", "second-half/new", "tail"}
        # baselines do not learn from the method: their figures are equal only if the events are
        assert figures(runs[:1], baselines=True) == figures(runs[1:2], baselines=True)

    def test_what_was_run_is_not_run_again_and_what_is_kept_is_shown(self, log, tmp_path):
        command = ["--methods", "bir", "--out", tmp_path]
        first = compare(log, *command)
        assert compare(log, *command) == first == json.loads((tmp_path / "results.json").read_text())
        assert "600 events, 600 asked, one seed" in (tmp_path / "results.md").read_text()
        (other,) = compare(log, *command, "--set", "dim=4")
        assert json.loads((tmp_path / "results.json").read_text()) == [*first, other]
        log.write_text("".join(log.read_text().splitlines(keepends=True)[:301]))
        assert figures(compare(log, *command)) == figures(compare(log, "--methods", "bir")) != figures(first)

    def test_lists_are_as_long_as_is_asked_and_a_method_named_twice_is_run_once(self, log):
        shown = streamer("compare", "--data", log, "--methods", "bir, bir", "--set", "ks=3,7", *TINY)
        assert "HR@3 all" in shown
        assert sum(line.startswith("bir ") for line in shown.splitlines()) == 1
        (found,) = compare(log, "--methods", "bir,bir", "--set", "ks=3,7")
        assert {m["k"] for m in figures([found])} == {3, 7, *RETRIEVED}

    def test_the_seed_of_the_log_orders_equal_times(self, log):
        log.write_text(re.sub(r"17\d{8}", "1700000000", log.read_text()))
        one, other = (figures(compare(log, "--methods", "bir", "--seed", seed), baselines=True) for seed in (0, 1))
        assert one != other

    def test_offline(self, log):
        command = ["--methods", "ssl,xir", "--protocol", "offline", "--set", "epochs=2"]
        names = {(m["metric"], m["k"]) for m in figures(compare(log, *command))}
        assert names == {(metric, k) for metric in ("recall", "ndcg", "authors-ndcg") for k in (10, 20)}
        assert "\nxir " in streamer("compare", "--data", log, *TINY, *command)

    def test_one_setting_at_a_time_is_changed_and_each_run_is_named_by_it(self, log, tmp_path):
        over = ["--over", "lambda=0,0.5", "--over", "batch-size=64,32", "--over", "lambda=0.5,1"]
        offline = ["--protocol", "offline", "--methods", "xir", "--set", "epochs=1"]
        runs = compare(log, *over, *offline, "--out", tmp_path)
        fixed = {"dim": "8", "epochs": "1", "batch_size": "64"}
        changes = [{"cache_weight": "0"}, {"cache_weight": "0.5"}, {}, {"batch_size": "32"}, {"cache_weight": "1"}]
        assert [r["settings"] for r in runs] == [fixed | change for change in changes]
        shown = (tmp_path / "results.md").read_text()
        assert "| `xir` (batch_size=64, cache_weight=0.5) |" in shown

    def test_malformed_lines_are_reported(self, log):
        log.write_text(log.read_text() + "nonsense\n")
        result = CliRunner().invoke(cli, ["compare", "--data", str(log), "--methods", "bir", *TINY])
        assert f"{log}, line 602: missing_columns: nonsense" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--methods", "xirr"], "method is 'xirr'"),
        (["--methods", " , "], "no method is named: choose among ssl, ssl-pop, mns"),
        (["--set", "seed=3"], "--set seed: --seeds chooses it"),
        (["--set", "method=bir"], "--set method: --methods chooses it"),
        (["--set", "item_feature=kind"], "--set item_features: --item-feature chooses it"),
        (["--data", "nowhere.csv"], "nowhere.csv does not exist"),
        (["--data", ""], "--data is not given"),
        (["--k-core", "500"], "the filters leave no event of it"),
        (["--item-feature", "colour"], "no column 'colour'"),
        (["--set", "dimm=3"], "there is no setting 'dimm'"),
        (["--set", "topic=3"], "there is no setting 'topic'"),
        (["--set", "dim"], "'dim' is not NAME=VALUE"),
        (["--over", "dim"], "'dim' is not NAME=VALUE"),
        (["--over", "dim=8,"], "dim is ''"),
        (["--set", "dim=x"], "dim is 'x': it must be a whole number of at least 1"),
        (["--protocol", "offline", "--set", "epochs=0"], "epochs is '0'"),
        (["--protocol", "offline", "--user-feature", "town"], "--user-feature: the offline protocol learns from ids"),
        (["--set", "delay_seconds=-1"], "delay-seconds is '-1'"),
        (["--set", "device=tpu"], "no device 'tpu'"),
        (["--protocol", "offline", "--set", "device=tpu"], "no device 'tpu'"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_run(log, tmp_path, arguments, said):
    with pytest.raises((SettingsError, SourceError), match=re.escape(said)):
        streamer("compare", "--data", log, "--out", tmp_path / "out", *arguments)
    assert not (tmp_path / "out" / "results.md").exists()


def test_a_directory_that_cannot_be_written_is_reported(log, tmp_path):
    (tmp_path / "results.json").mkdir()
    for out in ("/proc/nowhere", tmp_path):
        with pytest.raises(SettingsError, match=f"figures cannot be kept in {out}.*choose another --out"):
            streamer("compare", "--data", log, "--methods", "bir", "--out", out, *TINY)


class TestFeatures:
    @pytest.fixture
    def shop(self, tmp_path: Path) -> Path:
        """A log in which the items of a user are of one kind, and have a price."""
        lines = ["user_id,item_id,timestamp,kind,price,town"]
        for k in range(600):
            user, item = k * 7 % 30, k * 11 % 90
            item += (user - item) % 3  # users keep to a third of the items
            lines.append(f"u{user},i{item},{1_700_000_000 + k},k{item % 3},{item % 5},t{user % 4}")
        path = tmp_path / "shop.csv"
        path.write_text("\n".join(lines) + "\n")
        return path

    def test_those_that_are_asked_for_are_learned_from_and_named(self, shop):
        options = ["--item-feature", "kind", "--item-feature", "price:float", "--user-feature", "town"]
        (asked,) = compare(shop, "--methods", "ssl-pop", *options)
        wanted = {"item_features": ["kind"], "item_numeric_features": ["price"], "user_features": ["town"]}
        assert asked["settings"] == wanted | {"dim": "8", "batch_size": "64"}
        assert figures([asked]) != figures(compare(shop, "--methods", "ssl-pop"))


class TestNothingToMeasure:
    def small(self, path: Path, items: int) -> Path:
        pairs = [f"u{user},i{(3 * user + k) % 20}" for user in range(20) for k in range(items)]
        path.write_text("\n".join(["user_id,item_id", *pairs]) + "\n")
        return path

    def test_a_larger_share_of_test_items_helps(self, tmp_path):
        offline = ["--protocol", "offline", "--methods", "ssl", "--set", "epochs=1", *TINY]
        for items, hint in ((1, "try a log"), (2, "try a larger test_share, a log")):
            log = self.small(tmp_path / "few.csv", items)
            with pytest.raises(SettingsError, match=f"20 users have at most {items} distinct items each.*{hint}"):
                streamer("compare", "--data", log, *offline)
        shown = streamer("compare", "--data", log, *offline, "--set", "test_share=0.5")
        assert "20 users, 20 items" in shown
        log = self.small(tmp_path / "few.csv", 4)
        log.write_text(log.read_text() + "lonely,i0\n")
        assert "20 asked" in streamer("compare", "--data", log, *offline)

    def test_a_log_whose_events_are_all_refused_is_reported_with_the_reason(self, tmp_path):
        names = [f"f{k}" for k in range(65)]
        path = tmp_path / "wide.csv"
        path.write_text("\n".join([",".join(["user_id", "item_id", *names]), *[",".join(["u", "i"] + ["x"] * 65)] * 9]))
        columns = [part for name in names for part in ("--item-feature", name)]
        with pytest.raises(SourceError, match="all of its 9 events were refused: too_many_features=9"):
            streamer("compare", "--data", path, *columns, *TINY)


class TestSpecs:
    def test_prequential_has_the_defaults_of_run_whatever_the_environment_says(self, monkeypatch):
        monkeypatch.setenv("STREAMER_LEARNING_RATE", "7")
        settings = spec_settings(Spec("d", "prequential", "bir", 3, {"dim": "16"}))
        expected = RunSettings(method="bir", seed=3, dim=16)
        assert settings.only(LearnerSettings) == expected.only(LearnerSettings)
        assert settings.batch_size == expected.batch_size

    def test_offline_values_are_checked_by_type(self):
        settings = spec_settings(Spec("d", "offline", "xir", 1, parse_changes(("lambda=0.3", "draws=64"))))
        assert (settings.cache_weight, settings.draws, settings.seed) == (0.3, 64, 1)

    def test_every_setting_that_is_offered_changes_the_learner(self):
        other = {"hash_slots": "7", "admit_after": "2", "learning_rate_decay": "0.5", "cache_weight": "1"}
        other |= {"device": "cpu", "init_std": "0.5", "event_weights": "cart=3"}
        usual = spec_settings(Spec("d", "prequential", "xir", 0))
        for name, setting in LearnerSettings.all().items():
            if name in ("method", "seed"):
                continue
            value = other.get(name) or next((c for c in setting.choices if c != setting.default), None)
            value = value or ("false" if setting.default is True else "1")
            changed = spec_settings(Spec("d", "prequential", "xir", 0, {name: value}))
            assert getattr(changed, name) != getattr(usual, name), name

    def test_a_key_changes_with_everything_that_changes_figures(self, tmp_path):
        base = {"data": "d", "protocol": "offline", "method": "xir", "seed": 0}
        changes: list[dict[str, Any]] = [{"data": "e"}, {"protocol": "prequential"}, {"method": "bir"}, {"seed": 1}]
        changes += [{}, {"settings": {"dim": "3"}}, {"log": {"limit": 3}}, {"content": "other"}]
        specs = [Spec(**(base | change)) for change in changes]
        assert len({spec.key for spec in specs}) == len(specs)
        results = Results(tmp_path)
        results.add(run(**(base | {"log": {"event_types": ("a",)}})))
        kept = Results(tmp_path)
        assert [kept.get(spec) for spec in specs] == [None] * len(specs)
        assert kept.get(Spec(**(base | {"log": {"event_types": ["a"]}}))) == kept.runs[0]


class TestTables:
    def late(self, delay: str, value: float) -> Run:
        measure = Measure("hr", 10, f"{SECOND_HALF}all", value, "co-visitation")
        return run(
            protocol="prequential",
            settings={"delay_seconds": delay, "dim": "8"},
            measures=[measure],
        )

    def test_means_and_deviations_over_seeds(self):
        records = [run(seed=s, value=v) for s, v in enumerate([0.1, 0.2, 0.3])]
        figure = Figures([*records, run("bir", 0, 0.4)]).of("`xir`", "recall", 10, "all")
        assert figure is not None
        assert (figure.mean, figure.deviation) == pytest.approx((0.2, 0.1))
        assert str(figure) == "0.2000 ± 0.1000"
        # a baseline measured beside two methods counts once a seed
        beside = Figures([run("xir", 0, 0.4), run("bir", 0, 0.4)])
        assert str(beside.of("baseline: most-popular", "hr", 10, f"{SECOND_HALF}all")) == "0.2000"

    def test_figures_that_a_baseline_exceeds_are_marked_and_empty_columns_are_left_out(self):
        rates = {"all": (0.4, 0.3, 0.1), "new": (0.2, 0.3, 0.1), "new/tail": (0.1, 0.1, 0.0)}
        measures = [
            Measure("hr", 10, f"second-half/{slice_}", value, baseline)
            for slice_, values in rates.items()
            for baseline, value in zip((None, "counting", "last-items"), values, strict=True)
        ]
        measures.append(Measure("step-ms", 0, "all", 1234.56))
        shown = str(main_table([run(protocol="prequential", measures=measures)])).splitlines()
        assert shown[0] == "|  | HR@10 all | HR@10 new | HR@10 new, tail | ms a step |"
        assert "| baseline: counting | 0.3000 | 0.3000 | 0.1000 |  |" in shown
        assert "| `xir` | 0.4000 | 0.2000 ▼ | 0.1000 | 1,234.6 |" in shown

    def test_what_was_run_is_told(self):
        refused = {"bad_rating": 1, "id_too_long": 1999}
        sizes = SIZES | {"events": 5000, "ranked": 3000, "refused": refused}
        said = about([run(about=sizes, log={"limit": 5}), run(about=sizes, seed=1)])
        assert "5,000 events, 3,000 asked, refused: bad_rating=1, id_too_long=1999, " in said
        assert said.endswith("2 seeds (mean ± deviation), of the log limit=5.")

    def test_a_feedback_delay_tells_baselines_apart_and_other_settings_do_not(self):
        runs = [self.late("0", 0.2), self.late("9", 0.1)]
        rows = str(main_table(runs)).splitlines()
        assert "| baseline: co-visitation (delay_seconds=0) | 0.2000 |" in rows
        assert "| baseline: co-visitation (delay_seconds=9) | 0.1000 |" in rows
        assert "delay_seconds" not in str(main_table(runs[:1]))
        assert list(Figures([run(settings={"dim": dim}) for dim in ("8", "16")]).baselines) == [
            "baseline: most-popular"
        ]


class TestPrinted:
    """What stands at the terminal: a table that fits, and a sentence about who wins."""

    def measured(self, method: str, rates: tuple[float, float], error: float | None = None, seed: int = 0) -> Run:
        """A run beside a baseline, with every figure of the table."""
        measures = []
        for metric, k, slice_ in stream_figures(10):
            for value, baseline in zip(rates, (None, "counting"), strict=True):
                measures.append(Measure(metric, k, slice_, value, baseline, error))
        return run(method, seed, protocol="prequential", measures=measures)

    def test_the_table_fits_100_columns_with_its_first_figures_and_says_what_is_left_out(self):
        long = {"item_features": "a-long-name," * 9, "dim": "8"}
        runs = [self.measured("xir", (0.3, 0.2), 0.001), self.measured("bir", (0.1, 0.2), 0.001)]
        runs[1].settings.update(long)
        shown = printed(runs)
        assert max(map(len, shown.splitlines())) <= 100
        assert "HR@10 all" in shown
        assert "0.3000 ± 0.0010" in shown
        assert "0.1000 ± 0.0010 ▼" in shown
        assert "more columns do not fit: --out DIR" in shown
        assert shown.endswith(verdict(runs)) or shown.replace("\n", " ").endswith(verdict(runs))

    def test_a_lead_beyond_the_errors_over_events_wins_and_a_smaller_one_does_not(self):
        assert verdict([self.measured("xir", (0.3, 0.2), 0.001)]) == (
            "`xir` wins: HR@10 all 0.3000, 0.1000 (50.0%) above baseline: counting, "
            "which is beyond the noise (95% of chance: ±0.0028, one seed, over events)."
        )
        said = verdict([self.measured("xir", (0.3, 0.2), 0.04)])
        assert said.startswith("Nobody wins: `xir` has the highest HR@10 all, 0.3000, 0.1000 (50.0%) above")
        assert "within the noise (95% of chance: ±0.1109" in said
        assert verdict([self.measured("xir", (0.1, 0.2), 0.001)]).startswith("baseline: counting wins")

    def test_seeds_are_compared_pair_by_pair(self):
        """Each method differs much from seed to seed, and their difference does not."""
        rates = {"xir": (0.15, 0.25, 0.35), "bir": (0.10, 0.20, 0.302)}
        runs = []
        for method, values in rates.items():
            for seed, value in enumerate(values):
                runs.append(self.measured(method, (value, 0.01), 0.1, seed))
        said = verdict(runs)
        assert said.startswith("`xir` wins: HR@10 all 0.2500, 0.0493 (24.6%) above `bir`, which is beyond the noise")
        assert "differences of 3 seeds" in said

    def test_one_seed_is_compared_stretch_by_stretch_of_the_log(self):
        """Both go up and down together by far more than their difference."""
        runs = []
        for method, more in (("xir", 0.01), ("bir", 0.0)):
            rates = [0.2 + 0.1 * (n % 3) + more * (1 + n % 2) for n in range(50)]
            (measure, *_) = self.measured(method, (fmean(rates), 0.01), 0.1).measures
            runs.append(run(method, 0, protocol="prequential", measures=[replace(measure, stretches=rates)]))
        said = verdict(runs)
        assert "`xir` wins" in said
        assert said.endswith("±0.0014, one seed, differences over 50 stretches of the log).")

    def test_stretches_of_a_real_run_average_to_the_figure_that_decides(self, log):
        (found,) = compare(log, "--methods", "ssl")
        measures = [m for m in found["measures"] if (m["metric"], m["k"], m["slice"]) == ("hr", 10, "second-half/all")]
        assert len(measures) > 1
        for m in measures:
            assert len(m["stretches"]) == 50
            assert fmean(m["stretches"]) == pytest.approx(m["value"], abs=0.02)
        assert not any(s.startswith("stretch") for s in found["about"]["slices"])

    def test_without_anything_to_go_by_it_says_so(self):
        assert "--seeds 3" in verdict([self.measured("xir", (0.3, 0.2))])
        alone = run("xir", 0, 0.5, measures=[Measure("recall", 10, "all", 0.5)])
        assert verdict([alone]) == "There is nothing to compare `xir` with: Recall@10 0.5000."
