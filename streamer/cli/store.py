"""`streamer store`: manage what trainers share in Redis."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from streamer.build import store_keys
from streamer.cache_store.errors import StoreError, StoreRefused
from streamer.cli.inspect import (
    cache_report,
    occurrence_report,
    top_items,
    top_option,
)
from streamer.cli.options import GroupedCommand, json_option, option, settings_options
from streamer.cli.output import format_age, printable, render, say, table
from streamer.errors import SettingsError, SharingError
from streamer.settings import SharingSettings

if TYPE_CHECKING:
    from streamer.cache_store.redis.admin import Contents, ModelSummary, StoreAdmin

STORE = ("redis_url", "model_name", "redis_namespace")
"""Settings that say where a model is shared."""


@click.group()
def store() -> None:
    """Look at what trainers share in Redis, or remove it."""


@store.command("list", cls=GroupedCommand)
@json_option
@settings_options(SharingSettings, only=STORE)
def list_models(settings: SharingSettings, as_json: bool) -> None:
    """Models in a Redis, with their items, entries and active trainers."""
    with open_admin(settings) as admin:
        found = [_figures(name, settings) for name in admin.models()]
    text = f"no models in {admin.url} under the namespace {settings.redis_namespace}"
    if found:
        text = "\n".join(_listed(found))
    say({"models": found}, text, as_json)


def _listed(found: list[dict[str, Any]]) -> Iterator[str]:
    rows = []
    for model in found:
        numbers = [model[name] for name in ("items", "entries", "trainers")]
        texts = ["-" if n is None else f"{n:,}" for n in numbers]
        rows.append([printable(model["model"]), *texts])
    yield from table(rows, ("model", "items", "entries", "active"), indent="")
    for model in found:
        if "problem" in model:
            yield f"note: {model['problem']}"


def _figures(name: str, settings: SharingSettings) -> dict[str, Any]:
    """A model's figures; one that cannot be read has a problem instead, and does not
    hide the others.
    """
    found: dict[str, Any] = {"model": name}
    found |= dict.fromkeys(("items", "entries", "trainers"))
    try:
        with open_admin(dataclasses.replace(settings, model_name=name)) as admin:
            summary = admin.summary()
    except (SettingsError, SharingError) as error:
        return found | {"problem": str(error)}
    if summary is None:
        return found | {"problem": _only_name_left(admin)}
    found["items"] = summary.names
    found["entries"] = len(summary.entries)
    found["trainers"] = len(summary.active)
    return found


@store.command(cls=GroupedCommand)
@top_option
@json_option
@settings_options(SharingSettings, only=STORE)
def inspect(settings: SharingSettings, top: int, as_json: bool) -> None:
    """Show what trainers share of a model: trainers, entries, counts, occurrence,
    cache, memory.
    """
    with open_admin(settings) as admin:
        summary = admin.summary()
        if summary is None:
            raise _no_model(admin)
        contents = admin.contents(summary.entries)
        memory = admin.memory()
    report = _report(summary, contents, top)
    report |= {"url": admin.url, "model": admin.keys.model}
    report["namespace"] = admin.keys.namespace
    report["memory_bytes"] = {"total": sum(memory.values()), **memory}
    say(report, render(report), as_json)


def _report(summary: ModelSummary, contents: Contents, top: int) -> dict[str, Any]:
    import numpy as np

    from streamer.model.popularity import ExactPopularity

    rows = np.arange(len(contents.ids))
    popularity = ExactPopularity()
    popularity.add(rows, contents.counts.astype(np.float64))
    cache = np.repeat(rows, contents.slots)
    owners: dict[str, str] = {}
    for trainer, _, owned in summary.trainers:
        owners |= dict.fromkeys(owned, trainer)
    entries = []
    for name, version in sorted(summary.entries.items()):
        owner = owners.get(name)
        entries.append({"entry": name, "version": list(version), "owner": owner})
    return {
        "items": int((contents.counts > 0).sum()),
        "events": int(contents.counts.sum()),
        "trainers": [
            {"trainer": trainer, "ago_s": age_s, "entries": list(owned)}
            for trainer, age_s, owned in summary.trainers
        ],
        "entries": entries,
        "popularity": {"top": top_items(contents.ids, contents.counts, top, "events")},
        "occurrence": occurrence_report(contents.ids, contents.drawn, top),
        "cache": cache_report(contents.ids, cache, popularity, top),
    }


@store.command(cls=GroupedCommand)
@option("Store", "--yes", is_flag=True, help="Do not ask for confirmation.")
@option("Store", "--force", is_flag=True, help="Proceed even if trainers are active.")
@json_option
@settings_options(SharingSettings, only=STORE)
def reset(settings: SharingSettings, yes: bool, force: bool, as_json: bool) -> None:
    """Remove everything that is shared of a model. Trainers that start later begin from
    nothing, or their checkpoints.

    Stop all trainers first: an active one puts back what it has. What is trained is in
    their checkpoints, which this does not touch. A damaged model is removed with
    whatever its keys hold.
    """
    with open_admin(settings) as admin:
        summary = None
        what = "what is left of it"
        try:
            summary = admin.summary()
        except StoreRefused as error:
            click.echo(f"note: {error}", err=True)
        if summary is not None:
            what = f"{summary.names:,} items"
            _check_none_active(summary, "it would put back what it has", force)
        elif not admin.all_keys() and admin.keys.model not in admin.models():
            raise _no_model(admin)
        confirm(f"remove {printable(admin.keys.model)} ({what}) from {admin.url}", yes)
        removed = admin.reset()
    done = {"model": admin.keys.model, "removed_keys": removed}
    say(done, f"removed {printable(admin.keys.model)}: {removed} keys", as_json)


# shared by commands ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def open_admin(settings: SharingSettings) -> Iterator[StoreAdmin]:
    """Access to the model that the settings name.

    Raises:
        SettingsError: the URL is missing, or a name is wrong.
        SharingError: Redis cannot be used.
    """
    if not settings.redis_url:
        raise SettingsError(
            [
                "--redis-url is missing: give the URL of the Redis, e.g. redis://localhost:6379/0"
            ]
        )
    from streamer.cache_store.redis.admin import StoreAdmin

    keys = store_keys(settings)
    try:
        with contextlib.closing(StoreAdmin(settings.redis_url, keys)) as admin:
            yield admin
    except StoreError as error:
        raise SharingError(str(error)) from error


def _no_model(admin: StoreAdmin) -> SharingError:
    models = admin.models()
    if admin.keys.model in models:
        return SharingError(_only_name_left(admin))
    return SharingError(
        f"there is no model {admin.keys.model!r} in {admin.url} under the namespace {admin.keys.namespace!r}; "
        f"there are: {', '.join(map(printable, models)) or 'none at all'}. "
        "Choose one by --model, or another --redis-namespace"
    )


def _only_name_left(admin: StoreAdmin) -> str:
    return (
        f"the model {admin.keys.model!r} in {admin.url} is gone: its name is in {admin.keys.models}, "
        f"but none of its keys exists. `streamer store reset` removes the name"
    )


def _check_none_active(summary: ModelSummary, otherwise: str, force: bool) -> None:
    """Raise a `SharingError` that names the active trainers, if there are any."""
    described = []
    for trainer, age_s, partitions in summary.active:
        owned = f" ({', '.join(partitions)})" if partitions else ""
        seen = format_age(age_s)
        described.append(f"{printable(trainer)}{owned}, last seen {seen} ago")
    if described and not force:
        trainers = "; ".join(described)
        raise SharingError(
            f"trainers are active: {trainers}. Stop them first, or give --force: {otherwise}"
        )


def confirm(what: str, yes: bool) -> None:
    """Ask before something that cannot be undone; raise a `SharingError` if there is
    nobody to ask.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise SharingError(
            f"about to {what}, and there is no terminal to ask at: give --yes"
        )
    click.confirm(f"{what}?", abort=True)
