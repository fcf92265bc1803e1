"""Comparisons: every method sees the same events, runs are kept, and figures are shown as they are."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from click.testing import CliRunner
from comparisons import TINY, record, rows_in, streamer

from streamer.cli.main import cli
from streamer.errors import SettingsError, SourceError
from streamer.model.settings import LearnerSettings
from streamer.replay.evaluation.baselines import BASELINES
from streamer.replay.evaluation.record import Measure, Records, Spec, by_rank, result_rows
from streamer.replay.evaluation.report import page
from streamer.replay.evaluation.runs import parse_changes, spec_settings
from streamer.replay.evaluation.sliced import RETRIEVED
from streamer.replay.evaluation.tables import Figures, markdown, sweep_table
from streamer.settings import RunSettings


@pytest.mark.slow
class TestCompare:
    def test_rows_have_every_field_and_every_method_and_baseline(self, log, tmp_path):
        out = tmp_path / "out"
        streamer("compare", "--data", log, "--methods", "ssl-pop,xir", "--seeds", 2, "--out", out, *TINY)
        rows = json.loads((out / "results.json").read_text())
        assert {row.get("method") for row in rows} == {"ssl-pop", "xir", None}
        baselines = {row["baseline"] for row in rows if "baseline" in row}
        assert baselines == set(BASELINES)
        for row in rows:
            assert {"data", "protocol", "seed", "metric", "k", "slice", "value"} < row.keys()
            assert ("method" in row) != ("baseline" in row)
            assert row["data"] == "tiny"
            assert row["protocol"] == "prequential"
        once = [(r["baseline"], r["seed"], r["metric"], r["k"], r["slice"]) for r in rows if "baseline" in r]
        assert len(once) == len(set(once)), "a baseline's figures do not depend on the method beside it"
        assert {row["slice"] for row in rows} >= {"all", "new", "second-half/all", "second-half/new", "tail"}

    def test_what_was_run_is_not_run_again_and_gives_the_same_figures(self, log, tmp_path):
        out, command = tmp_path / "out", ["compare", "--data", log, "--methods", "bir", *TINY]
        streamer(*command, "--out", out)
        first, run = (out / "results.json").read_bytes(), next((out / "runs").iterdir())
        figures, before = rows_in(out, timed=False), run.stat().st_mtime_ns
        streamer(*command, "--out", out)
        assert run.stat().st_mtime_ns == before
        assert (out / "results.json").read_bytes() == first
        run.write_bytes(run.read_bytes()[:-20])
        streamer(*command, "--out", out)
        assert rows_in(out, timed=False) == figures, "the same seed gives the same figures"

    def test_a_log_of_the_same_name_that_holds_something_else_is_run_anew(self, log, tmp_path):
        out, command = tmp_path / "out", ["compare", "--data", log, "--methods", "bir", *TINY]
        streamer(*command, "--out", out)
        log.write_text("".join(log.read_text().splitlines(keepends=True)[:301]))
        streamer(*command, "--out", out)
        fresh = tmp_path / "fresh"
        streamer(*command, "--out", fresh)
        assert rows_in(out, timed=False) == rows_in(fresh, timed=False)

    def test_logs_that_are_called_alike_must_be_named(self, log, tmp_path):
        other = tmp_path / "other" / log.name
        other.parent.mkdir()
        other.write_text("".join(log.read_text().splitlines(keepends=True)[:301]))
        command = ["compare", "--data", log, "--data", other, "--methods", "bir", "--out", tmp_path / "out", *TINY]
        with pytest.raises(SettingsError, match="--data: several logs are called 'tiny'"):
            streamer(*command)
        with pytest.raises(SettingsError, match="--name is given 1 times"):
            streamer(*command, "--name", "one")
        shown = streamer(*command, "--name", "one", "--name", "two")
        assert {row["data"] for row in rows_in(tmp_path / "out")} == {"one", "two"}
        assert "600 events" in shown.partition("## two")[0]
        assert "300 events" in shown.partition("## two")[2]

    def test_a_method_that_is_named_twice_is_run_once(self, log, tmp_path):
        streamer("compare", "--data", log, "--methods", "bir, bir", "--out", tmp_path, *TINY)
        rows = [json.dumps(row) for row in rows_in(tmp_path)]
        assert len(rows) == len(set(rows))

    def test_malformed_lines_are_reported(self, log, tmp_path):
        log.write_text(log.read_text() + "nonsense\n")
        command = ["compare", "--data", log, "--methods", "bir", "--out", tmp_path / "out", *TINY]
        result = CliRunner().invoke(cli, [str(a) for a in command])
        assert f"{log}, line 602: missing_columns: nonsense" in result.stderr

    def test_lists_are_as_long_as_is_asked(self, log, tmp_path):
        shown = streamer("compare", "--data", log, "--methods", "bir", "--set", "ks=3,7", "--out", tmp_path, *TINY)
        assert {row["k"] for row in rows_in(tmp_path, timed=False)} == {3, 7, *RETRIEVED}
        assert "HR@3 all" in shown
        assert "without towers HR@3 all | without towers HR@3 new | towers' Recall@100 all" in shown

    def test_the_seed_of_the_log_orders_equal_times(self, log, tmp_path):
        log.write_text(re.sub(r"17\d{8}", "1700000000", log.read_text()))
        figures = {}
        for seed in (0, 1):
            out = tmp_path / str(seed)
            streamer("compare", "--data", log, "--methods", "bir", "--seed", seed, "--out", out, *TINY)
            figures[seed] = [row["value"] for row in rows_in(out) if "baseline" in row]
        assert figures[0] != figures[1]

    def test_other_settings_are_other_runs(self, log, tmp_path):
        for dim in (4, 8):
            streamer("compare", "--data", log, "--methods", "bir", "--out", tmp_path, "--set", f"dim={dim}")
        assert len(list((tmp_path / "runs").iterdir())) == 2

    def test_offline(self, log, tmp_path):
        command = ["compare", "--data", log, "--methods", "ssl,xir", "--protocol", "offline", *TINY]
        shown = streamer(*command, "--set", "epochs=2", "--out", tmp_path)
        rows = json.loads((tmp_path / "results.json").read_text())
        assert {(r["metric"], r["k"]) for r in rows if r["metric"] != "step-ms"} == {
            (metric, k) for metric in ("recall", "ndcg", "authors-ndcg") for k in (10, 20)
        }
        assert "| `xir` |" in shown

    def test_methods_see_the_same_events_in_the_same_order(self, log, tmp_path):
        """Baselines do not learn from the method: their figures are equal only if the events are."""
        found = {}
        for method in ("ssl", "mns"):
            out = tmp_path / method
            streamer("compare", "--data", log, "--methods", method, "--out", out, *TINY)
            found[method] = [r for r in rows_in(out, timed=False) if "baseline" in r]
        assert found["ssl"] == found["mns"]

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["--methods", "xirr"], "there is no method 'xirr'"),
            (["--methods", " , "], "no method is named"),
            (["--set", "seed=3"], "seed is not a setting, --seeds chooses it"),
            (["--protocol", "offline", "--set", "method=bir"], "method is not a setting, --methods chooses it"),
            (["--data", "nowhere.csv"], "nowhere.csv does not exist"),
            (["--k-core", "500"], "the filters leave no event of it"),
            (["--set", "dimm=3"], "there is no setting 'dimm'"),
            (["--set", "dim"], "write NAME=VALUE"),
            (["--set", "dim=x"], "dim is 'x': it must be a whole number of at least 1"),
            (["--protocol", "offline", "--set", "epochs=no"], "epochs is 'no'"),
            (["--protocol", "offline", "--set", "epochs=0"], "epochs is '0'"),
            (["--set", "delay_events=-1"], "delay_events"),
        ],
    )
    def test_what_is_wrong_is_said_before_anything_is_run(self, log, tmp_path, arguments, said):
        with pytest.raises((SettingsError, SourceError), match=re.escape(said)):
            streamer("compare", "--data", log, "--out", tmp_path / "out", *arguments)
        assert not list((tmp_path / "out").glob("runs/*"))

    def test_a_directory_that_cannot_be_made_is_reported(self, log):
        with pytest.raises(SettingsError, match="figures cannot be kept in /proc/nowhere"):
            streamer("compare", "--data", log, "--methods", "bir", "--out", "/proc/nowhere", *TINY)


@pytest.mark.slow
class TestEvaluateAndSweep:
    def test_one_method_as_json(self, log):
        rows = json.loads(streamer("evaluate", "--data", log, "--method", "bir", "--json", *TINY))
        assert {r["method"] for r in rows if "method" in r} == {"bir"}

    def test_a_sweep_changes_one_setting_at_a_time(self, log, tmp_path):
        over = ["--over", "lambda=0,0.5", "--over", "cache-size=16,32"]
        shown = streamer("sweep", "--data", log, *over, "--out", tmp_path, "--protocol", "offline", "--set", "epochs=1")
        rows = json.loads((tmp_path / "results.json").read_text())
        changed = {json.dumps(r["settings"], sort_keys=True) for r in rows}
        wanted = [("cache_weight", "0"), ("cache_weight", "0.5"), ("cache_size", "16"), ("cache_size", "32")]
        assert changed == {json.dumps({"epochs": "1", name: value}, sort_keys=True) for name, value in wanted}
        assert "## cache_weight" in shown
        assert "| 0.5 | xir |" in shown

    def test_a_sweep_tells_of_every_log_what_each_value_does_and_costs(self, log, tmp_path):
        other = log.with_name("other.csv")
        other.write_text(log.read_text())
        over = ["--over", "lambda=0", "--over", "lambda=0.5,0"]
        shown = streamer("sweep", "--data", log, "--data", other, *over, "--out", tmp_path / "out", *TINY)
        for name in ("tiny", "other"):
            part = shown[shown.index(f"## {name}, prequential") :].partition("\n## ")[0]
            rows = re.findall(r"^\| (\S+) \| xir \| 0\.\d{4}(?: ▼)? \| \d+\.\d \|$", part, re.MULTILINE)
            assert rows == ["0", "0.5"]
        assert (tmp_path / "out" / "results.md").read_text() in shown
        report = (tmp_path / "out" / "report.html").read_text()
        assert "<h3>cache_weight</h3>" in report
        assert report.count("HR@10 by cache_weight") == 2 * 2, "a plot a log, with title and label"

    def test_a_setting_without_a_value_is_reported(self, log, tmp_path):
        with pytest.raises(SettingsError, match="--over cache_weight has no value"):
            streamer("sweep", "--data", log, "--over", "lambda=,", "--out", tmp_path)


class TestSpecs:
    def test_prequential_has_the_defaults_of_run(self):
        settings = spec_settings(Spec("d", "prequential", "bir", 3, {"dim": "16"}))
        expected = RunSettings(method="bir", seed=3, dim=16)
        assert settings.only(LearnerSettings) == expected.only(LearnerSettings)
        assert settings.batch_size == expected.batch_size

    def test_the_environment_says_nothing(self, monkeypatch):
        monkeypatch.setenv("STREAMER_LEARNING_RATE", "7")
        assert spec_settings(Spec("d", "prequential", "bir", 3)).learning_rate != 7

    def test_offline_values_are_checked_by_type(self):
        settings = spec_settings(Spec("d", "offline", "xir", 1, parse_changes(("lambda=0.3", "draws=64"), "set")))
        assert (settings.cache_weight, settings.draws, settings.seed) == (0.3, 64, 1)

    def test_a_key_changes_with_everything_that_changes_figures(self):
        keys = {
            Spec("d", "offline", "xir", 0).key,
            Spec("e", "offline", "xir", 0).key,
            Spec("d", "prequential", "xir", 0).key,
            Spec("d", "offline", "bir", 0).key,
            Spec("d", "offline", "xir", 1).key,
            Spec("d", "offline", "xir", 0, {"dim": "3"}).key,
            Spec("d", "offline", "xir", 0, {}, {"limit": 3}).key,
        }
        assert len(keys) == 7


class TestFigures:
    def test_means_and_deviations_over_seeds(self):
        records = [record(seed=s, value=v) for s, v in enumerate([0.1, 0.2, 0.3])]
        figure = Figures(records).of(("log", "offline", "xir", ""), "recall", 10, "all")
        assert figure is not None
        assert figure.mean == pytest.approx(0.2)
        assert figure.deviation == pytest.approx(0.1)
        assert str(figure) == "0.2000 ± 0.1000"

    def test_a_baseline_measured_beside_two_methods_counts_once_a_seed(self):
        records = [record("xir", 0, 0.4), record("bir", 0, 0.4)]
        figure = Figures(records).of(("log", "offline", "most-popular", ""), "hr", 10, "second-half/all")
        assert figure is not None
        assert figure.seeds == 1
        assert len([r for r in result_rows(records) if "baseline" in r]) == 1

    def test_the_papers_figures_stand_only_beside_its_own_log(self):
        about = {"users": 29858, "items": 40988, "events": 1_027_464, "epochs": 2}
        assert "0.1169" in markdown([record(data="gowalla", about=about)])
        assert "0.1169" not in markdown([record(data="gowalla")])

    def test_slices_tell_of_users_items_and_popularity_with_their_events(self):
        names = ("new-users", "returning-users", "new-items", "returning-items", "head", "torso", "tail")
        slices = {prefix + name: k for prefix in ("", "new/") for k, name in enumerate(names, 1000)}
        slices |= {"all": 5, "new": 5}
        measures = [
            Measure("hr", 10, name, count / 10_000, baseline)
            for name, count in slices.items()
            for baseline in (None, "most-popular")
        ]
        about = {"users": 3, "items": 4, "events": 5, "slices": slices}
        shown = markdown([record(protocol="prequential", measures=measures, about=about)])
        counts = "| events | 5 | 1,000 | 1,001 | 1,002 | 1,003 | 1,004 | 1,005 | 1,006 |"
        rates = " | 0.0005 | 0.1000 | 0.1001 | 0.1002 | 0.1003 | 0.1004 | 0.1005 | 0.1006 |"
        for line in (counts, "| `xir`" + rates, "| baseline: most-popular" + rates):
            assert shown.count(line) == 2, "of all events, and of those new to their user"

    def test_figures_that_a_baseline_exceeds_are_marked_everywhere(self):
        """Over the seeds in tables, for each run in JSON; speed is not compared."""
        rates = {"all": (0.4, 0.3, 0.1), "new": (0.2, 0.3, 0.1), "new/tail": (0.1, 0.1, 0.0)}
        measures = [
            Measure("hr", 10, f"second-half/{slice_}", value, baseline)
            for slice_, values in rates.items()
            for baseline, value in zip((None, "counting", "last-items"), values, strict=True)
        ]
        speeds = [
            Measure("events-per-second", 0, "all", n, baseline) for baseline, n in ((None, 9e3), ("counting", 2e5))
        ]
        records = [record(protocol="prequential", measures=[*measures, *speeds])]
        shown = markdown(records)
        assert "| | HR@10 all | HR@10 new | HR@10 new, tail | events/s |" in shown.replace("|  |", "| |")
        assert "| baseline: counting | 0.3000 | 0.3000 | 0.1000 | 200,000 |" in shown
        assert "| `xir` | 0.4000 | 0.2000 ▼ | 0.1000 | 9,000 |" in shown
        assert '<td class="below">0.2000 ▼</td>' in page("t", shown, records)
        below = {row["slice"]: row["below"] for row in result_rows(records) if "below" in row}
        assert below == {"second-half/new": "counting"}

    def test_how_many_events_were_ranked_is_reported_if_not_all_were(self):
        about = {"users": 3, "items": 4, "events": 5000}
        runs = [record(about=about | {"slices": {"all": ranked}}) for ranked in (4000, 4500, 5000)]
        assert "5,000 events (4,000 ranked)," in markdown(runs[:1])
        assert "5,000 events (4,000 to 4,500 ranked)," in markdown(runs[:2])
        assert "5,000 events (4,000 to 5,000 ranked)," in markdown(runs)
        assert "5,000 events, " in markdown(runs[2:] * 2)

    def test_all_events_of_a_log_are_ranked(self, log, tmp_path):
        shown = streamer("compare", "--data", log, "--methods", "bir", "--out", tmp_path / "out", *TINY)
        assert "600 events, one pass, test then train" in shown

    def test_what_of_the_log_was_used_is_reported(self):
        assert "of the log limit=5." in markdown([record(log={"limit": 5})])

    def test_values_of_a_sweep_come_in_their_order_and_columns_without_figures_not_at_all(self):
        measures = [Measure("recall", 10, "all", 0.25)]
        values = ("1024", "128", "0.5", "auto")
        table = sweep_table([record(settings={"draws": v}, measures=measures) for v in values], "draws")
        head, _, *rows = table.splitlines()
        assert head == "| draws | method | Recall@10 |"
        assert [row.split(" | ")[0] for row in rows] == ["| 0.5", "| 128", "| 1024", "| auto"]


class TestRecords:
    def test_round_trip(self, tmp_path):
        records, ours = Records(tmp_path), record(settings={"dim": "8"})
        assert records.get(ours) is None
        records.put(ours)
        assert records.get(ours) == ours
        assert records.all() == [ours]

    def test_ranks_keep_the_order_and_the_ends(self):
        popularity = np.array([5.0, 100.0, 1.0, 20.0])
        points = by_rank(popularity, popularity * 2)
        assert [p["rank"] for p in points] == [1, 2, 3, 4]
        for name in ("popularity", "occurrence"):
            assert [p[name] * 126 for p in points] == pytest.approx([100, 20, 5, 1])
        assert by_rank(np.empty(0), np.empty(0)) == []

    def test_means_of_ranks_cover_every_item_once(self):
        popularity = np.random.default_rng(0).integers(1, 100, 5000).astype(float)
        points = by_rank(popularity, np.ones(5000))
        assert len(points) <= 200
        assert all(p["occurrence"] == pytest.approx(1 / 5000) for p in points)


class TestReport:
    def test_it_is_one_page_without_anything_from_elsewhere(self):
        curve = [{"epoch": 1, "loss": 2.0, "seconds": 1.0, "recall@10": 0.1}]
        ranks = [{"rank": 1.0, "popularity": 3.0, "occurrence": 2.0}]
        shares = [{"epoch": 1, "distinct": 3, "shares": [0.5, 0.5]}]
        found = page(
            "Title",
            "## log\n\ntext\n\n| a | b |\n|---|---|\n| `x` | 1 |",
            [record(curve=curve, by_rank=ranks, composition=shares)],
        )
        assert not re.search(r"<(script|link|img)[^>]*(src|href)=", found)
        assert "<td>x</td><td>1</td>" in found
        assert found.count("<figure") == 4

    def test_plots_of_a_log_follow_its_tables(self):
        curve = [{"epoch": 1, "loss": 2.0, "seconds": 1.0}]
        records = [record(data=name, curve=curve) for name in ("one", "two")]
        found = page("Title", markdown(records), records)
        places = [found.index(text) for text in ("<h2>one", 'aria-label="one', "<h2>two", 'aria-label="two')]
        assert places == sorted(places)

    def test_legends_leave_out_settings_that_all_have(self):
        curve = [{"epoch": 1, "loss": 2.0, "seconds": 1.0}]
        settings = [{"epochs": "2", "dim": dim} for dim in ("8", "16")]
        found = page("Title", "text", [record(settings=s, curve=curve) for s in settings])
        assert "xir (dim=8)" in found
        assert "epochs=2" not in found

    def test_names_are_escaped(self):
        found = page("<script>alert(1)</script>", "text", [record(data="<img src=x onerror=alert(2)>", curve=[])])
        assert "<script>alert(1)" not in found
        assert "<img src=x" not in found
