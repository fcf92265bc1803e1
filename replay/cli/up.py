"""`streamer up`: from a file or a topic to recommendations over HTTP."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import click
import msgspec

from streamer.cli.options import GroupedCommand, settings_options
from streamer.cli.output import printable, table
from streamer.errors import (
    OtherSource,
    SettingsError,
    SourceError,
    StreamerError,
)
from streamer.event.guess import Guess, guess_fields
from streamer.model.setting import changed, parse_pairs, parse_settings, setting
from streamer.replay.cli.parts import (
    Figures,
    PartsPlan,
    PartsSettings,
    answer_lines,
    run_parts,
)
from streamer.settings import RunSettings
from streamer.sources.base import Chunk

COLUMNS = ("user_id", "item_id", "timestamp")
"""Our fields that are looked for."""
PUBLISHED = "published"
"""Directory in a data directory to which the trainer publishes."""
SHOWN = 40
"""Characters of an example."""


@dataclass(frozen=True, kw_only=True)
class UpSettings(PartsSettings):
    """All settings of `streamer up`."""

    heading: ClassVar[str] = "Source"

    fields: Mapping[str, str] = changed(
        RunSettings,
        "fields",
        {},
        help="Correct the guess: your name of a field, e.g. user_id=customer. Repeat it for several.",
    )
    format: str | None = setting(
        None,
        "Format of the file, one that `streamer replay --help` lists.",
        if_none="guessed",
    )
    bootstrap_servers: str | None = changed(
        RunSettings,
        "bootstrap_servers",
        None,
        help="SOURCE is a topic of this Kafka: host:port[,host:port].",
    )
    kafka: Mapping[str, str] = changed(RunSettings, "kafka", {})
    kafka_config: Path | None = changed(RunSettings, "kafka_config", None)
    item_features: tuple[str, ...] = changed(RunSettings, "item_features", ())
    item_numeric_features: tuple[str, ...] = changed(
        RunSettings, "item_numeric_features", ()
    )
    data_dir: Path | None = setting(
        None,
        "Directory of what is learned; the same command goes on from there.",
        if_none="streamer-data/SOURCE",
    )
    restart: bool = setting(
        False, "Forget what was learned in that directory, and begin again."
    )
    until_end: bool = setting(
        False, "End when everything is learned, instead of serving on until Ctrl-C."
    )
    changes: tuple[str, ...] = setting(
        (),
        "Any setting of `streamer run`, docs/settings.md; repeat it for several.",
        option="set",
        metavar="NAME=VALUE",
    )


@click.command(cls=GroupedCommand)
@click.argument("source")
@settings_options(UpSettings, environment=())
def up(settings: UpSettings, source: str) -> None:
    """Learn from SOURCE and serve recommendations over HTTP, in one command.

    SOURCE is a file, plain or compressed (CSV, TSV, JSON lines, Parquet, RecBole and
    the other formats that `streamer replay --help` lists), a directory or a pattern; or
    with --bootstrap-servers a topic of Kafka. Format and columns are recognised and
    shown. Ctrl-C ends all parts; the same command goes on where they were.
    """
    named = Path("streamer-data") / _directory_name(source)
    directory = (settings.data_dir or named).absolute()
    if settings.restart:
        forget(directory)
    make_plan = file_plan if settings.bootstrap_servers is None else topic_plan
    try:
        figures = run_parts(make_plan(source, settings, directory), settings)
    except OtherSource as error:
        raise StreamerError(
            f"{directory} was learned from something else than {source} as it is now with these fields. "
            "Give --restart to forget that and begin again, or another --data-dir to keep both"
        ) from error
    click.echo("\n".join(summary(figures)))


def forget(directory: Path) -> None:
    """Remove what was learned in a directory, and for servers of it; events that were
    written into its log stay.
    """
    from streamer.snapshot.store import TRAINER

    checkpoints = RunSettings(data_dir=directory).checkpoints
    if (checkpoints / TRAINER).is_file():
        shutil.rmtree(checkpoints)
        shutil.rmtree(directory / PUBLISHED, ignore_errors=True)


def file_plan(path: str, settings: UpSettings, directory: Path) -> PartsPlan:
    """A file is written into an embedded log, from which trainer and server read; its
    topic stands for the content of the file and the fields that are read.

    Raises:
        StreamerError: it cannot be read, or has no columns for users and items.
    """
    from streamer.replay.datasets import LogSettings, sample_log
    from streamer.replay.streams import replay_name

    try:
        sample = sample_log(path, settings.format, LogSettings(columns=settings.fields))
    except SourceError as error:
        raise SourceError(f"{error}. A topic needs --bootstrap-servers") from error
    format = sample.format.name
    click.echo(f"{path} is read as {format}; --format names another one", err=True)
    guess = guess_fields(sample.rows)._replace(keys=list(sample.columns))
    fields = recognised(path, guess, settings.fields, sample.rows)
    features = [*settings.item_features]
    features += [f"{name}:float" for name in settings.item_numeric_features]
    identity = {"fields": fields, "features": features}
    name = replay_name(format, identity, sample.files)
    topic = f"{_directory_name(path)}-{name[-8:]}"

    stream = ["--data-dir", str(directory), "--topic", topic]
    writer = ["replay", format, "--path", path, "--json", *stream]
    for ours, theirs in fields.items():
        writer += ["--column", f"{ours}={theirs}"]
    for feature in features:
        writer += ["--item-feature", feature]
    return PartsPlan(
        source=path,
        trainer=run_settings(settings, directory, topics=(topic,)),
        writer=writer,
        server=["serve", "--from", str(directory / PUBLISHED), "--clicks", *stream],
        ends=settings.until_end,
    )


def topic_plan(topic: str, settings: UpSettings, directory: Path) -> PartsPlan:
    """A topic of Kafka is read as it is, by a consumer group of what is learned in the
    directory: a restart leaves it behind.

    Raises:
        StreamerError: it cannot be read, or its records have no fields for users and
            items.
    """
    from streamer.cli.look import next_records
    from streamer.snapshot import CheckpointStore

    servers = str(settings.bootstrap_servers)
    trainer = run_settings(
        settings,
        directory,
        topics=(topic,),
        bootstrap_servers=servers,
        kafka=settings.kafka,
        kafka_config=settings.kafka_config,
    )
    records = json_records(next_records(trainer, {}))
    fields = dict(settings.fields)
    if records:
        fields = recognised(topic, guess_fields(records), fields, records)
    with CheckpointStore(trainer.checkpoints) as store:
        group = f"streamer-up-{store.trainer}"

    server = ["serve", "--from", str(directory / PUBLISHED), "--topic", topic]
    server += ["--bootstrap-servers", servers, "--data-dir", str(directory)]
    if settings.kafka_config is not None:
        server += ["--kafka-config", str(settings.kafka_config)]
    for name, value in settings.kafka.items():
        server += ["--kafka", f"{name}={value}"]
    for ours, theirs in fields.items():
        server += ["--field", f"{ours}={theirs}"]
    return PartsPlan(
        source=f"{topic} at {servers}",
        trainer=replace(trainer, fields=fields, group_id=group),
        server=server,
        ends=settings.until_end,
    )


def run_settings(settings: UpSettings, directory: Path, **stream: Any) -> RunSettings:
    """The settings of `streamer run`: its defaults, whatever the environment says.

    Raises:
        SettingsError: with every problem.
    """
    try:
        found = parse_settings(
            RunSettings,
            parse_pairs(settings.changes),
            data_dir=directory,
            publish_dir=directory / PUBLISHED,
            item_features=settings.item_features,
            item_numeric_features=settings.item_numeric_features,
            **stream,
        )
    except ValueError as error:
        (problems,) = error.args
        listed = [problems] if isinstance(problems, str) else problems
        raise SettingsError([f"--set: {problem}" for problem in listed]) from error
    if problems := found.problems():
        raise SettingsError(problems)
    return found


def json_records(chunks: Iterable[Chunk]) -> list[dict[str, Any]]:
    """The JSON objects in some records, those of arrays too."""
    found: list[Any] = []
    for chunk in chunks:
        for value in chunk.values:
            with contextlib.suppress(msgspec.DecodeError):
                decoded = msgspec.json.decode(value)
                found += decoded if isinstance(decoded, list) else [decoded]
    return [record for record in found if isinstance(record, dict)]


def recognised(
    source: str,
    guess: Guess,
    asked: Mapping[str, str],
    records: Sequence[Mapping[str, Any]],
) -> dict[str, str]:
    """What the source calls our fields, by what was asked for and by the guess; it is
    shown, with an example of each.

    Raises:
        SourceError: nothing looks like a user, or like an item.
    """
    found = {}
    for ours in COLUMNS:
        if theirs := asked.get(ours) or guess.fields.get(ours):
            found[ours] = theirs
    for ours in ("user_id", "item_id"):
        if ours not in found:
            raise SourceError(
                f"{source}: nothing in it looks like {ours}. It has {', '.join(guess.keys)}: "
                f"name one, --field {ours}={guess.keys[0] if guess.keys else 'NAME'}"
            )
    rows = []
    for ours in COLUMNS:
        theirs = found.get(ours, "")
        examples = (record[theirs] for record in records if theirs in record)
        example = str(next(examples, ""))[:SHOWN]
        shown = theirs or "none: events have no order of their own"
        rows.append((ours, shown, example and f"e.g. {printable(example)}"))
    click.echo(f"{source} has {', '.join(guess.keys)}", err=True)
    click.echo("\n".join(table(rows)), err=True)
    click.echo(
        "--field OURS=THEIRS corrects it; --item-feature NAME adds one", err=True
    )
    return {**asked, **found}


def summary(figures: Figures) -> Iterator[str]:
    """Lines that a person reads at the end."""
    from streamer.display.reporting import summary_rows

    for label, text in summary_rows(figures):
        yield f"{label:<12}{text}"
    if figures["answer"] is not None:
        yield from answer_lines(figures["server"], figures["answer"])
    yield "The same command goes on from here."


def _directory_name(source: str) -> str:
    """A name for what is learned from a source: that of its file, as it can be used."""
    return re.sub(r"[^\w.-]+", "_", Path(source).name) or "events"
