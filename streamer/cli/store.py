"""`streamer store`: manage what trainers share in Redis."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from streamer.build import store_keys
from streamer.cache_store.errors import Damaged, StoreError, StoreRefused
from streamer.cli.options import GroupedCommand, option, settings_options
from streamer.cli.output import format_age, printable, table
from streamer.errors import SettingsError, SharingError
from streamer.settings import SharingSettings

if TYPE_CHECKING:
    from streamer.cache_store.redis.admin import Heartbeat, StoreAdmin

F = TypeVar("F", bound=Callable[..., Any])

_GROUP = "Store"
STORE = ("redis_url", "model_name", "redis_namespace")
"""Settings that say where a model is shared."""
json_option = option(
    _GROUP, "--json", "as_json", is_flag=True, help="Print one JSON object."
)


@click.group()
def store() -> None:
    """Manage what trainers share in Redis; `streamer inspect --redis-url` shows it."""


def change_options(function: F) -> F:
    """The options `--yes` and `--force`."""
    yes = option(_GROUP, "--yes", is_flag=True, help="Do not ask for confirmation.")
    force = option(
        _GROUP, "--force", is_flag=True, help="Proceed even if trainers are active."
    )
    return yes(force(function))


@store.command("list", cls=GroupedCommand)
@json_option
@settings_options(SharingSettings, only=STORE)
def list_models(settings: SharingSettings, as_json: bool) -> None:
    """Models in a Redis, with their items, log entries and active trainers."""
    with open_admin(settings) as admin:
        found = [_figures(name, settings) for name in admin.models()]
    if as_json:
        click.echo(json.dumps({"models": found}))
    elif found:
        rows = []
        for model in found:
            numbers = (model["items"], model["log_length"], model["trainers"])
            rows.append(
                [
                    printable(model["model"]),
                    *("-" if n is None else f"{n:,}" for n in numbers),
                ]
            )
        click.echo(
            "\n".join(table(rows, ("model", "items", "log", "active"), indent=""))
        )
        for model in found:
            if "problem" in model:
                click.echo(f"note: {model['problem']}")
    else:
        click.echo(
            f"no models in {admin.url} under the namespace {settings.redis_namespace}"
        )


def _figures(name: str, settings: SharingSettings) -> dict[str, Any]:
    """A model's figures; one that cannot be read has a problem instead, and does not
    hide the others.
    """
    summary = None
    problem = ""
    try:
        with open_admin(dataclasses.replace(settings, model_name=name)) as admin:
            try:
                summary = admin.summary()
                problem = _only_name_left(admin)
            except StoreRefused as error:
                problem = str(error)
    except SettingsError as error:
        problem = str(error)
    if summary is None:
        return {
            "model": name,
            "items": None,
            "log_length": None,
            "trainers": None,
            "problem": problem,
        }
    return {
        "model": name,
        "items": summary.items,
        "log_length": summary.log_length,
        "trainers": len(summary.active),
    }


@store.command(cls=GroupedCommand)
@change_options
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
        try:
            summary = admin.summary()
            what = (
                f"{summary.items:,} items"
                if summary is not None
                else "what is left of it"
            )
        except Damaged as error:
            click.echo(f"note: {error}", err=True)
            summary = None
            what = "damaged"
        if summary is None and not admin.exists():
            raise _no_model(admin)
        now_s, active = (
            (summary.now_s, summary.active)
            if summary is not None
            else admin.active_trainers()
        )
        _check_none_active(active, now_s, "it would put back what it has", force)
        confirm(f"remove {printable(admin.keys.model)} ({what}) from {admin.url}", yes)
        removed = admin.reset()
    done = {"model": admin.keys.model, "removed_keys": removed}
    click.echo(
        json.dumps(done)
        if as_json
        else f"removed {printable(admin.keys.model)}: {removed} keys"
    )


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


def require_model(admin: StoreAdmin) -> None:
    """Raise a `SharingError` that names the models that exist, unless this one does."""
    if admin.summary() is None:
        raise _no_model(admin)


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


def _check_none_active(
    active: Sequence[Heartbeat], now_s: float, otherwise: str, force: bool
) -> None:
    """Raise a `SharingError` that names the active trainers, if there are any."""
    described = []
    for heartbeat in active:
        partitions = (
            f" ({', '.join(heartbeat.partitions)})" if heartbeat.partitions else ""
        )
        seen = format_age(now_s - heartbeat.at_s)
        described.append(
            f"{printable(heartbeat.trainer)}{partitions}, last seen {seen} ago"
        )
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
