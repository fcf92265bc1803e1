"""Writes what of docs/ comes from the code, between marks: metrics, settings, HTTP, Python, keys of Redis.

python docs/generate.py [--check]
"""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import streamer
from streamer.cache_store.redis import schema
from streamer.metrics.catalogue import GROUPS, Label, Metric
from streamer.model.setting import Setting, Settings
from streamer.replay.evaluation.settings import OfflineSettings, PrequentialSettings
from streamer.replay.settings import EvaluationSettings, ReplaySettings
from streamer.serve.service import Service
from streamer.serve.settings import ServeSettings
from streamer.settings import RunSettings
from streamer.web.app import new_app
from streamer.web.recommendations import (
    add_hidden_items,
    add_recommendations,
    add_status,
)

DOCS = Path(__file__).parent


def metrics() -> str:
    """All metrics, a table for each group."""

    def metric_row(metric: Metric) -> str:
        labels = "; ".join(described(label) for label in metric.labels)
        return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |"

    def described(label: Label) -> str:
        return f"`{label.name}`: {', '.join(f'`{value}`' for value in label.values) or label.bound}"

    head = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    return "\n\n".join(
        "\n".join([f"### {title}", "", *head, *map(metric_row, found)])
        for title, found in GROUPS.items()
    )


def escaped(text: str) -> str:
    """Text for a cell of a table."""
    return text.replace("|", "&#124;").replace("<", "&lt;")


def settings(
    kind: type[Settings], known: type[Settings] | None = None, given: str = ""
) -> str:
    """All settings of a class, a table for each heading, but for those that another class has with the same default.

    `given` is how all of them are given on the command line; empty: each by its option, if it has one.
    """
    hidden = [row(s, given) for s in known.all().values()] if known is not None else []
    tables = []
    for heading, group in itertools.groupby(
        kind.all().values(), key=lambda s: s.heading
    ):
        rows = [row(s, given) for s in group]
        shown = [cells for cells in rows if cells not in hidden]
        if shown:
            head = [
                "| option | in Python | default | values | meaning |",
                "|---|---|---|---|---|",
            ]
            lines = [
                f"| {' | '.join(escaped(cell) for cell in cells)} |" for cells in shown
            ]
            tables.append("\n".join([f"### {heading}", "", *head, *lines]))
    return "\n\n".join(tables)


def row(s: Setting, given: str) -> list[str]:
    """The cells of one setting."""
    way = given or ("--set " if s.about.expert else "--")
    values = [*s.choices, s.range().removeprefix("of "), s.about.unit]
    default = s.default_text() or ("no" if s.base is bool else "")
    fixed = " *Fixed.*" if s.about.fixed else ""
    return [
        f"`{way}{s.option}`",
        f"`{s.name}`",
        default,
        ", ".join(v for v in values if v),
        s.about.help + fixed,
    ]


def requests() -> str:
    """All requests of a server: parameters, body and meaning of each."""
    app = new_app("Recommendations")
    service = Service()
    add_recommendations(app, service)
    add_hidden_items(app, service, None)
    add_status(app, service, lambda user, item: None)
    document = app.openapi()
    found = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            lines = [f"### {method.upper()} {path.replace(':path', '')}", ""]
            lines.append(" ".join(operation["description"].split()))
            rows = list(parameters(operation))
            if "requestBody" in operation:
                content = operation["requestBody"]["content"]["application/json"]
                body = referred(content["schema"], document)
                rows += fields("body", body, document)
            if rows:
                lines += ["", "| where | name | values | default | meaning |"]
                lines += ["|---|---|---|---|---|", *rows]
            found.append("\n".join(lines))
    return "\n\n".join(found)


def parameters(operation: Mapping[str, Any]) -> Iterator[str]:
    """A row for each parameter in the path or the query."""
    for parameter in operation.get("parameters", []):
        name = parameter["name"].removesuffix(":path")
        yield field_row(parameter["in"], name, parameter["schema"])


def fields(
    where: str, body: Mapping[str, Any], document: Mapping[str, Any]
) -> Iterator[str]:
    """A row for each key of a body."""
    for name, found in body["properties"].items():
        yield field_row(where, name, found)
        if "$ref" in found.get("items", {}):
            inner = referred(found["items"], document)
            yield from fields(f"each of `{name}`", inner, document)


def field_row(where: str, name: str, found: Mapping[str, Any]) -> str:
    kinds = [part for part in found.get("anyOf", [found]) if part.get("type") != "null"]
    kind = kinds[0].get("type", "object")
    limits = []
    for limit, words in LIMITS.items():
        if limit in kinds[0]:
            limits.append(f"{words} {kinds[0][limit]:,g}")
    values = ", ".join([kind, *limits])
    default = found.get("default")
    shown = "" if default in (None, [], ()) else f"`{str(default).lower()}`"
    meaning = found.get("description", "")
    return f"| {where} | `{name}` | {values} | {shown} | {meaning} |"


LIMITS = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "minLength": "length at least",
    "maxLength": "length at most",
    "maxItems": "entries at most",
}
"""What JSON Schema calls a limit, and how it is said here."""


def referred(found: Mapping[str, Any], document: Mapping[str, Any]) -> Any:
    """A part of an OpenAPI document, or what it refers to."""
    for name in found.get("$ref", "#").split("/")[1:]:
        document = document[name]
    return document if "$ref" in found else found


def learner() -> str:
    """The public methods of `Learner`, with their signatures and docstrings."""
    found = []
    for name in vars(streamer.Learner):
        member = getattr(streamer.Learner, name)
        if name.startswith("_") or not callable(member):
            continue
        signature = str(inspect.signature(member))
        for noise in ("self, ", "'"):
            signature = signature.replace(noise, "")
        text = inspect.getdoc(member) or ""
        found.append(f"### {name}\n\n```text\n{name}{signature}\n\n{text}\n```")
    return "\n\n".join(found)


def keys() -> str:
    """What Redis holds, as it is described where the keys are defined."""
    return f"```text\n{inspect.getdoc(schema)}\n```"


TABLES: dict[str, dict[str, Callable[[], str]]] = {
    "metrics.md": {"metrics": metrics},
    "http.md": {"requests": requests},
    "learner.md": {"learner": learner},
    "redis.md": {"keys": keys},
    "settings.md": {
        "run": lambda: settings(RunSettings),
        "serve": lambda: settings(ServeSettings, RunSettings),
        "prequential": lambda: settings(PrequentialSettings, RunSettings, "--set "),
        "offline": lambda: settings(OfflineSettings, RunSettings, "--set "),
        "replay": lambda: settings(ReplaySettings),
        "evaluation": lambda: settings(EvaluationSettings, ReplaySettings),
    },
}
"""File -> mark -> the table between its marks."""


def generated(name: str) -> str:
    """A file as it should be."""
    text = (DOCS / name).read_text(encoding="utf-8")
    for mark, table in TABLES[name].items():
        before, begin, rest = text.partition(f"<!-- {mark}: begin -->")
        _, end, after = rest.partition(f"<!-- {mark}: end -->")
        if not begin or not end:
            raise SystemExit(
                f"docs/{name} has no marks <!-- {mark}: begin --> and <!-- {mark}: end -->"
            )
        text = f"{before}{begin}\n\n{table()}\n\n{end}{after}"
    return text


def main() -> None:
    stale = [
        name
        for name in TABLES
        if generated(name) != (DOCS / name).read_text(encoding="utf-8")
    ]
    if "--check" in sys.argv[1:]:
        sys.exit(
            f"stale: {', '.join(f'docs/{name}' for name in stale)}; run `make docs`"
            if stale
            else 0
        )
    for name in stale:
        (DOCS / name).write_text(generated(name), encoding="utf-8")
        print(f"docs/{name} is written")


if __name__ == "__main__":
    main()
