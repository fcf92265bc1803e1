"""`streamer run` as a user meets it: where settings come from, what goes in, what comes out, what errors look like."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from crash_harness import TINY, Zygote
from line_harness import NOON_MS, TOPIC, assert_closed, events, newest, popularity_counts, values_of

import streamer.cli.run as command
from streamer.build import kafka_settings
from streamer.errors import StreamerError
from streamer.learner import OnlineLearner
from streamer.settings import RunSettings
from streamer.snapshot import CheckpointStore, SnapshotDirectory
from streamer.sources.embedded.log import EmbeddedLog

QUICK = [part for part in TINY if part not in ("--event-type", "buy")]


# where settings come from ---------------------------------------------------------------------------------------------


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Returns the settings that the arguments, a file and variables come to; the run goes no further."""
    seen: list[RunSettings] = []

    def build_pipeline(settings: RunSettings) -> None:
        seen.append(settings)
        raise StreamerError("far enough")

    monkeypatch.setattr("streamer.build.build_pipeline", build_pipeline)

    def invoke(*arguments: str, config: str | None = None, **env: str) -> Any:
        if config is not None:
            (tmp_path / "streamer.toml").write_text(config)
            arguments = ("--config", str(tmp_path / "streamer.toml"), *arguments)
        return CliRunner().invoke(command.run, arguments, env=env)

    def settings_of(*arguments: str, config: str | None = None, **env: str) -> RunSettings:
        result = invoke(*arguments, config=config, **env)
        assert isinstance(result.exception, StreamerError), result.output
        return seen.pop()

    settings_of.refused = invoke  # type: ignore[attr-defined]
    return settings_of


CONFIG = """
topic = ["clicks", "buys"]
batch-size = 100

[learning]
learning-rate = 0.5
dense_learning_rate = 0.25

[field]
user_id = "uid"
item_id = "sku"

[kafka]
sasl_mechanism = "PLAIN"
fetch_min_bytes = 5
"""


class TestSettings:
    def test_a_file_sets_options_by_their_long_names_under_any_heading(self, given):
        options = given(config=CONFIG)
        assert options.topics == ("clicks", "buys")
        assert options.batch_size == 100
        assert (options.learning_rate, options.dense_learning_rate) == (0.5, 0.25)
        assert options.fields == {"user_id": "uid", "item_id": "sku"}
        assert options.kafka == {"sasl_mechanism": "PLAIN", "fetch_min_bytes": "5"}

    def test_one_value_is_enough_where_several_may_be_given(self, given):
        options = given(config='topic = "clicks"\nevent-type = "buy"\nitem-feature = "brand"')
        assert options.topics == ("clicks",)
        assert options.event_types == ("buy",)
        assert options.item_features == ("brand",)

    def test_the_command_line_wins_over_the_environment_which_wins_over_the_file(self, given):
        config = "batch-size = 1\nlearning-rate = 1\ndim = 1"
        options = given("--dim", "3", config=config, STREAMER_LEARNING_RATE="2", STREAMER_DIM="2")
        assert (options.batch_size, options.learning_rate, options.dim) == (1, 2.0, 3)

    def test_variables_are_named_after_the_options(self, given):
        options = given(
            STREAMER_TOPIC="clicks buys",
            STREAMER_EVENT_TYPE="buy",
            STREAMER_USER_IDS="1",
            STREAMER_UNTIL_END="true",
            STREAMER_JSON="1",
            STREAMER_CHECKPOINT_DIR="somewhere",
        )
        assert options.topics == ("clicks", "buys")
        assert options.event_types == ("buy",)
        assert options.user_ids is True
        assert options.until_end is True
        assert options.checkpoint_dir == Path("somewhere")

    def test_the_file_itself_can_be_named_by_a_variable(self, given, tmp_path):
        (tmp_path / "here.toml").write_text("batch-size = 77")
        assert given(STREAMER_CONFIG=str(tmp_path / "here.toml")).batch_size == 77

    @pytest.mark.parametrize(
        ("config", "arguments", "said"),
        [
            (
                "batchsize = 2\n[model]\ndimension = 3",
                (),
                ["batchsize: did you mean batch-size?", "dimension", "--help"],
            ),
            ("batch-size =", (), ["is not TOML"]),
            ('batch-size = "many"', (), ["many"]),
            (None, ("--config", "nowhere.toml"), ["cannot read nowhere.toml"]),
        ],
    )
    def test_a_file_that_is_wrong_is_refused(self, given, config, arguments, said):
        result = given.refused(*arguments, config=config)
        assert result.exit_code == 2
        for words in said:
            assert words in result.output

    def test_all_wrong_values_are_told_at_once(self, given):
        result = given.refused(
            "--batch-size", "0", "--method", "magic", "--cache-size", "-1", config='learning-rate = "fast"'
        )
        assert result.exit_code == 2
        for name in ("--batch-size", "--method", "--cache-size", "--learning-rate"):
            assert name in result.output

    def test_help_shows_every_option_under_a_heading(self):
        text = CliRunner().invoke(command.run, ["--help"]).output
        for parameter in command.run.params:
            assert parameter.opts[0] in text
            assert parameter.heading in text or parameter.name == "help"
        assert "\nOptions:" in text, "only --help is left without a heading"

    def test_the_settings_of_a_kafka_client_in_a_file_are_not_taken_for_one(self, monkeypatch):
        """STREAMER_KAFKA_CONFIG names a file; it looks like a setting of the client, but is none."""
        monkeypatch.setenv("STREAMER_KAFKA_CONFIG", "file.properties")
        monkeypatch.setenv("STREAMER_KAFKA_FETCH_MIN_BYTES", "5")
        assert kafka_settings(RunSettings(bootstrap_servers="host:9092")).client == {"fetch_min_bytes": 5}


class TestWrongSettings:
    """What single options cannot tell is told together, too, one line each."""

    def test_all_problems_are_told_at_once(self, zygote, tmp_path):
        wrong = ["--set", "item_layers=4", "--set", "user_layers=5", "--field", "colour=hue", "--start", "error"]
        assert zygote.run(["run", "--data-dir", tmp_path, *wrong]) == 2
        lines = zygote.errors.splitlines()
        assert len(lines) == 3
        assert all(line.startswith("streamer: ") for line in lines)
        for text in ("item tower's 4", "colour", "--start is 'error'"):
            assert text in zygote.errors


# what goes in and what comes out --------------------------------------------------------------------------------------

KEYS = {"consumed", "trained", "filtered", "dead_lettered", "events_per_second", "checkpoint"}


def write_log(directory: Path, values: Sequence[bytes], topic: str = TOPIC, partitions: int = 1) -> None:
    with EmbeddedLog(directory) as log:
        log.create_topic(topic, partitions)
        log.append(topic, [(None, value, NOON_MS) for value in values])


def jsonl(path: Path, values: Sequence[bytes]) -> Path:
    path.write_bytes(b"\n".join(values) + b"\n")
    return path


class TestRuns:
    def test_the_json_summary(self, zygote, tmp_path):
        write_log(tmp_path, [*values_of(events(200)), b"no event"])
        summary = zygote.summary(["run", "--data-dir", tmp_path, "--until-end", *QUICK])
        assert summary.keys() >= KEYS
        assert_closed(summary)
        assert (summary["consumed"], summary["trained"], summary["dead_lettered"]) == (201, 200, 1)
        assert summary["events_per_second"] > 0
        assert summary["checkpoint"] == str(newest(tmp_path / "checkpoints").path)
        assert (tmp_path / f"{TOPIC}.dead-letters.jsonl").read_text().count("not_json") == 1

    def test_a_file_that_grew_is_read_on(self, zygote, tmp_path):
        path = jsonl(tmp_path / "events.jsonl", values_of(events(150)))
        arguments = ["run", "--source", path, "--until-end", "--data-dir", tmp_path / "data", *QUICK]
        assert zygote.summary(arguments)["trained"] == 150
        jsonl(path, values_of(events(150)) + values_of(events(50, seed=1)))
        again = zygote.summary(arguments)
        assert (again["trained"], again["events_this_run"]) == (200, 50)

    def test_a_directory_belongs_to_its_source(self, zygote, tmp_path):
        """Its name tells it from others, and its beginning from others of that name; more topics are welcome."""
        ours, others = values_of(events(90)), values_of(events(90, seed=1))
        jsonl(tmp_path / "ours.jsonl", ours)
        (tmp_path / "there").mkdir()
        jsonl(tmp_path / "there" / "ours.jsonl", others * 2)
        write_log(tmp_path / "log", ours, "clicks")
        write_log(tmp_path / "log", others, "buys")

        def run(name: str, *source: Any) -> list[Any]:
            return ["run", *source, "--checkpoint-dir", tmp_path / name, "--until-end", *QUICK]

        log = ["--data-dir", tmp_path / "log", "--topic"]
        file = ["--data-dir", tmp_path, "--source"]
        zygote.summary(run("of-file", *file, tmp_path / "ours.jsonl"))
        zygote.summary(run("of-topic", *log, "clicks"))
        for other, said in (
            (
                run("of-file", *file, tmp_path / "there" / "ours.jsonl"),
                r"ours\.jsonl\[0\] is not what .* but another log",
            ),
            (run("of-file", *log, "clicks"), r"of-file was learned from ours\.jsonl, and this is clicks\."),
            (run("of-topic", *log, "buys"), r"of-topic was learned from clicks, and this is buys\."),
        ):
            assert zygote.run(other) == 1
            assert re.search(said + ".*--checkpoint-dir .*`streamer reset --to-beginning`", only_line(zygote))
            assert zygote.run(["doctor", *other[1:]]) == 1
        assert zygote.run(["doctor", *run("of-topic", *log, "clicks")[1:]]) == 0
        assert zygote.summary(run("of-topic", *log, "clicks", "--topic", "buys"))["trained"] == 180

    @pytest.mark.slow
    def test_standard_input(self, tmp_path):
        arguments = ["run", "--source", "-", "--data-dir", tmp_path / "data", *QUICK]
        command = [sys.executable, "-m", "streamer", *map(str, arguments)]
        out = subprocess.check_output(command, input=b"\n".join(values_of(events(150))))
        assert json.loads(out)["trained"] == 150

    def test_field_names_and_filters(self, zygote, tmp_path):
        rows = [
            {"uid": f"u{k}", "sku": k % 9, "kind": kind, "stars": k % 5} for k in range(90) for kind in ("buy", "view")
        ]
        path = jsonl(tmp_path / "events.jsonl", [json.dumps(row).encode() for row in rows])
        names = ["user_id=uid", "item_id=sku", "event_type=kind", "rating=stars"]
        fields = [part for name in names for part in ("--field", name)]
        filters = ["--event-type", "buy", "--min-rating", "3"]
        summary = zygote.summary(["run", "--source", path, "--data-dir", tmp_path, *fields, *filters, *QUICK])
        assert (summary["trained"], summary["filtered"], summary["dead_lettered"]) == (36, 144, 0)
        assert summary["items"] == 9

    def test_a_stream_of_no_events_is_refused_and_the_corrected_command_trains_all_of_it(self, zygote, tmp_path):
        write_log(tmp_path, [json.dumps({"uid": f"u{k % 9}", "sku": k % 5}).encode() for k in range(150)])
        arguments = ["run", "--data-dir", tmp_path, "--until-end", *QUICK]
        assert zygote.run(arguments) == 1
        for words in ("0 of 100 records are events: user_id is missing", "Keys seen: uid, sku", "--field item_id=sku"):
            assert words in only_line(zygote)
        fields = ["--field", "user_id=uid", "--field", "item_id=sku"]
        assert zygote.summary([*arguments, *fields])["trained"] == 150

    def test_a_feature_beside_its_object_is_read_and_one_that_never_occurs_is_warned_of(self, zygote, tmp_path):
        rows = [{"user_id": k % 7, "item": {"id": k % 5}, "brand": f"b{k % 2}", "price": k % 5} for k in range(1200)]
        path = jsonl(tmp_path / "events.jsonl", [json.dumps(row).encode() for row in rows])
        features = ["--item-feature", "brand", "--item-feature", "colour", "--item-numeric-feature", "price"]
        features += ["--field", "item_id=item.id"]
        features += ["--set", "item_layers=8", "--set", "user_layers=8"]
        summary = zygote.summary(["run", "--source", path, "--data-dir", tmp_path, *features, *QUICK])
        warning = "item-feature colour has not occurred in any event: check its name"
        assert (summary["trained"], summary["items"], summary["warnings"]) == (1200, 5, [warning])
        assert zygote.errors.count(f"WARNING {warning}") == 1
        learner = OnlineLearner.from_checkpoint(newest(tmp_path / "checkpoints"))
        assert learner.state.vocabulary("item.brand").ids == ["b0", "b1"]

    def test_max_events_goes_on_where_it_stopped(self, zygote, tmp_path):
        write_log(tmp_path, values_of(stream := events(400)), partitions=2)
        for expected in (150, 300, 400):
            summary = zygote.summary(["run", "--data-dir", tmp_path, "--until-end", "--set", "max_events=150", *QUICK])
            assert summary["consumed"] == expected
        learner = OnlineLearner.from_checkpoint(newest(tmp_path / "checkpoints"))
        assert popularity_counts(learner).total() == len(stream)

    def test_several_topics(self, zygote, tmp_path):
        write_log(tmp_path, values_of(events(100)), "clicks")
        write_log(tmp_path, values_of(events(50)), "buys")
        topics = ["--topic", "clicks", "--topic", "buys"]
        assert zygote.summary(["run", "--data-dir", tmp_path, *topics, "--until-end", *QUICK])["trained"] == 150

    def test_the_number_of_checkpoints_that_are_kept(self, zygote, tmp_path):
        write_log(tmp_path, values_of(events(400)))
        often = ["--checkpoint-every-events", "64", "--keep-checkpoints", "2"]
        zygote.summary(["run", "--data-dir", tmp_path, "--until-end", *often, *QUICK])
        store = SnapshotDirectory(tmp_path / "checkpoints")
        newest, before = list(store.numbers())[-1:-3:-1]
        chains = (store.load_number(newest).chain, store.load_number(before).chain)
        assert set(store.paths()) == {one.path for chain in chains for one in chain}


# errors ---------------------------------------------------------------------------------------------------------------


PLACES = ("nothing.jsonl", ".", "replaced", "checkpoints", "used", "corrupt")


def only_line(zygote: Zygote) -> str:
    """The one line of complaint; what was logged before does not count."""
    lines = [line for line in zygote.errors.splitlines() if line.startswith("streamer: ")]
    assert len(lines) == 1, zygote.errors
    assert "Traceback" not in zygote.errors
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--source", "nothing.jsonl"], ["there is no file", "nothing.jsonl"]),
        (["--topic", "absent", "--until-end"], ["there is no topic 'absent'", TOPIC]),
        (["--dead-letters", "."], ["cannot open dead letters"]),
        (["--dim", "16"], ["dim was 8 and is 16 now", "--checkpoint-dir"]),
        (["--data-dir", "replaced", "--checkpoint-dir", "checkpoints", "--until-end"], ["another log of that name"]),
        (["--checkpoint-dir", "used"], ["another process (pid ", "Stop it, or choose another directory"]),
        (["--checkpoint-dir", "corrupt"], ["every checkpoint in"]),
    ],
)
def test_an_error_is_one_line_that_says_what_and_what_to_do(zygote, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    write_log(tmp_path, values_of(events(100)))
    write_log(tmp_path / "replaced", values_of(events(10)))
    places = [tmp_path / part if part in PLACES else part for part in arguments]
    if {"--dim", "replaced", "corrupt"} & set(arguments):
        zygote.summary(["run", "--data-dir", tmp_path, "--until-end", *QUICK])
        shutil.copytree(tmp_path / "checkpoints", tmp_path / "corrupt")
    for path in (tmp_path / "corrupt").glob("ckpt-*"):
        path.write_text("{}")
    with CheckpointStore(tmp_path / "used"):
        assert zygote.run(["run", "--data-dir", tmp_path, *QUICK, *places]) == 1
    for word in words:
        assert word in only_line(zygote)
