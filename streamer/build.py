"""From options to parts: the only place that knows which source, sink and learner belong to which options."""

from __future__ import annotations

import datetime
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from streamer.cache_store.base import CacheStore
from streamer.cache_store.errors import StoreRefused
from streamer.cache_store.keys import Keys
from streamer.cli.options import pairs
from streamer.dead_letters.base import DeadLetters, FileDeadLetters
from streamer.errors import SettingsError
from streamer.event import EventSettings
from streamer.sources.base import Source

Options = dict[str, Any]


def checked(*makes: Callable[[], Any]) -> list[Any]:
    """What each of them makes.

    Raises:
        SettingsError: with the problems of all of them.
    """
    made, problems = [], []
    for make in makes:
        try:
            made.append(make())
        except SettingsError as error:
            problems += error.problems
    if problems:
        raise SettingsError(problems)
    return made


def event_settings(o: Options) -> EventSettings:
    """How records become events."""
    return EventSettings(
        fields=pairs(o["field"], "field"),
        event_types=tuple(o["event_types"]),
        min_rating=o["min_rating"],
        max_id_length=o["max_id_length"],
        max_features=o["max_features"],
        max_record_bytes=o["max_record_bytes"],
    )


def learner_settings(o: Options) -> Any:
    """What is learned, and how (a `LearnerSettings`; imports torch)."""
    from streamer.learner import LearnerSettings
    from streamer.model.losses import SamplerSettings
    from streamer.model.towers import TowerSettings
    from streamer.model.trainer import TrainerSettings
    from streamer.model.two_tower import ModelSettings

    item = TowerSettings(
        dim=o["dim"],
        categorical=tuple(o["item_features"]),
        numeric=tuple(o["item_numbers"]),
        layers=layers(o["item_layers"], "item-layers"),
    )
    user_layers = layers(o["user_layers"], "user-layers")
    user = TowerSettings(
        dim=o["dim"] if user_layers else item.out_dim,
        ids=o["user_ids"],
        categorical=tuple(o["user_features"]),
        numeric=tuple(o["user_numbers"]),
        layers=user_layers,
    )
    model = ModelSettings(
        user=user,
        item=item,
        recent_items=o["recent_items"],
        prior=o["prior"],
        repeat_ranks=o["repeat_ranks"],
        companions=o["companions"] if o["recent_items"] or o["repeat_ranks"] else 0,
        init_std=o["init_std"],
        seed=o["seed"],
    )
    sampler = SamplerSettings(
        draws=o["draws"],
        cache_weight=o["cache_weight"],
        cache_correction=o["cache_correction"],
        resampler=o["resampler"],
        mask_own=o["mask_own"],
    )
    trainer = TrainerSettings(
        method=o["method"],
        optimizer=o["optimizer"],
        rate=o["rate"],
        dense_rate=o["dense_rate"],
        sampler=sampler,
        seed=o["seed"],
    )
    return LearnerSettings(
        model=model,
        trainer=trainer,
        cache_size=o["cache_size"],
        cache_scope=o["cache_scope"],
        occurrence_half_life=o["occurrence_half_life"],
        popularity=o["popularity"],
        popularity_half_life=o["popularity_half_life"],
        prior_half_life=o["prior_half_life"] or None,
        hash_slots=o["hash_slots"],
        hash_alpha=o["hash_alpha"],
        hash_clock=o["hash_clock"],
        device=o["device"],
    )


def layers(text: str | None, name: str) -> tuple[int, ...]:
    """`32,16` as numbers.

    Raises:
        SettingsError: it is something else.
    """
    if not text:
        return ()
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = (0,)
    if min(found) < 1:
        raise SettingsError([f"--{name} is {text!r}: give the units of each layer, e.g. 32,16"])
    return found


def timestamp_ms(text: str | None) -> int | None:
    """A time from the command line: seconds or milliseconds since the epoch, or ISO 8601.

    Raises:
        SettingsError: it is something else.
    """
    if text is None:
        return None
    try:
        number = float(text)
        return int(number if number >= 1e11 else number * 1000)
    except ValueError:
        pass
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise SettingsError([f"--start-timestamp is {text!r}: give seconds since the epoch or ISO 8601"]) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return int(moment.timestamp() * 1000)


def kafka_settings(o: Options) -> Any:
    """How to reach Kafka (a `KafkaSettings`); None if no servers are given."""
    if not o["bootstrap_servers"]:
        return None
    from streamer.sources.kafka.settings import (
        KafkaSettings,
        client_settings,
        settings_from_environment,
        settings_from_file,
    )

    given = settings_from_environment({n: v for n, v in os.environ.items() if n != "STREAMER_KAFKA_CONFIG"})
    if o["kafka_config"]:
        given = settings_from_file(o["kafka_config"]) | given
    return KafkaSettings(
        o["bootstrap_servers"],
        tuple(o["topics"]),
        group_id=o["group_id"],
        auto_offset_reset=o["start"],
        start_timestamp_ms=timestamp_ms(o["start_timestamp"]),
        client=client_settings(given | pairs(o["kafka"], "kafka")),
    )


def source_factory(o: Options) -> Callable[[], Source]:
    """Makes the source that the options ask for."""
    if o["source"]:
        from streamer.sources.files import FileSource

        return lambda: FileSource(o["source"])
    kafka = kafka_settings(o)
    if kafka is not None:
        from streamer.sources.kafka.source import KafkaSource

        return lambda: KafkaSource(kafka)
    if o["start"] == "error":
        raise SettingsError(["--start error is for Kafka only; the embedded log knows earliest and latest"])
    from streamer.sources.embedded.source import EmbeddedSource

    moment = timestamp_ms(o["start_timestamp"])
    waits = not o["until_end"]
    return lambda: EmbeddedSource(
        o["data_dir"], o["topics"], start=o["start"], start_timestamp_ms=moment, wait_for_topic=waits
    )


def dead_letters(o: Options) -> DeadLetters:
    """Where records go that are no events: a topic beside the first one, or a file."""
    kafka = kafka_settings(o) if not o["source"] else None
    name = o["dead_letters"] or f"{o['topics'][0]}.dead-letters"
    if kafka is not None:
        from streamer.dead_letters.kafka import KafkaDeadLetters

        return KafkaDeadLetters(kafka, name)
    path = Path(o["dead_letters"]) if o["dead_letters"] else Path(o["data_dir"]) / f"{name}.jsonl"
    return FileDeadLetters(path)


def store(o: Options) -> CacheStore | None:
    """What is shared with other trainers; None if nothing is.

    Raises:
        SettingsError: the URL or a name is wrong.
    """
    if not o["redis_url"]:
        return None
    from streamer.cache_store.redis import RedisServer
    from streamer.cache_store.shared import SharedStore
    from streamer.cache_store.view import SharedSettings

    try:
        server = RedisServer(o["redis_url"], store_keys(o))
    except StoreRefused as error:
        raise SettingsError([f"--redis-url: {error}"]) from error
    return SharedStore(server, SharedSettings(every_s=o["share_every"]), f"{socket.gethostname()}-{os.getpid()}")


def store_keys(o: Options) -> Keys:
    """The keys of a model in Redis.

    Raises:
        SettingsError: a name is wrong.
    """
    try:
        return Keys(o["model"], o["redis_namespace"])
    except ValueError as error:
        raise SettingsError([f"--model or --redis-namespace: {error}"]) from error


def described(o: Options) -> str:
    """Where events come from, for a person."""
    if o["source"]:
        return "standard input" if o["source"] == "-" else str(o["source"])
    topics = ", ".join(o["topics"])
    if o["bootstrap_servers"]:
        return f"{topics} at {o['bootstrap_servers']}"
    return f"{topics} in the embedded log {o['data_dir']}"
