"""`streamer export`: the vectors of both towers, for an index of approximate nearest
neighbours, and the ranker.

The inner product of a user's and an item's vector is the score by which the towers
retrieve. It is one of the numbers that the ranker reads; `streamer.model.ranking` says
what the others are, and how its weights make a score of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streamer.cli.loading import checkpoint_options, load
from streamer.cli.options import FILE, GroupedCommand, json_option, option
from streamer.cli.output import format_bytes, say
from streamer.settings import RunSettings

if TYPE_CHECKING:
    from streamer.learner import OnlineLearner, State
    from streamer.model.batch import Floats

BLOCK_ROWS = 1 << 15
"""Vectors that are computed at a time."""


@click.command(cls=GroupedCommand)
@option(
    "Export",
    "--out",
    **FILE,
    help="File to write, .npz; one that exists is replaced once all is written.",
)
@json_option
@checkpoint_options
def export(settings: RunSettings, out: Path, as_json: bool) -> None:
    """Write the vectors of the newest checkpoint with their ids, for an ANN index, and
    the ranker's weights.

    The inner product of a user's and an item's vector is the score by which the towers
    retrieve candidates.

    The file holds arrays, readable without pickle: SIDE.ids (strings) and SIDE.vectors
    (float32 [N, dim]), for SIDE items and users; about: a JSON object with checkpoint,
    saved_at and dim. Of the ranker, for PURPOSE all and discovery (items new to their
    user): ranker.PURPOSE.linear [histories, features], .hidden [hidden, features],
    .bias [histories, hidden] and .out [hidden]; ranker.features, ranker.histories and
    ranker.evidence are names, ranker.evidence_of the kind of each feature.
    """
    import numpy as np

    from streamer.snapshot.directory import system_errors, whole_file

    if out.suffix != ".npz":
        message = f"{out.name}: choose a name that ends in .npz"
        raise click.BadParameter(message, param_hint="--out")
    checkpoint, learner = load(settings.checkpoints)
    state = learner.state
    arrays = ranker_arrays(learner)
    arrays["items.ids"] = np.array(state.items.ids, np.str_)
    arrays["items.vectors"] = item_vectors(state)
    arrays["users.ids"] = np.array(state.users.ids, np.str_)
    arrays["users.vectors"] = user_vectors(learner)
    about = {
        "checkpoint": checkpoint.path.name,
        "saved_at": checkpoint.meta["saved_at"],
        "dim": learner.settings.item_tower.out_dim,
    }
    arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    with system_errors("write", out):
        out.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(out) as file:
            np.savez(file, **arrays)

    done = {
        "out": str(out),
        "checkpoint": str(checkpoint.path),
        "items": len(state.items),
        "users": len(state.users),
        "dim": about["dim"],
        "bytes": out.stat().st_size,
    }
    text = (
        f"wrote {len(state.items):,} items and {len(state.users):,} users of "
        f"{about['dim']} dimensions to {out} ({format_bytes(done['bytes'])})\n"
        f"from {checkpoint.path}"
    )
    say(done, text, as_json)


def item_vectors(state: State) -> Floats:
    """[N, dim] the item tower's vectors."""
    items = state.retriever.items(state.items.size)
    found: Floats = items.vectors.numpy()[state.items.used]
    return found


def user_vectors(learner: OnlineLearner) -> Floats:
    """[N, dim] the user tower's vectors, computed some at a time."""
    import numpy as np

    state = learner.state
    rows = state.users.used
    vectors = np.empty((len(rows), learner.settings.user_tower.out_dim), np.float32)
    for start in range(0, len(rows), BLOCK_ROWS):
        block = rows[start : start + BLOCK_ROWS]
        recent = learner.candidates.recent_items(state.recent.of(block))
        found = state.retriever.queries(block, recent)
        vectors[start : start + BLOCK_ROWS] = found.numpy()
    return vectors


def ranker_arrays(learner: OnlineLearner) -> dict[str, Any]:
    """The ranker's weights, and the names of what they are for; none if the towers
    alone rank.
    """
    import numpy as np

    from streamer.model.ranking.features import BUCKET_NAMES, FEATURES, KINDS

    if not learner.settings.rerank:
        return {}
    evidence_of = np.empty(len(FEATURES), np.int64)
    for number, features in enumerate(KINDS.values()):
        evidence_of[list(features)] = number
    arrays: dict[str, Any] = {
        "ranker.features": np.array(FEATURES),
        "ranker.histories": np.array(BUCKET_NAMES),
        "ranker.evidence": np.array(list(KINDS)),
        "ranker.evidence_of": evidence_of,
    }
    purposes = zip(("all", "discovery"), learner.state.ranker.weights, strict=True)
    for purpose, weights in purposes:
        for name, array in weights._asdict().items():
            arrays[f"ranker.{purpose}.{name}"] = array
    return arrays
