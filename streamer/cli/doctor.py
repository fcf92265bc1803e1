"""`streamer doctor`: examines everything that a run needs, and advises.

It changes nothing: no directory, topic or key is created, and no consumer group is
joined.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator

import click

from streamer.cache_store.errors import StoreError
from streamer.cli import doctor_machine as machine
from streamer.cli import doctor_servers as servers
from streamer.cli.doctor_machine import Finding, count
from streamer.cli.options import GroupedCommand, option, settings_options
from streamer.errors import StreamerError
from streamer.settings import RunSettings

COLOURS = {"ok": "green", "warning": "yellow", "failure": "red"}
INDENT = 23
"""Columns before what was found."""

Check = Callable[[RunSettings], Iterable[Finding]]


@click.command(cls=GroupedCommand)
@settings_options(RunSettings)
@option("Report", "--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(settings: RunSettings, as_json: bool) -> None:
    """Check what a run needs, and say what to do about each problem.

    Give the options that you give to `streamer run`. It looks at Python, torch and its
    device, directories, stream and Redis, and changes nothing. The exit code is 1 if
    anything failed.
    """
    findings = []
    for finding in diagnose(settings):
        findings.append(finding)
        if not as_json:
            click.echo(describe(finding))

    states = [finding.status for finding in findings]
    failures = states.count("failure")
    warnings = states.count("warning")
    if as_json:
        checks = [dataclasses.asdict(finding) for finding in findings]
        click.echo(json.dumps({"ok": not failures, "checks": checks}))
    elif failures or warnings:
        click.echo(f"{count(failures, 'failure')}, {count(warnings, 'warning')}")
    else:
        click.echo("no problems found")
    sys.exit(1 if failures else 0)


def describe(finding: Finding) -> str:
    """A finding for a person; long ones are broken into lines at a terminal."""
    width = sys.maxsize
    if sys.stdout.isatty():
        width = max(shutil.get_terminal_size().columns - INDENT, 40)
    texts = [finding.found]
    if finding.advice:
        texts.append(f"-> {finding.advice}")

    lines = []
    for text in texts:
        lines += textwrap.wrap(
            text, width, break_long_words=False, break_on_hyphens=False
        )
    status = click.style(f"{finding.status:<8}", fg=COLOURS[finding.status])
    return f"{status} {finding.name:<12}  " + f"\n{'':{INDENT}}".join(lines)


def diagnose(settings: RunSettings) -> Iterator[Finding]:
    """The findings of every check that the settings ask for.

    A check that breaks is a failure; the others go on.
    """
    for name, check in checks_for(settings).items():
        try:
            yield from check(settings)
        except (StreamerError, StoreError) as error:
            yield Finding(name, "failure", str(error))
        except Exception as error:
            yield Finding(name, "failure", f"{type(error).__name__}: {error}")


def checks_for(settings: RunSettings) -> dict[str, Check]:
    """The checks that the settings ask for, by name."""
    checks: dict[str, Check] = {
        "python": machine.check_python,
        "torch": machine.check_torch,
        "numba": machine.check_numba,
        "cores": machine.check_cores,
        "memory": machine.check_memory,
    }
    if settings.source:
        checks["source"] = machine.check_source
        checks["data"] = machine.check_data
    elif settings.bootstrap_servers:
        checks["kafka"] = servers.check_kafka
        checks["codecs"] = servers.check_codecs
        checks["dead letters"] = servers.check_dead_letters
    else:
        checks["topic"] = machine.check_embedded_log
        checks["data"] = machine.check_data
    if settings.trainers is not None:
        checks["keys"] = servers.check_keys
    checks["checkpoints"] = machine.check_checkpoints
    if settings.redis_url:
        checks["redis"] = servers.check_redis
    return checks
