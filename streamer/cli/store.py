"""`streamer store`: look after what trainers share in Redis."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from streamer.build import store_keys
from streamer.cache_store.errors import Damaged, StoreError, StoreRefused
from streamer.cli.options import GroupedCommand, option, settings_options
from streamer.cli.output import format_age, format_bytes, printable, table
from streamer.errors import SettingsError, SharingError
from streamer.settings import SharingSettings

if TYPE_CHECKING:
    from streamer.cache_store.admin import Look, Seen, StoreAdmin

F = TypeVar("F", bound=Callable[..., Any])

_DO = "Store"
STORE = ("redis_url", "model_name", "redis_namespace")
"""Settings that say where a model is shared."""
FIGURES = ("items", "log_length", "trainers")
"""What is listed of a model."""


@click.group()
def store() -> None:
    """Look after what trainers share in Redis: list, reset, export, import. `streamer inspect` shows what is in it."""


def json_option(function: F) -> F:
    """Print for a program."""
    return option(_DO, "--json", "as_json", is_flag=True, help="Print one JSON object.")(function)


def change_options(function: F) -> F:
    """How careful to be."""
    yes = option(_DO, "--yes", is_flag=True, help="Do not ask.")
    force = option(_DO, "--force", is_flag=True, help="Even if trainers are at work.")
    return yes(force(function))


@store.command("list", cls=GroupedCommand)
@json_option
@settings_options(SharingSettings, only=STORE)
def list_models(settings: SharingSettings, as_json: bool) -> None:
    """Models in a Redis, with their items, entries of the log and trainers at work."""
    with administered(settings) as admin:
        found = [_listed(name, settings) for name in admin.models()]
    if as_json:
        click.echo(json.dumps({"models": found}))
    elif found:
        click.echo("\n".join(table([_row(model) for model in found], ("model", "items", "log", "at work"), indent="")))
        for problem in (listed["problem"] for listed in found if "problem" in listed):
            click.echo(f"note: {problem}")
    else:
        click.echo(f"no models in {admin.url} under the namespace {settings.redis_namespace}")


def _listed(name: str, settings: SharingSettings) -> dict[str, Any]:
    """A model's figures; one that cannot be read has a problem instead, and does not hide the others."""
    try:
        with administered(dataclasses.replace(settings, model_name=name)) as admin:
            look = _look_or_problem(admin)
    except SettingsError as error:
        look = str(error)
    if isinstance(look, str):
        return {"model": name, **dict.fromkeys(FIGURES), "problem": look}
    return {"model": name, **dict(zip(FIGURES, (look.items, look.log_length, len(look.active)), strict=True))}


def _look_or_problem(admin: StoreAdmin) -> Look | str:
    try:
        return admin.look() or _gone(admin)
    except StoreRefused as error:
        return str(error)


def _row(listed: dict[str, Any]) -> tuple[str, ...]:
    figures = ("-" if listed[name] is None else f"{listed[name]:,}" for name in FIGURES)
    return (printable(listed["model"]), *figures)


@store.command(cls=GroupedCommand)
@change_options
@json_option
@settings_options(SharingSettings, only=STORE)
def reset(settings: SharingSettings, yes: bool, force: bool, as_json: bool) -> None:
    """Remove everything that is shared of a model. Trainers that start then begin anew, or with their checkpoints.

    Stop all trainers first: one that is at work puts back what it has. What is trained is in their checkpoints, which
    this does not touch. A model that is damaged is removed with whatever is under its keys.
    """
    with administered(settings) as admin:
        what = _removable(admin, "it would put back what it has", force)
        confirm(f"remove {printable(admin.keys.model)} ({what}) from {admin.url}", yes)
        removed = admin.reset()
    summary = {"model": admin.keys.model, "removed_keys": removed}
    click.echo(json.dumps(summary) if as_json else f"removed {printable(admin.keys.model)}: {removed} keys")


def _removable(admin: StoreAdmin, otherwise: str, force: bool) -> str:
    """What is to be removed, for a person.

    Raises:
        SharingError: there is nothing, or a trainer is at work.
    """
    try:
        look = admin.look()
        what = f"{look.items:,} items" if look is not None else "what is left of it"
    except Damaged as error:
        click.echo(f"note: {error}", err=True)
        look, what = None, "damaged"
    if look is None and not admin.is_anything_there():
        raise _missing(admin)
    now_s, active = (look.now_s, look.active) if look is not None else admin.at_work()
    _need_quiet(active, now_s, otherwise, force)
    return what


@store.command(cls=GroupedCommand)
@option(
    _DO,
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    metavar="FILE",
    envvar=None,
    help="File to write (.npz); one that exists is replaced once all is written.",
)
@json_option
@settings_options(SharingSettings, only=STORE)
def export(settings: SharingSettings, out: Path, as_json: bool) -> None:
    """Write everything that is shared of a model into one file, as it is at one moment; trainers may go on.

    \b
    Arrays of the .npz, readable without pickle:
      ids.utf8, ids.offsets  item ids one after the other; int64 [N + 1], where each begins, and the end
      counts, drawn          int64 [N], events of each item, and how often it was resampled
      partitions.*           names of the partitions, packed like the ids
      next, epochs           int64 [P], offset up to which each is counted; the epoch of its last claim; -1 for none
      cache                  int64 [C], rows of the cached items
      about                  uint8, a JSON object: model, generation, number, events, saved_at
    """
    from streamer.cli.export import replaced
    from streamer.sharing import store_file

    if out.suffix != ".npz":
        raise click.BadParameter(f"{out.name}: choose a name that ends in .npz", param_hint="--out")
    with administered(settings) as admin:
        there(admin)
        _, contents = admin.contents()
    about = {"model": admin.keys.model, "namespace": admin.keys.namespace, "saved_at": time.time()}
    if contents.note:
        click.echo(f"note: {contents.note}", err=True)
    with replaced(out) as temporary:
        store_file.write(temporary, contents, about)
    summary = {"out": str(out), "items": len(contents.ids), "events": contents.events, "bytes": out.stat().st_size}
    click.echo(json.dumps(summary) if as_json else f"wrote {_amounts(summary)} to {out}")


@store.command("import", cls=GroupedCommand)
@option(
    _DO,
    "--path",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    metavar="FILE",
    envvar=None,
    help="What `streamer store export` has written.",
)
@option(_DO, "--replace", is_flag=True, help="Replace a model that is there.")
@change_options
@json_option
@settings_options(SharingSettings, only=STORE)
def import_(settings: SharingSettings, path: Path, replace: bool, yes: bool, force: bool, as_json: bool) -> None:
    """Begin a model with what is in a file. Trainers that start then take it over."""
    from streamer.sharing import store_file

    contents, _ = store_file.read(path)
    with administered(settings) as admin:
        look = admin.look()
        if look is not None:
            _replaceable(admin, look, replace, force)
            confirm(f"replace {printable(admin.keys.model)} ({look.items:,} items) in {admin.url} by {path}", yes)
        generation = admin.put(contents, look.generation if look is not None else "")
    summary = {"model": admin.keys.model, "generation": generation, "items": len(contents.ids)}
    summary |= {"events": contents.events, "bytes": path.stat().st_size}
    click.echo(json.dumps(summary) if as_json else f"{printable(admin.keys.model)} begins with {_amounts(summary)}")


def _amounts(summary: dict[str, Any]) -> str:
    return f"{summary['items']:,} items and {summary['events']:,} events ({format_bytes(summary['bytes'])})"


def _replaceable(admin: StoreAdmin, look: Look, replace: bool, force: bool) -> None:
    """See that a model may be replaced.

    Raises:
        SharingError: it may not.
    """
    if not replace:
        raise SharingError(
            f"there is a model {admin.keys.model!r} in {admin.url} already, with {look.items:,} items: "
            "choose another --model, or --replace it"
        )
    _need_quiet(look.active, look.now_s, "what it has counted since would be lost, or counted twice", force)


# shared by commands ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def administered(settings: SharingSettings) -> Iterator[StoreAdmin]:
    """The model that the options name, from outside.

    Raises:
        SettingsError: the URL is missing, or a name is wrong.
        SharingError: Redis cannot be used.
    """
    if not settings.redis_url:
        raise SettingsError(["--redis-url is missing: say which Redis, e.g. redis://localhost:6379/0"])
    from streamer.cache_store.admin import StoreAdmin

    keys = store_keys(settings)
    try:
        with contextlib.closing(StoreAdmin(settings.redis_url, keys)) as admin:
            yield admin
    except StoreError as error:
        raise SharingError(str(error)) from error


def there(admin: StoreAdmin) -> Look:
    """What is in a model.

    Raises:
        SharingError: there is no such model; with those that there are.
    """
    look = admin.look()
    if look is None:
        raise _missing(admin)
    return look


def _missing(admin: StoreAdmin) -> SharingError:
    models = admin.models()
    if admin.keys.model in models:
        return SharingError(_gone(admin))
    return SharingError(
        f"there is no model {admin.keys.model!r} in {admin.url} under the namespace {admin.keys.namespace!r}; "
        f"there are: {', '.join(map(printable, models)) or 'none at all'}. "
        "Choose one by --model, or another --redis-namespace"
    )


def _gone(admin: StoreAdmin) -> str:
    return (
        f"the model {admin.keys.model!r} in {admin.url} is gone: its name is in {admin.keys.models}, "
        f"but nothing is under its keys. `streamer store reset` removes the name"
    )


def _need_quiet(active: Sequence[Seen], now_s: float, otherwise: str, force: bool) -> None:
    """See that no trainer is at work.

    Raises:
        SharingError: one is.
    """
    if active and not force:
        raise SharingError(
            f"at work: {'; '.join(_described(seen, now_s) for seen in active)}. "
            f"Stop it first: {otherwise}. Or give --force"
        )


def _described(seen: Seen, now_s: float) -> str:
    partitions = f" ({', '.join(seen.partitions)})" if seen.partitions else ""
    return f"{printable(seen.trainer)}{partitions}, seen {format_age(now_s - seen.at_s)} ago"


def confirm(what: str, yes: bool) -> None:
    """Ask before something that cannot be undone.

    Raises:
        SharingError: there is nobody to ask.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise SharingError(f"about to {what}, and there is no terminal to ask at: give --yes")
    click.confirm(f"{what}?", abort=True)
