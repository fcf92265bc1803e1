"""Devices: which one to use, and how data gets there."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def in_host_memory(tensor: Tensor) -> bool:
    """Whether compiled loops can work on it: an ordinary tensor on the CPU, not a fake
    one that only has a shape.
    """
    return tensor.device.type == "cpu" and type(tensor) in (Tensor, torch.nn.Parameter)


def to_device(value: NDArray[Any] | Tensor, device: torch.device) -> Tensor:
    """An array or a host tensor on a device; the copy to a GPU does not wait for it."""
    host = value
    if not isinstance(host, Tensor):
        host = torch.from_numpy(np.ascontiguousarray(host))
    if device.type != "cuda":
        return host
    if torch.cuda.is_available():
        host = host.pin_memory()
    return host.to(device, non_blocking=True)


def resolve_device(name: str) -> torch.device:
    """`auto`, `cpu`, `cuda` or `cuda:N` as a torch device.

    Raises:
        ValueError: there is no such device here; the message says what there is.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:[0-9]+)?", name):
        raise ValueError(f"no device {name!r}; choose auto, cpu, cuda or cuda:N")
    kind, _, number = name.partition(":")
    device = torch.device(kind, int(number)) if number else torch.device(kind)
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and found <= (device.index or 0):
        raise ValueError(
            f"{name} was asked for, but torch sees {found} GPUs; try auto or cpu"
        )
    return device
