"""From settings to parts: the only place that knows which source, sink and store belong
to which settings.

Heavy modules are imported where they are needed: a run on a file loads neither Kafka
nor Redis.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from streamer.dead_letters.base import DeadLetters, FileDeadLetters, is_file
from streamer.dead_letters.share import DeadLetterShare
from streamer.errors import SettingsError
from streamer.settings import (
    PipelineSettings,
    RunSettings,
    SharingSettings,
    StreamSettings,
)
from streamer.sources.base import Partition, Source, check_topics

if TYPE_CHECKING:
    from streamer.cache_store.redis.schema import Keys
    from streamer.cache_store.redis.server import RedisServer
    from streamer.cache_store.store import CacheStore
    from streamer.evaluation import Prequential
    from streamer.event import EventDecoder
    from streamer.learner import OnlineLearner
    from streamer.lockstep.group import Group
    from streamer.lockstep.pipeline import RankSources
    from streamer.pipeline import Pipeline
    from streamer.snapshot import CheckpointStore
    from streamer.snapshot.places import Place
    from streamer.snapshot.publisher import Publisher
    from streamer.sources.embedded.groups import ConsumerGroup
    from streamer.sources.embedded.source import StartPolicy
    from streamer.sources.kafka.settings import KafkaSettings


def build_pipeline(settings: RunSettings) -> Pipeline:
    """The pipeline that the settings describe; nothing is read or joined before it
    runs.

    Raises:
        SettingsError: with the problems of all parts.
        OtherSource: the checkpoint was learned from another one.
    """
    if problems := settings.problems():
        raise SettingsError(problems)
    if settings.threads or settings.trainers:
        import torch

        # in a group one thread each, so that sums do not depend on the machine
        torch.set_num_threads(settings.threads or 1)
    # raises what is wrong with them, before the directory is made
    kafka_settings(settings)
    is_alone = settings.trainers is None
    pipeline = _lone_pipeline(settings) if is_alone else _rank_pipeline(settings)
    check_topics(pipeline.ingest.trained(), settings.log_names, settings.checkpoints)
    return pipeline


def _lone_pipeline(settings: RunSettings) -> Pipeline:
    """The pipeline of a trainer alone."""
    from streamer.learner import OnlineLearner
    from streamer.snapshot import CheckpointStore

    learner = OnlineLearner(settings)
    checkpoints = CheckpointStore(settings.checkpoints, settings.keep_checkpoints)
    store = None
    if settings.redis_url:
        from streamer.cache_store.store import CacheStore

        store = CacheStore(
            redis_server(settings), checkpoints.trainer, settings.share_every_s
        )
    return assemble(
        learner,
        source_factory(settings, checkpoints.trainer),
        event_decoder(settings),
        dead_letters(settings),
        settings,
        dead_letter_share=dead_letter_share(settings),
        checkpoints=checkpoints,
        prequential=_prequential(settings, learner),
        store=store,
        publisher=publisher(settings, learner),
    )


def assemble(
    learner: OnlineLearner,
    make_source: Callable[[], Source],
    decoder: EventDecoder,
    dead_letters: DeadLetters,
    settings: PipelineSettings,
    *,
    dead_letter_share: DeadLetterShare | None = None,
    checkpoints: CheckpointStore | None = None,
    prequential: Prequential | None = None,
    store: CacheStore | None = None,
    publisher: Publisher | None = None,
) -> Pipeline:
    """A pipeline of a trainer alone, resumed from its newest checkpoint.

    Args:
        learner: what is learned.
        make_source: where events come from.
        decoder: from records to events.
        dead_letters: where bad records go; closed at the end, as all parts are.
        settings: how the line runs.
        dead_letter_share: how many bad records there may be; None for any number.
        checkpoints: where its state is kept; None keeps nothing.
        prequential: ranks events before they are trained; None for none.
        store: what is shared with other trainers; None shares nothing.
        publisher: brings servers what is learned; None for no servers.
    """
    from streamer.ingest.batcher import Batcher
    from streamer.ingest.ingest import Ingest
    from streamer.ingest.reader import Reader, StopCondition
    from streamer.pipeline import Pipeline
    from streamer.progress import Progress
    from streamer.sharing.sharing import Sharing, StoreSharing
    from streamer.snapshot.checkpointer import Checkpointer

    sharing = StoreSharing(learner, store) if store is not None else Sharing()
    batcher = Batcher(settings.batch_size, settings.max_age_s or None)
    ingest = Ingest(batcher, owner=sharing, dead_letter_share=dead_letter_share)
    checkpointer = None
    if checkpoints is not None:
        checkpointer = Checkpointer(
            checkpoints,
            settings.checkpoint_every_s or None,
            settings.checkpoint_every_events,
            settings.from_checkpoint,
        )
    progress = Progress(
        ingest, learner, sharing, dead_letters, checkpointer, settings.save_at_start
    )
    stop_condition = StopCondition(settings.until_end, settings.max_events)
    reader = Reader(
        make_source, decoder, ingest, stop_condition, settings.max_queued_events
    )
    return Pipeline(reader, learner, sharing, progress, prequential, publisher)


def _rank_pipeline(settings: RunSettings) -> Pipeline:
    """The pipeline of one rank of a group, as the environment says which; waits for the
    others to come.
    """
    from streamer.cache_store.server import MemoryServer
    from streamer.cache_store.store import CacheStore
    from streamer.ingest.reader import Reader, StopCondition
    from streamer.lockstep.checkpoint import RankCheckpointer, rank_store
    from streamer.lockstep.group import connect
    from streamer.lockstep.ingest import LockstepIngest
    from streamer.lockstep.learner import LockstepLearner
    from streamer.lockstep.pipeline import LockstepPipeline, LockstepProgress
    from streamer.lockstep.sharing import GroupSharing
    from streamer.sharing.sharing import Sharing

    group = connect(settings.parts, settings.group_timeout_s)
    learner = LockstepLearner(settings, group)
    sources = rank_sources(settings)
    ingest = LockstepIngest(group, settings, sources.partitions)
    sharing = Sharing()
    checkpoints = rank_store(settings.checkpoints, settings.keep_checkpoints, group)
    if settings.redis_url:
        server = MemoryServer() if group.rank else redis_server(settings)
        store = CacheStore(server, checkpoints.trainer, settings.share_every_s)
        sharing = GroupSharing(learner, store, group)
        ingest.owner = sharing
    checkpointer = RankCheckpointer(
        group,
        ingest.seals,
        checkpoints,
        settings.checkpoints,
        settings.checkpoint_every_s or None,
        settings.checkpoint_every_events,
    )
    ingest.dead_letter_share = dead_letter_share(settings)
    ingest.users = learner.state.users
    ingest.checkpoints = checkpointer
    ingest.publisher = publisher(settings, learner, group)
    progress = LockstepProgress(
        ingest,
        learner,
        sharing,
        dead_letters(settings, group.rank),
        checkpointer,
        settings.save_at_start,
    )
    reader = Reader(
        partial(
            sources.make_source,
            lambda: ingest.own_partitions,
            ingest.queues.wants,
            progress.may_commit,
        ),
        event_decoder(settings),
        ingest,
        StopCondition(settings.until_end),  # max_events are of all ranks
        settings.max_queued_events,
    )
    return LockstepPipeline(
        reader,
        learner,
        sharing,
        progress,
        _prequential(settings, learner) if group.rank == 0 else None,
        ingest.publisher,
    )


def _prequential(settings: RunSettings, learner: OnlineLearner) -> Prequential | None:
    if not settings.evaluation_share:
        return None
    from streamer.evaluation import EventSampler, Prequential

    return Prequential(learner, EventSampler(settings.evaluation_share))


def publisher(
    settings: RunSettings, learner: OnlineLearner, group: Group | None = None
) -> Publisher | None:
    """What brings servers the changes of a learner, from rank 0 of its group; None if
    nothing is published.

    Raises:
        SettingsError: a topic is given, and no Kafka.
    """
    from streamer.snapshot.publisher import Publisher

    place = publishing_place(settings)
    if place is None:
        return None
    every_s = settings.publish_every_s
    if group is not None:
        from streamer.lockstep.publishing import GroupPublisher

        return GroupPublisher(group, learner.state, place, every_s)
    return Publisher(learner.state, place, every_s)


def publishing_place(settings: RunSettings) -> Place | None:
    """Where changes are published; None if nowhere.

    Raises:
        SettingsError: a topic is given, and no Kafka.
    """
    if settings.publish_dir is not None:
        from streamer.snapshot.places import DirectoryPlace

        return DirectoryPlace(settings.publish_dir)
    if settings.publish_topic is None:
        return None
    from streamer.snapshot.topic import TopicPlace

    kafka = kafka_settings(settings)
    if kafka is None:
        raise SettingsError(
            ["publish-topic needs bootstrap-servers; without Kafka, give a publish-dir"]
        )
    return TopicPlace(kafka, settings.publish_topic)


def rank_sources(settings: RunSettings) -> RankSources:
    """How the ranks of a group read their partitions."""
    from streamer.lockstep.pipeline import RankSources

    if (kafka := kafka_settings(settings)) is not None:
        from streamer.lockstep import kafka_source as assigned

        make_source = partial(assigned.AssignedKafkaSource, kafka)
        return RankSources(make_source, assigned.all_partitions(kafka))
    from streamer.lockstep.sources import AssignedSource
    from streamer.sources.embedded.source import EmbeddedSource, all_partitions

    start = start_policy(settings)
    consumers = consumer_group(settings)

    def open_one(partition: Partition) -> Source:
        return EmbeddedSource(
            settings.data_dir,
            partition.topic,
            [partition.number],
            start,
            group=consumers,
        )

    listed = partial(
        all_partitions,
        settings.data_dir,
        settings.all_topics,
        wait=not settings.until_end,
    )
    return RankSources(partial(AssignedSource, open_one), listed)


def source_factory(
    settings: RunSettings, trainer: str | None = None
) -> Callable[[], Source]:
    """Makes the source that the settings describe, for the trainer of this id."""
    if settings.source:
        from streamer.sources.files import FileSource

        path = settings.source
        return lambda: FileSource(path)
    if (kafka := kafka_settings(settings)) is not None:
        from streamer.sources.kafka.source import KafkaSource

        ours = replace(kafka, trainer=trainer)
        return lambda: KafkaSource(ours)
    from streamer.sources.embedded.source import EmbeddedSource

    return lambda: EmbeddedSource(
        settings.data_dir,
        settings.all_topics,
        start=start_policy(settings),
        wait_for_topic=not settings.until_end,
        group=consumer_group(settings),
    )


def start_policy(settings: RunSettings) -> StartPolicy:
    """Where partitions of the embedded log begin that have no position."""
    from streamer.sources.embedded.source import StartPolicy

    return StartPolicy(
        "latest" if settings.start == "latest" else "earliest",
        settings.start_timestamp_ms,
        settings.from_beginning,
    )


def consumer_group(settings: RunSettings) -> ConsumerGroup:
    """In whose name positions in the embedded log are committed, and what is kept."""
    from streamer.sources.embedded.groups import ConsumerGroup

    keep_mb = settings.embedded_retention_mb
    return ConsumerGroup(settings.group_id, keep_mb * 1_000_000 if keep_mb else None)


def kafka_settings(settings: StreamSettings) -> KafkaSettings | None:
    """How to reach Kafka; None if no servers are given.

    Raises:
        SettingsError: with every setting of the client that is wrong.
    """
    if not settings.bootstrap_servers:
        return None
    from streamer.sources.kafka.settings import (
        KafkaSettings,
        settings_from_environment,
        settings_from_file,
    )

    client = settings_from_environment(
        {n: v for n, v in os.environ.items() if n != "STREAMER_KAFKA_CONFIG"}
    )
    if settings.kafka_config:
        client = settings_from_file(settings.kafka_config) | client
    return KafkaSettings(
        settings.bootstrap_servers,
        settings.all_topics,
        group_id=settings.group_id,
        auto_offset_reset=settings.start,
        start_timestamp_ms=settings.start_timestamp_ms,
        from_beginning=settings.from_beginning,
        client=client | dict(settings.kafka),
    )


def dead_letters(settings: RunSettings, rank: int = 0) -> DeadLetters:
    """Where records go that are not valid events: a topic beside the first one, or a
    file of each rank.
    """
    kafka = kafka_settings(settings) if not settings.source else None
    name = dead_letters_name(settings)
    if kafka is not None and not is_file(name):
        from streamer.dead_letters.kafka import KafkaDeadLetters

        return KafkaDeadLetters(
            kafka, name, refused=settings.checkpoints / f"{name}.jsonl"
        )
    path = Path(settings.dead_letters or settings.data_dir / f"{name}.jsonl")
    return FileDeadLetters(path.with_suffix(f".{rank}{path.suffix}") if rank else path)


def event_decoder(settings: RunSettings) -> EventDecoder:
    """From records to events, with the features that the model uses."""
    from streamer.event import EventDecoder
    from streamer.event.lift import FeatureNames

    features = FeatureNames(
        settings.filterable,
        (*settings.user_features, *settings.user_numeric_features),
    )
    topic = settings.catalogue_topic
    return EventDecoder(settings, topic, features, settings.typed)


def dead_letter_share(settings: RunSettings) -> DeadLetterShare:
    """Watches how much of what is read is not a valid event."""
    from streamer.event.explain import explain

    max_share = settings.max_dead_letter_share
    if settings.accept_dead_letters:
        max_share = 1.0
    return DeadLetterShare(max_share, partial(explain, settings, settings.source))


def dead_letters_name(settings: RunSettings) -> str:
    """The topic or file of dead letters."""
    return settings.dead_letters or f"{settings.topics[0]}.dead-letters"


def redis_server(settings: SharingSettings) -> RedisServer:
    """Where trainers meet.

    Raises:
        SettingsError: the URL or a name is wrong.
    """
    from streamer.cache_store.errors import StoreRefused
    from streamer.cache_store.redis.server import RedisServer

    try:
        return RedisServer(settings.redis_url or "", store_keys(settings))
    except StoreRefused as error:
        raise SettingsError([f"redis-url: {error}"]) from error


def store_keys(settings: SharingSettings) -> Keys:
    """The keys of a model in Redis.

    Raises:
        SettingsError: a name is wrong.
    """
    from streamer.cache_store.redis.schema import Keys

    try:
        return Keys(settings.model_name, settings.redis_namespace)
    except ValueError as error:
        raise SettingsError([f"model or redis-namespace: {error}"]) from error
