"""The table of faults, as a page and as JSON."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from servers.kafka import KAFKA_VERSION

from faults.world import SESSION_S, Outcome

DOCS = Path(__file__).parents[2] / "docs"

HEAD = """\
# Faults

What becomes of every event when a part of the system fails. `make faults` makes each fault happen to real processes,
started by the command line: trainers, Apache Kafka {kafka} and a Redis, with a proxy where connections are disturbed.
It writes this page and `docs/faults.json`; `make faults FAULTS="kill_at_random broker_away"` writes those rows only.
Of {count} faults {good} are as promised, on two cores, busy with other work most of the time, with Python {python}.

Every event has an item of its own, so that each that is lost or trained twice is seen: in the item counts of the
trainers' last checkpoints (`streamer inspect`), or, where counts are shared, in the users that each trainer has learned
(`streamer export`). A row is as promised if that agrees with the trainers' own accounting, with what Kafka's topic of
dead letters holds, with the counts in Redis, and with these bounds:

- *lost*: nothing, unless the row says why.
- *twice*: nothing, but for a trainer of a group whose partitions another takes while it is gone: at most what it had
  not committed ([sharing.md](sharing.md#what-happens-when)), the number after "of". If it was killed, that is what
  it had saved; if it was stopped, also what it had trained since, which is still in its memory; nothing after the stop.
- *shared counts*: the sum in Redis, and how many of the items' counts differ from the stream.
- *goes on*: seconds from the end of the fault until events are trained again, the longest if it happens several times;
  from a kill on where another trainer takes over, which waits for the end of the session ({session:.0f} s here, 45 s by
  default). Progress is read from `/metrics`, which is refreshed twice a second.
- *model*: whether it equals that of an undisturbed run to the last bit, both towers and the ranker, where batches
  depend on the stream alone.

| fault | produced | trained | dead letters | lost | twice | shared counts, wrong | goes on | model | as promised |
|---|---|---|---|---|---|---|---|---|---|
"""


def row(outcome: Outcome) -> str:
    """A line of the table."""
    o = outcome
    twice = f"{o.trained_twice:,} of {o.may_double:,}" if o.may_double else f"{o.trained_twice:,}"
    shared = "" if o.shared_found is None else f"{o.shared_found:,} of {o.shared_expected:,}, {o.shared_wrong}"
    equal = {None: "", True: "equal", False: "**differs**"}[o.equal]
    verdict = f"**no**: {'; '.join(o.problems)}" if o.problems else "yes" if o.produced else ""
    seconds = "" if o.seconds is None else f"{o.seconds:.1f} s"
    figures = [
        f"{o.produced:,}",
        f"{o.trained:,}",
        f"{o.dead_lettered:,}",
        f"{o.lost:,}",
        twice,
        shared,
        seconds,
        equal,
    ]
    if not o.produced:  # it was not run, or did not get that far
        figures = [""] * len(figures)
    note = f" ({o.note})" if o.note else ""
    return "| " + " | ".join([o.fault + note, *figures, verdict.replace("|", "/")]) + " |\n"


def write(outcomes: dict[str, Outcome], names: Sequence[str], seed: int) -> None:
    """Write both files; rows of scenarios that were not run stay as they were, in the order of `names`."""
    found: dict[str, Any] = {}
    if (DOCS / "faults.json").exists():
        found = json.loads((DOCS / "faults.json").read_text())
    found |= {name: outcome.to_json() | {"seed": seed} for name, outcome in outcomes.items()}
    found = {name: found[name] for name in names if name in found}
    (DOCS / "faults.json").write_text(json.dumps(found, indent=1) + "\n")
    head = HEAD.format(
        kafka=KAFKA_VERSION,
        python=platform.python_version(),
        good=sum(1 for entry in found.values() if not entry["problems"]),
        count=len(found),
        session=SESSION_S,
    )
    rows = [row(Outcome(**{field.name: entry[field.name] for field in fields(Outcome)})) for entry in found.values()]
    (DOCS / "faults.md").write_text(head + "".join(rows))
