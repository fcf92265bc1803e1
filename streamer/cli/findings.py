"""What `streamer doctor` finds, and how a person sees it."""

from __future__ import annotations

from typing import Literal, NamedTuple

import click

COLOURS = {"ok": "green", "warning": "yellow", "failure": "red"}
INDENT = 23
"""Columns before what was found."""


class Finding(NamedTuple):
    """What a check found, and what to do about it."""

    name: str
    status: Literal["ok", "warning", "failure"]
    found: str
    advice: str | None = None


def describe(finding: Finding) -> str:
    """A finding for a person."""
    status = click.style(f"{finding.status:<8}", fg=COLOURS[finding.status])
    advice = f"\n{'':{INDENT}}-> {finding.advice}" if finding.advice else ""
    return f"{status} {finding.name:<12}  {finding.found}{advice}"


def count(number: int, what: str) -> str:
    """A number of things: `1 topic`, `2 topics`."""
    return f"{number} {what}{'' if number == 1 else 's'}"
