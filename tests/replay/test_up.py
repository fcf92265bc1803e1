"""`streamer up`: one command from a file to an answer over HTTP, which ends as a whole and goes on where it was."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from commands import Command, until

from streamer.errors import StreamerError
from streamer.replay.cli.parts import fetch, listen_for_server
from streamer.replay.cli.up import UpSettings, file_plan
from streamer.replay.synthetic import SyntheticStream

EVENTS = 1200


def write_csv(path: Path, events: int = EVENTS) -> Path:
    """A log whose columns have names of their own."""
    made = next(iter(SyntheticStream()))
    assert len(made.users) > events
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["when", "customer", "product", "category"])
        for user, item, time_s in list(zip(made.users, made.items, made.timestamps_s, strict=True))[:events]:
            writer.writerow([time_s, user, item, item.partition("-")[0]])
    return path


def up(directory: Path, said: str, *more: Any) -> Command:
    arguments = ["up", "events.csv", "--no-open", "--set", "dim=8", *more]
    return Command(arguments, directory / said, cwd=directory)


def answered(text: str) -> tuple[str, dict[str, Any]]:
    """The last address that was asked, and its answer."""
    found = re.findall(r"^\$ curl -s '?(\S+?)'?\n(.*)$", text, re.MULTILINE)
    return found[-1][0], json.loads(found[-1][1])


def children_of(pid: int) -> dict[str, int]:
    """The processes that a command has started, by what they do."""
    found = {}
    for number in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        arguments = Path(f"/proc/{number}/cmdline").read_text().split("\0")
        found |= {name: int(number) for name in ("replay", "serve") if name in arguments}
    return found


@pytest.mark.slow
def test_a_csv_with_names_of_its_own_is_learned_and_answered_and_no_event_is_doubled(tmp_path: Path):
    rows = list(csv.DictReader(write_csv(tmp_path / "events.csv").open()))
    for said in ("first", "again"):
        with up(tmp_path, said, "--until-end", "--item-feature", "category") as command:
            code, out = command.ended()
            assert code == 0, command.said()
        for ours, theirs in {"user_id": "customer", "item_id": "product", "timestamp": "when"}.items():
            assert re.search(rf"{ours} +{theirs} +e\.g\. {re.escape(rows[0][theirs])}", command.said())
        url, answer = answered(out)
        assert answer["known"]
        assert answer["user"] in {row["customer"] for row in rows}
        assert {one["item"] for one in answer["items"]} <= {row["product"] for row in rows}
        assert f"{EVENTS:,} = {EVENTS:,} trained" in out
        assert fetch(url) is None, "the server ends with it"


@pytest.mark.slow
def test_a_killed_command_takes_its_parts_along_and_the_next_one_counts_every_event_once(tmp_path: Path):
    write_csv(tmp_path / "events.csv")
    with up(tmp_path, "killed") as command:
        command.wait_until(lambda: "curl" in command.said())
        url, answer = answered(command.said())
        assert fetch(url)["items"] == answer["items"]
        command.kill()
    until(lambda: fetch(url) is None, "the server is gone")
    with up(tmp_path, "next", "--until-end") as command:
        code, out = command.ended()
        assert code == 0, command.said()
    assert f"{EVENTS:,} = {EVENTS:,} trained" in out


@pytest.mark.slow
def test_sigterm_ends_all_parts_well(tmp_path: Path):
    write_csv(tmp_path / "events.csv")
    with up(tmp_path, "said") as command:
        command.wait_until(lambda: "Ctrl-C ends all parts" in command.said())
        url, _ = answered(command.said())
        parts = children_of(command.pid)
        assert "serve" in parts
        command.signal(signal.SIGTERM)
        code, out = command.ended()
        assert code == 0, command.said()
    assert "The same command goes on" in out
    assert fetch(url) is None
    assert not any(Path(f"/proc/{pid}").exists() for pid in parts.values())


@pytest.mark.slow
def test_a_server_that_dies_ends_the_command_with_an_error(tmp_path: Path):
    write_csv(tmp_path / "events.csv")
    with up(tmp_path, "said") as command:
        command.wait_until(lambda: "curl" in command.said())
        os.kill(children_of(command.pid)["serve"], signal.SIGKILL)
        assert command.ended()[0] == 1
    assert re.match("streamer: the server has ended: exit code -9", command.said().splitlines()[-1])


@pytest.mark.slow
def test_a_port_that_is_taken_is_one_clear_line(tmp_path: Path):
    write_csv(tmp_path / "events.csv")
    with listen_for_server(None) as taken:
        port = taken.getsockname()[1]
        with up(tmp_path, "said", "--port", port) as command:
            assert command.ended()[0] == 1
    assert command.said().splitlines()[-1].startswith(f"streamer: port {port} on 127.0.0.1 is in use")


def test_commands_that_begin_at_once_have_ports_of_their_own():
    with listen_for_server(None) as one, listen_for_server(None) as other:
        ports = [listening.getsockname()[1] for listening in (one, other)]
        assert ports[0] != ports[1]
        with pytest.raises(StreamerError, match=f"port {ports[1]} on 127.0.0.1 is in use"):
            listen_for_server(ports[1])


FILES = {
    "events.csv": "when,customer,product\n1731700000,ann,tea\n",
    "events.tsv": "when\tcustomer\tproduct\n1731700000\tann\ttea\n",
    "events.jsonl": '{"when": 1731700000, "customer": "ann", "product": "tea"}\n',
    "events.inter": "user_id:token\titem_id:token\ttimestamp:float\nann\ttea\t1731700000\n",
}


@pytest.mark.parametrize("name", [*FILES, "events.parquet"])
def test_formats_and_columns_are_recognised(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / name
    if name.endswith(".parquet"):
        duckdb = pytest.importorskip("duckdb")
        duckdb.sql(f"COPY (SELECT 1731700000 AS at, 'ann' AS uid, 'tea' AS sku) TO '{path}' (FORMAT parquet)")
    else:
        path.write_text(FILES[name])
    plan = file_plan(str(path), UpSettings(), tmp_path / "data")
    columns = dict(part.split("=") for part in plan.writer if "=" in part)
    said = capsys.readouterr().err
    for ours, example in {"user_id": "ann", "item_id": "tea", "timestamp": "1731700000"}.items():
        assert re.search(rf"{ours} +{columns[ours]} +e\.g\. {example}", said)
    assert "--field OURS=THEIRS corrects it" in said
    corrected = file_plan(str(path), UpSettings(fields={"item_id": columns["user_id"]}), tmp_path / "corrected")
    assert f"item_id={columns['user_id']}" in corrected.writer


def test_what_cannot_be_recognised_is_named(tmp_path: Path):
    path = tmp_path / "events.csv"
    path.write_text("a,customer,b\n1,ann,tea\n")
    with pytest.raises(StreamerError, match=r"looks like item_id\. It has a, customer, b: name one, --field item_id="):
        file_plan(str(path), UpSettings(), tmp_path / "data")
    with pytest.raises(StreamerError, match="bootstrap-servers"):
        file_plan(str(tmp_path / "clicks"), UpSettings(), tmp_path / "data")


@pytest.mark.slow
def test_a_directory_belongs_to_one_file_as_it_is_with_its_fields(tmp_path: Path):
    path = write_csv(tmp_path / "events.csv")
    with up(tmp_path, "first", "--until-end") as command:
        assert command.ended()[0] == 0, command.said()
    path.write_text(path.read_text() + "1731700000,ann,tea,hot\n")
    with up(tmp_path, "other", "--until-end") as command:
        assert command.ended()[0] == 1
    assert re.search(r"something else than events\.csv .*--restart .* --data-dir", command.said().splitlines()[-1])
    with up(tmp_path, "anew", "--until-end", "--restart") as command:
        code, out = command.ended()
        assert code == 0, command.said()
    assert f"{EVENTS + 1:,} = {EVENTS + 1:,} trained" in out
