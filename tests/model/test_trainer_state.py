"""A trainer restored from its state goes on with the same bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from test_step import CPU, MODELS, make_input, make_trainer

from streamer.model.losses import METHODS
from streamer.model.trainer import Trainer


def parts(trainer: Trainer) -> dict[str, Any]:
    model = trainer.model
    return {**model.tables, "user features": model.user.features, "item features": model.item.features}


def copy_trainer(trainer: Trainer, to: Trainer) -> None:
    for name, part in parts(trainer).items():
        rows = np.arange(part.size)
        parts(to)[name].put(rows, part.take(rows))
        parts(to)[name].load_dense(part.dense())
    to.load_dense(*trainer.dense())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", ["plain", "recent items", "features", "mlp"])
def test_a_restored_trainer_continues_bit_for_bit(method, model):
    undisturbed = make_trainer(method, MODELS[model])
    for k in range(3):
        undisturbed.step(*make_input(undisturbed, seed=k))
    restored = Trainer(replace(make_trainer(method, MODELS[model]).settings, seed=99), CPU)
    copy_trainer(undisturbed, restored)
    for k in range(3, 6):
        results = [t.step(*make_input(t, seed=k)) for t in (undisturbed, restored)]
        assert torch.equal(results[0].loss, results[1].loss)
    for name, part in parts(undisturbed).items():
        rows = np.arange(part.size)
        for key, array in (part.take(rows) | part.dense()).items():
            assert np.array_equal((parts(restored)[name].take(rows) | parts(restored)[name].dense())[key], array), key
    for name, array in undisturbed.dense()[0].items():
        assert np.array_equal(restored.dense()[0][name], array), name


def test_a_state_of_another_shape_is_refused():
    arrays, values = make_trainer("xir", MODELS["plain"]).dense()
    other = Trainer(MODELS["mlp"], CPU)
    with pytest.raises(ValueError, match="another"):
        other.load_dense(arrays, values)
