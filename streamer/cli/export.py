"""`streamer export`: the vectors of both towers, for an index of approximate nearest
neighbours, and the ranker.

The inner product of a user's and an item's vector is the score by which the towers
retrieve. It is one of the numbers that the ranker reads; `streamer.model.ranking` says
what the others are, and how its weights make a score of them.

Formats: `npz` has ids as an array of strings, and numpy reads it without pickle;
`parquet` has the columns `side` (`items` or `users`), `id` and `vector` (a list of
fixed size), each row group of one side; `faiss` is an index of the items' inner
products, with the ids in their order beside it; `qdrant-jsonl` has a point of Qdrant on
each line.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
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
    help="File to write; one that exists is replaced once all is written.",
)
@option(
    "Export",
    "--format",
    "kind",
    type=click.Choice(["npz", "parquet", "faiss", "qdrant-jsonl"]),
    help="What to write; parquet needs streamer[parquet], faiss streamer[serve].  [default: by the end of the name]",
)
@option(
    "Export",
    "--side",
    type=click.Choice(["items", "users", "both"]),
    default="both",
    help="Whose vectors to write.",
)
@option("Export", "--json", "as_json", is_flag=True, help="Print one JSON object.")
@checkpoint_options
def export(
    settings: RunSettings, out: Path, kind: str | None, side: str, as_json: bool
) -> None:
    """Write the vectors of the newest checkpoint with their ids, for an ANN index, and
    the ranker's weights.

    The inner product of a user's and an item's vector is the score by which the towers
    retrieve candidates.

    \b
    npz           arrays SIDE.ids (strings) and SIDE.vectors (float32 [N, dim]), for SIDE items and users;
                  about: a JSON object with checkpoint, saved_at and dim. Readable
                  without pickle. Of the ranker, for PURPOSE all and discovery (items
                  new to their user): ranker.PURPOSE.linear [histories, features],
                  .hidden [hidden, features], .bias [histories, hidden] and .out
                  [hidden]; ranker.features, ranker.histories and ranker.evidence are
                  names, ranker.evidence_of the kind of each feature
    parquet       columns side, id, vector
    faiss         an IndexFlatIP of the items; their ids are the lines of OUT.ids, as JSON strings
    qdrant-jsonl  lines {"id": row, "vector": [...], "payload": {"id": ID, "side": SIDE}}
    """
    write = writer_for(out, kind)
    loaded = load(settings.checkpoints)
    sides = [
        Side(name, loaded.learner)
        for name in ("items", "users")
        if side in (name, "both")
    ]
    if write is write_faiss:
        sides = [Side("items", loaded.learner)]
    counts = {s.name: len(s) for s in sides}
    dim = sides[0].dim
    about = {
        "checkpoint": loaded.path.name,
        "saved_at": loaded.meta["saved_at"],
        "dim": dim,
    }
    with replaced(out) as temporary:
        write(
            temporary, sides, ranker_arrays(loaded.learner), json.dumps(about).encode()
        )
    if write is write_faiss:  # which knows rows only
        with (
            replaced(out.with_name(f"{out.name}.ids")) as temporary,
            temporary.open("w") as file,
        ):
            file.writelines(f"{json.dumps(raw)}\n" for raw in sides[0].ids)
    size = out.stat().st_size
    if as_json:
        where = {"out": str(out), "checkpoint": str(loaded.path)}
        click.echo(json.dumps({**where, **counts, "dim": dim, "bytes": size}))
    else:
        vectors = " and ".join(f"{count:,} {name}" for name, count in counts.items())
        click.echo(
            f"wrote {vectors} of {dim} dimensions to {out} ({format_bytes(size)})\nfrom {loaded.path}"
        )


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
        return (
            self.learner.state.items
            if self.name == "items"
            else self.learner.state.users
        )

    def blocks(
        self, *, ids_only: bool = False
    ) -> Iterator[tuple[Sequence[str], Floats]]:
        """Ids and vectors [n, dim], in order of rows."""
        import numpy as np

        vectors_of = item_vectors if self.name == "items" else user_vectors
        used = self._vocabulary.used
        by_row = self._vocabulary.by_row
        if ids_only:
            vectors_of = lambda learner, rows: np.empty((len(rows), 0), np.float32)  # noqa: E731
        for start in range(0, len(self), BLOCK_ROWS):
            rows = used[start : start + BLOCK_ROWS]
            yield [by_row[row] for row in rows.tolist()], vectors_of(self.learner, rows)


def item_vectors(learner: Learner, rows: Rows) -> Floats:
    """[n, dim] the item tower's vectors."""
    import torch

    from streamer.model.towers import TouchedRows

    with torch.no_grad():
        found: Floats = learner.state.trainer.model.items(
            TouchedRows(torch.device("cpu")), rows
        ).numpy()
    return found


def user_vectors(learner: Learner, rows: Rows) -> Floats:
    """[n, dim] the user tower's vectors."""
    found: Floats = learner.state.retriever.queries(
        rows, learner.candidates.recent_items(learner.state.recent.of(rows))
    ).numpy()
    return found


def ranker_arrays(learner: Learner) -> dict[str, Any]:
    """The ranker's weights, and the names of what they are for; none if the towers
    alone rank.
    """
    import numpy as np

    from streamer.model.ranking.features import BUCKET_NAMES, FEATURES, KINDS

    if not learner.settings.rerank:
        return {}
    names = {"features": FEATURES, "histories": BUCKET_NAMES, "evidence": tuple(KINDS)}
    arrays: dict[str, Any] = {
        f"ranker.{what}": np.array(listed) for what, listed in names.items()
    }
    kind_of = {
        feature: number
        for number, features in enumerate(KINDS.values())
        for feature in features
    }
    arrays["ranker.evidence_of"] = np.array(
        [kind_of[feature] for feature in range(len(FEATURES))]
    )
    for purpose, weights in zip(
        ("all", "discovery"), learner.state.ranker.weights, strict=True
    ):
        arrays |= {
            f"ranker.{purpose}.{name}": array
            for name, array in weights._asdict().items()
        }
    return arrays


# files ----------------------------------------------------------------------------------------------------------------

Writer = Callable[[Path, Sequence[Side], dict[str, Any], bytes], None]


def writer_for(out: Path, kind: str | None = None) -> Writer:
    """What writes files of this kind, or of what the name ends in.

    Raises:
        click.BadParameter: there is no such kind.
        StreamerError: a library is missing.
    """
    writers: dict[str, tuple[Writer, str, str]] = {
        "npz": (write_npz, "numpy", ""),
        "parquet": (write_parquet, "pyarrow.parquet", "parquet"),
        "faiss": (write_faiss, "faiss", "serve"),
        "qdrant-jsonl": (write_qdrant, "numpy", ""),
    }
    kind = kind or {".npz": "npz", ".parquet": "parquet", ".faiss": "faiss"}.get(
        out.suffix
    )
    if kind is None:
        raise click.BadParameter(
            f"{out.name}: choose a name that ends in .npz, .parquet or .faiss, or give --format",
            param_hint="--out",
        )
    write, library, extra = writers[kind]
    try:
        importlib.import_module(library)
    except ImportError as error:
        needed = library.split(".")[0]
        raise StreamerError(
            f"writing {out} needs {needed}: pip install 'streamer[{extra}]', or choose --format npz"
        ) from error
    return write


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


def write_npz(
    path: Path, sides: Sequence[Side], ranker: dict[str, Any], about: bytes
) -> None:
    """Write what `numpy.savez` would, without ever holding a matrix."""
    import numpy as np

    with zipfile.ZipFile(path, "w") as archive:

        def write(
            name: str, dtype: str, shape: tuple[int, ...], blocks: Iterable[Any]
        ) -> None:
            header = {"descr": dtype, "fortran_order": False, "shape": shape}
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array_header_1_0(entry, header)
                for block in blocks:
                    entry.write(np.ascontiguousarray(block, dtype).view(np.uint8).data)

        for name, array in {"about": np.frombuffer(about, np.uint8), **ranker}.items():
            write(name, array.dtype.str, array.shape, [array])
        for side in sides:
            text = f"<U{max(map(len, side.ids), default=1) or 1}"
            write(
                f"{side.name}.ids",
                text,
                (len(side),),
                (np.array(ids, text) for ids, _ in side.blocks(ids_only=True)),
            )
            write(
                f"{side.name}.vectors",
                "<f4",
                (len(side), side.dim),
                (vectors for _, vectors in side.blocks()),
            )


def write_faiss(
    path: Path, sides: Sequence[Side], ranker: dict[str, Any], about: bytes
) -> None:
    """Write an index of inner products."""
    import faiss

    (items,) = sides
    index = faiss.IndexFlatIP(items.dim)
    for _, vectors in items.blocks():
        index.add(vectors)
    faiss.write_index(index, str(path))


def write_qdrant(
    path: Path, sides: Sequence[Side], ranker: dict[str, Any], about: bytes
) -> None:
    """Write points of Qdrant, whose own ids are numbers: those of users go on after
    those of items.
    """
    first = 0
    with path.open("w") as file:
        for side in sides:
            for ids, vectors in side.blocks():
                for row, (raw, vector) in enumerate(
                    zip(ids, vectors.tolist(), strict=True), start=first
                ):
                    point = {
                        "id": row,
                        "vector": vector,
                        "payload": {"id": raw, "side": side.name},
                    }
                    file.write(json.dumps(point) + "\n")
                first += len(ids)


def write_parquet(
    path: Path, sides: Sequence[Side], ranker: dict[str, Any], about: bytes
) -> None:
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
