"""Sweeps: runs of one setting stand together, and nothing else does; baselines stand with what changes them."""

from __future__ import annotations

import re

from comparisons import TINY, record, rows_in, streamer

from streamer.replay.evaluation.record import Measure, Record, result_rows
from streamer.replay.evaluation.report import page
from streamer.replay.evaluation.slices import SECOND_HALF
from streamer.replay.evaluation.tables import main_table, swept

FIXED = {"epochs": "1", "batch_size": "64"}
OVER = ["--over", "lambda=1,0", "--over", "batch-size=128,64,32"]


def points(report: str, trace: str) -> list[str]:
    """The places on the x axis of the lines of a name, as they stand in a page."""
    return re.findall(rf'"name":"{trace}"[^\n]*?"x":(\[[^\]]*\])', report)


class TestSettings:
    def test_a_swept_setting_may_also_be_given_for_all(self, log, tmp_path):
        command = ["sweep", "--data", log, "--protocol", "offline", "--set", "epochs=1", *TINY, *OVER]
        shown = streamer(*command, "--out", tmp_path)
        rows = [re.findall(r"^\| (\S+) \| xir \|", part, re.MULTILINE) for part in shown.split("### ")[1:]]
        assert rows == [["0", "1"], ["32", "64", "128"]]

    def test_runs_of_another_setting_are_left_out(self):
        of_lambda = [record(settings=FIXED | {"cache_weight": v}) for v in ("0", "1")]
        of_batches = [record(settings=FIXED | {"batch_size": v}) for v in ("32", "64")]
        assert swept(of_lambda + of_batches, "cache_weight", FIXED) == of_lambda
        assert swept(of_lambda + of_batches, "batch_size", FIXED) == of_batches

    def test_plots_are_of_the_same_runs_as_tables_and_in_the_order_of_numbers(self):
        changes = [{"cache_weight": v} for v in ("1", "0")] + [{"batch_size": v} for v in ("128", "64", "32")]
        runs = [record(settings=FIXED | change, value=k / 10) for k, change in enumerate(changes)]
        drawn = page("Title", "text", runs, ["cache_weight", "batch_size"], FIXED)
        assert points(drawn, "xir: Recall@10") == ['["0","1"]', '["32","64","128"]']
        assert re.findall(r'"y":(\[[^\]]*\])', drawn)[:3:2] == ["[0.1,0.0]", "[0.4,0.3,0.2]"]

    def test_a_run_that_two_settings_share_is_run_and_reported_once(self, log, tmp_path):
        over = ["--over", "dim=8,4", "--over", "batch_size=64,128"]
        streamer("sweep", "--data", log, "--protocol", "offline", *TINY, "--set", "epochs=1", *over, "--out", tmp_path)
        assert len(list((tmp_path / "runs").iterdir())) == 3
        rows = [str(row) for row in rows_in(tmp_path)]
        assert len(rows) == len(set(rows))


class TestBaselines:
    def late(self, delay: str, value: float, **more: object) -> Record:
        measure = Measure("hr", 10, f"{SECOND_HALF}all", value, "co-visitation")
        curve = [{"events": k, "time": 1.7e9 + k, "co-visitation/all/recent": value} for k in (1, 2)]
        settings = {"delay_events": delay, "dim": "8"}
        return record(protocol="prequential", settings=settings, measures=[measure], curve=curve, **more)

    def test_a_feedback_delay_changes_them(self, log, tmp_path):
        streamer("sweep", "--data", log, *TINY, "--over", "delay-events=0,300", "--out", tmp_path)
        wanted = {"baseline": "co-visitation", "metric": "hr", "k": 10, "slice": "all"}
        found = [row for row in rows_in(tmp_path) if wanted.items() <= row.items()]
        assert [row["settings"] for row in found] == [{"batch_size": "64", "delay_events": d} for d in ("0", "300")]
        assert found[0]["value"] != found[1]["value"]

    def test_their_rows_are_written_once_for_each_delay(self):
        runs = [self.late(delay, value, method=m) for delay, value in (("0", 0.2), ("9", 0.1)) for m in ("bir", "xir")]
        rows = [(row["settings"], row["value"]) for row in result_rows(runs)]
        assert rows == [({"delay_events": "0"}, 0.2), ({"delay_events": "9"}, 0.1)]

    def test_settings_that_do_not_change_them_are_left_out(self):
        runs = [record(settings={"dim": dim}) for dim in ("8", "16")]
        baselines = [row for row in result_rows(runs) if "baseline" in row]
        assert len(baselines) == 1
        assert "settings" not in baselines[0]

    def test_tables_and_plots_tell_them_apart(self):
        runs = [self.late("0", 0.2), self.late("9", 0.1)]
        rows = main_table(runs).splitlines()
        assert "| baseline: co-visitation (delay_events=0) | 0.2000 |" in rows
        assert "| baseline: co-visitation (delay_events=9) | 0.1000 |" in rows
        drawn = page("Title", "text", runs)
        assert "baseline: co-visitation (delay_events=9)" in drawn
        assert "baseline: co-visitation (delay" not in page("Title", "text", runs[:1])
