"""The three files of a checkpoint: written and synced, checked and read."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch

from streamer.errors import CheckpointError, CorruptCheckpoint, IncompatibleCheckpoint

FORMAT = 1
STATE = "state.safetensors"
META = "meta.json"
MANIFEST = "manifest.json"
BLOCK_BYTES = 4 << 20

Tensors = Mapping[str, np.ndarray | torch.Tensor]


def write_files(directory: Path, tensors: Tensors, meta: Mapping[str, Any]) -> None:
    """Write the three files of a checkpoint, each synced; the manifest last.

    Raises:
        CheckpointError: a number is not finite; nothing is written.
    """
    _check_finite(tensors)
    directory.mkdir()
    arrays = [name for name, value in tensors.items() if isinstance(value, np.ndarray)]
    safetensors.torch.save_file(_separate(tensors), directory / STATE, metadata={"arrays": json.dumps(arrays)})
    (directory / META).write_bytes(_to_json(meta))
    files = {}
    for path in (directory / STATE, directory / META):
        sync(path)
        files[path.name] = {"bytes": path.stat().st_size, "crc32": _checksum(path)}
    manifest = {"format": FORMAT, "files": files}
    (directory / MANIFEST).write_bytes(_to_json({**manifest, "crc32": zlib.crc32(_to_json(manifest))}))
    sync(directory / MANIFEST)


def read_files(directory: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Check a checkpoint against its manifest, then read it.

    Raises:
        CorruptCheckpoint: with the file and what is wrong with it.
        IncompatibleCheckpoint: the format is newer than this version of Streamer.
    """
    try:
        manifest = _read_manifest(directory / MANIFEST)
        for path in (directory / STATE, directory / META):
            size, expected = path.stat().st_size, manifest["files"][path.name]
            if size != expected["bytes"]:
                raise CorruptCheckpoint(f"{path} has {size} bytes instead of {expected['bytes']}")
            if _checksum(path) != expected["crc32"]:
                raise CorruptCheckpoint(f"{path} does not match its checksum")
        return _read_tensors(directory / STATE), json.loads((directory / META).read_bytes())
    except (OSError, KeyError, TypeError, ValueError, safetensors.SafetensorError) as error:
        raise CorruptCheckpoint(f"{directory}: {type(error).__name__}: {error}") from error


def _read_manifest(path: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads(path.read_bytes())
    crc32 = manifest.pop("crc32")
    if crc32 != zlib.crc32(_to_json(manifest)):
        raise CorruptCheckpoint(f"{path} does not match its own checksum")
    if manifest["format"] != FORMAT:
        raise IncompatibleCheckpoint(
            f"{path.parent} has format {manifest['format']}, this version of Streamer reads {FORMAT}: upgrade Streamer"
        )
    return manifest


def _check_finite(tensors: Tensors) -> None:
    for name, value in tensors.items():
        tensor = _as_tensor(name, value)
        if tensor.is_floating_point() and not tensor.sum().isfinite() and not tensor.isfinite().all():
            count = int((~tensor.isfinite()).sum())
            raise CheckpointError(
                f"{count:,} of {tensor.numel():,} numbers in {name} are not finite: nothing is saved. "
                "Start the run again: it resumes from the checkpoint before"
            )


def _read_tensors(path: Path) -> dict[str, Any]:
    with safetensors.safe_open(path, framework="pt") as file:
        arrays = set(json.loads((file.metadata() or {}).get("arrays", "[]")))
        # a copy: what safetensors returns is mapped from a file that will be removed one day
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    return {name: tensor.numpy() if name in arrays else tensor for name, tensor in tensors.items()}


def _separate(tensors: Tensors) -> dict[str, torch.Tensor]:
    """All as contiguous CPU tensors that share no memory, as safetensors wants; copied only if needed."""
    seen: set[int] = set()
    separate: dict[str, torch.Tensor] = {}
    for name, value in tensors.items():
        tensor = _as_tensor(name, value)
        storage = tensor.untyped_storage()
        if storage.data_ptr() in seen or storage.nbytes() != tensor.nbytes:
            tensor = tensor.clone()
        seen.add(tensor.untyped_storage().data_ptr())
        separate[name] = tensor
    return separate


def _as_tensor(name: str, value: np.ndarray | torch.Tensor) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().contiguous()
    array = np.asarray(value, dtype=value.dtype.newbyteorder("="), order="C")
    if not array.flags.writeable:  # torch warns of arrays that it could write to but must not
        array = array.copy()
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise CheckpointError(f"array {name!r} of dtype {value.dtype} cannot be stored: {error}") from error


def _to_json(value: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(value, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"a checkpoint's meta must be JSON: {error}") from error


def _checksum(path: Path) -> int:
    crc32 = 0
    with path.open("rb", buffering=0) as file:
        while block := file.read(BLOCK_BYTES):
            crc32 = zlib.crc32(block, crc32)
    return crc32


def size_bytes_of(directory: Path) -> int | None:
    """The size of a checkpoint's files; None if it is gone, because newer ones took its place."""
    try:
        return sum(file.stat().st_size for file in directory.iterdir())
    except OSError:
        return None


def sync(path: Path) -> None:
    """Sync a file or a directory to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
