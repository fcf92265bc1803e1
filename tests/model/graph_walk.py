"""Backward without torch's engine.

The engine needs a live CUDA context as soon as a tensor says that it is on a GPU, even a fake one. The nodes of the
graph are callable, though: walking them in order runs every backward formula where the engine cannot.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor


def backward(loss: Tensor, gradient: Tensor | None = None) -> None:
    """Like `loss.backward(gradient)`, node by node on the calling thread."""
    if loss.grad_fn is None:
        loss.grad = gradient
        return
    waiting = _incoming_edges(loss.grad_fn)
    gradients: dict[object, dict[int, Tensor]] = defaultdict(dict)
    gradients[loss.grad_fn][0] = torch.ones_like(loss) if gradient is None else gradient
    ready = [loss.grad_fn]
    while ready:
        node = ready.pop()
        inputs = gradients.pop(node, {})
        outputs = _run(node, inputs) if inputs else [None] * len(node.next_functions)
        for gradient, (following, index) in zip(outputs, node.next_functions, strict=False):
            if following is None:
                continue
            if gradient is not None:
                kept = gradients[following].get(index)
                gradients[following][index] = gradient if kept is None else kept + gradient
            waiting[following] -= 1
            if waiting[following] == 0:
                ready.append(following)


def _incoming_edges(root) -> dict[object, int]:
    """How many edges lead to each node."""
    count: dict[object, int] = defaultdict(int)
    stack, seen = [root], {root}
    while stack:
        for following, _ in stack.pop().next_functions:
            if following is None:
                continue
            count[following] += 1
            if following not in seen:
                seen.add(following)
                stack.append(following)
    return count


def _run(node, inputs: dict[int, Tensor]) -> list[Tensor | None]:
    # the engine sums a gradient over what was broadcast
    inputs = {i: g.sum_to_size(node._input_metadata[i].shape) for i, g in inputs.items()}
    if hasattr(node, "variable"):  # a leaf
        leaf, gradient = node.variable, inputs[0]
        leaf.grad = gradient if leaf.grad is None else leaf.grad + gradient
        return []
    arity = max(inputs) + 1
    with torch.no_grad():
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            outputs = node.apply(*[inputs.get(i) for i in range(arity)])
        else:
            outputs = node(*[inputs.get(i) for i in range(arity)])
    return list(outputs) if isinstance(outputs, tuple) else [outputs]
