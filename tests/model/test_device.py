"""Names of devices: which there are, and what is said about those that are not."""

from __future__ import annotations

import pytest
import torch

from streamer.model.device import resolve_device


@pytest.fixture(params=[0, 2])
def gpus(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """A machine with so many GPUs."""
    count: int = request.param
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    return count


def test_auto_takes_a_gpu_if_there_is_one_and_cpu_is_always_there(gpus):
    assert resolve_device("auto") == torch.device("cuda" if gpus else "cpu")
    assert resolve_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize(("name", "index"), [("cuda", None), ("cuda:0", 0), ("cuda:1", 1), ("cuda:01", 1)])
def test_gpu_is_taken_if_it_is_there(gpus, name, index):
    if gpus:
        assert resolve_device(name) == (torch.device("cuda") if index is None else torch.device("cuda", index))
    else:
        with pytest.raises(ValueError, match=f"{name} was asked for, but torch sees 0 GPUs; try auto or cpu"):
            resolve_device(name)


@pytest.mark.usefixtures("gpus")
def test_gpu_beyond_the_last_is_refused():
    with pytest.raises(ValueError, match=r"cuda:2 was asked for, but torch sees \d GPUs; try auto or cpu"):
        resolve_device("cuda:2")


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    "name", ["", "gpu", "CPU", "cpu:0", "cpu:", "cuda:", "cuda:x", "cuda:-1", "cuda:²", "mps", "cuda:0:0", "cpu\n"]
)
def test_other_names_list_the_choices(name):
    with pytest.raises(ValueError, match=r"no device .*; choose auto, cpu, cuda or cuda:N"):
        resolve_device(name)
