"""`streamer export`: the vectors of both towers, for an index of approximate nearest neighbours, and the ranker.

The inner product of a user's and an item's vector is the score by which the towers retrieve. It is one of the numbers
that the ranker reads; `streamer.model.ranking` says what the others are, and how its weights make a score of them.

The help of the command lists the arrays of the `.npz`, which has no object arrays, so that numpy reads it without
pickle. `streamer.checkpoint.unpack_strings(npz, "items.ids")` makes a list of the ids; so does

    blob, at = npz["items.ids.utf8"].tobytes(), npz["items.ids.offsets"]
    ids = [blob[a:b].decode() for a, b in itertools.pairwise(at)]

`.parquet` has the columns `side` (`items` or `users`), `id` and `vector` (a list of fixed size), each row group of one
side, and `about` in its metadata.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streamer.cli.loading import checkpoint_options, load
from streamer.cli.options import FILE, GroupedCommand, option
from streamer.cli.output import format_bytes
from streamer.errors import StreamerError
from streamer.settings import RunSettings

if TYPE_CHECKING:
    from streamer.learner import Learner
    from streamer.model.batch import Floats, Rows
    from streamer.vocabulary import Vocabulary

BLOCK_ROWS = 1 << 15
"""Vectors that are held in memory at a time."""


@click.command(cls=GroupedCommand)
@option(
    "Export",
    "--out",
    **FILE,
    help="File to write, .npz or .parquet (needs streamer[parquet]); one that exists is replaced once all is written.",
)
@option(
    "Export", "--side", type=click.Choice(["items", "users", "both"]), default="both", help="Whose vectors to write."
)
@option("Export", "--json", "as_json", is_flag=True, help="Print one JSON object.")
@checkpoint_options
def export(settings: RunSettings, out: Path, side: str, as_json: bool) -> None:
    """Write the vectors of the newest checkpoint with their ids, for an ANN index, and the ranker's weights.

    The inner product of a user's and an item's vector is the score by which the towers retrieve candidates.

    \b
    Arrays of the .npz, for SIDE items and users, readable without pickle:
      SIDE.vectors      float32 [N, dim]
      SIDE.ids.utf8     uint8, all ids one after the other
      SIDE.ids.offsets  int64 [N + 1], where each begins, and the end
      about             uint8, a JSON object: checkpoint, saved_at, dim
    and of the ranker, for PURPOSE all and discovery (items new to their user):
      ranker.PURPOSE.linear  float32 [histories, features]
      ranker.PURPOSE.hidden  float32 [hidden, features]
      ranker.PURPOSE.bias    float32 [histories, hidden]
      ranker.PURPOSE.out     float32 [hidden]
      ranker.features, ranker.histories, ranker.evidence
                             names, in .utf8 and .offsets as the ids
      ranker.evidence_of     int64 [features], the kind of each feature
    Columns of the .parquet, which has no ranker: side, id, vector
    """
    write = writer_for(out)
    loaded = load(settings.checkpoints)
    sides = [Side(name, loaded.learner) for name in ("items", "users") if side in (name, "both")]
    counts, dim = {s.name: len(s) for s in sides}, sides[0].dim
    about = {"checkpoint": loaded.path.name, "saved_at": loaded.meta["saved_at"], "dim": dim}
    with replaced(out) as temporary:
        write(temporary, sides, ranker_arrays(loaded.learner), json.dumps(about).encode())
    size = out.stat().st_size
    if as_json:
        where = {"out": str(out), "checkpoint": str(loaded.path)}
        click.echo(json.dumps({**where, **counts, "dim": dim, "bytes": size}))
    else:
        vectors = " and ".join(f"{count:,} {name}" for name, count in counts.items())
        click.echo(f"wrote {vectors} of {dim} dimensions to {out} ({format_bytes(size)})\nfrom {loaded.path}")


# vectors --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Side:
    """All vectors of one side, made block by block."""

    name: str
    learner: Learner

    def __len__(self) -> int:
        return len(self._vocabulary)

    @property
    def dim(self) -> int:
        """Size of the exported vectors."""
        return self.learner.settings.item_tower.out_dim

    @property
    def ids(self) -> list[str]:
        """Raw ids in the order of their rows."""
        return self._vocabulary.ids

    @property
    def _vocabulary(self) -> Vocabulary:
        return self.learner.items if self.name == "items" else self.learner.users

    def blocks(self) -> Iterator[tuple[Sequence[str], Floats]]:
        """Ids and vectors [n, dim], in order of rows."""
        vectors_of = item_vectors if self.name == "items" else user_vectors
        used, by_row = self._vocabulary.used, self._vocabulary.by_row
        for start in range(0, len(self), BLOCK_ROWS):
            rows = used[start : start + BLOCK_ROWS]
            yield [by_row[row] for row in rows.tolist()], vectors_of(self.learner, rows)


def item_vectors(learner: Learner, rows: Rows) -> Floats:
    """[n, dim] the item tower's vectors."""
    import torch

    from streamer.model.towers import TouchedRows

    with torch.no_grad():
        found: Floats = learner.trainer.model.items(TouchedRows(torch.device("cpu")), rows).numpy()
    return found


def user_vectors(learner: Learner, rows: Rows) -> Floats:
    """[n, dim] the user tower's vectors."""
    found: Floats = learner.retriever.queries(rows, learner.recent_items(learner.recent.of(rows))).numpy()
    return found


def ranker_arrays(learner: Learner) -> dict[str, Any]:
    """The ranker's weights, and the names of what they are for; none if the towers alone rank."""
    import numpy as np

    from streamer.checkpoint import pack_strings
    from streamer.model.ranking.evidence import BUCKET_NAMES, FEATURES, KINDS

    if not learner.settings.rerank:
        return {}
    names = {"features": FEATURES, "histories": BUCKET_NAMES, "evidence": tuple(KINDS)}
    arrays: dict[str, Any] = {}
    for what, listed in names.items():
        arrays |= pack_strings(list(listed), f"ranker.{what}")
    kind_of = {feature: number for number, features in enumerate(KINDS.values()) for feature in features}
    arrays["ranker.evidence_of"] = np.array([kind_of[feature] for feature in range(len(FEATURES))])
    for purpose, weights in zip(("all", "discovery"), learner.ranker.weights, strict=True):
        arrays |= {f"ranker.{purpose}.{name}": array for name, array in weights._asdict().items()}
    return arrays


# files ----------------------------------------------------------------------------------------------------------------

Writer = Callable[[Path, Sequence[Side], dict[str, Any], bytes], None]


def writer_for(out: Path) -> Writer:
    """What writes files of this kind.

    Raises:
        click.BadParameter: there is no such kind.
        StreamerError: a library is missing.
    """
    if out.suffix == ".npz":
        return write_npz
    if out.suffix != ".parquet":
        raise click.BadParameter(f"{out.name}: choose a name that ends in .npz or .parquet", param_hint="--out")
    try:
        importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise StreamerError(
            f"writing {out} needs pyarrow: pip install 'streamer[parquet]', or choose a name that ends in .npz"
        ) from error
    return write_parquet


@contextlib.contextmanager
def replaced(out: Path) -> Iterator[Path]:
    """A path to write to that becomes `out` when all is well, and vanishes otherwise.

    Raises:
        StreamerError: the system does not let us write.
    """
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(out)
    except OSError as error:
        raise StreamerError(
            f"cannot write {out}: {error.strerror or error}. Check its directory, permissions and free space"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_npz(path: Path, sides: Sequence[Side], ranker: dict[str, Any], about: bytes) -> None:
    """Write what `numpy.savez` would, without ever holding the matrix."""
    import numpy as np

    from streamer.checkpoint import pack_strings

    arrays = {"about": np.frombuffer(about, np.uint8), **ranker}
    for side in sides:
        arrays |= pack_strings(side.ids, f"{side.name}.ids")
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)
        for side in sides:
            header = {"descr": "<f4", "fortran_order": False, "shape": (len(side), side.dim)}
            with archive.open(f"{side.name}.vectors.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array_header_1_0(entry, header)
                for _, vectors in side.blocks():
                    entry.write(np.ascontiguousarray(vectors, "<f4").data)


def write_parquet(path: Path, sides: Sequence[Side], ranker: dict[str, Any], about: bytes) -> None:
    """Write one row group for each block of vectors."""
    arrow: Any = importlib.import_module("pyarrow")
    parquet: Any = importlib.import_module("pyarrow.parquet")
    dim = sides[0].dim
    vector = arrow.list_(arrow.float32(), dim)
    fields = [("side", arrow.string()), ("id", arrow.string()), ("vector", vector)]
    schema = arrow.schema(fields, metadata={"about": about})
    with parquet.ParquetWriter(str(path), schema) as writer:
        for side in sides:
            for ids, vectors in side.blocks():
                flat = arrow.array(vectors.reshape(-1), arrow.float32())
                lists = arrow.FixedSizeListArray.from_arrays(flat, dim)
                names = arrow.array([side.name] * len(ids), arrow.string())
                arrays = [names, arrow.array(ids, arrow.string()), lists]
                writer.write_table(arrow.Table.from_arrays(arrays, schema=schema))
