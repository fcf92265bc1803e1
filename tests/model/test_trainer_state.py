"""A trainer restored from its state goes on with the same bits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from test_step import CPU, MODELS, make_input, make_trainer

from streamer.model.losses import METHODS
from streamer.model.trainer import Trainer


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", ["plain", "recent items", "features", "mlp"])
def test_a_restored_trainer_continues_bit_for_bit(method, model):
    undisturbed = make_trainer(method, MODELS[model])
    for k in range(3):
        undisturbed.step(*make_input(undisturbed, seed=k))
    tensors, values = undisturbed.state()
    copied = {name: tensor.clone() for name, tensor in tensors.items()}
    restored = Trainer(replace(make_trainer(method, MODELS[model]).settings, seed=99), CPU)
    restored.load_state(copied, values)
    for k in range(3, 6):
        results = [t.step(*make_input(t, seed=k)) for t in (undisturbed, restored)]
        assert torch.equal(results[0].loss, results[1].loss)
    expected, found = undisturbed.state()[0], restored.state()[0]
    assert expected.keys() == found.keys()
    for name in expected:
        assert torch.equal(expected[name], found[name]), name


def test_a_state_of_another_shape_is_refused():
    tensors, values = make_trainer("xir", MODELS["plain"]).state()
    other = Trainer(MODELS["mlp"], CPU)
    with pytest.raises(ValueError, match="another"):
        other.load_state(tensors, values)
