"""SSL-Pop, BIR and XIR as the paper's authors write them: the alternative that the fast
step is measured against.

Whole B x B matrices, torch.multinomial, gather, autograd through all of it, dense Adam
with L2 on the whole tables.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from streamer.model.batch import Rows

CACHE_WEIGHT = 0.2
LEARNING_RATE = 0.001
L2 = 1e-6


class PlainTrainer:
    """Two embedding tables, trained by `ssl-pop`, `bir` or `xir`.

    Args:
        method: One of the three.
        sizes: Number of users, number of items, size of an embedding.
        log_pop: The log popularity of each item.
        cache_size: Items in the cache of `xir`.
    """

    def __init__(
        self, method: str, sizes: tuple[int, int, int], log_pop: Tensor, cache_size: int
    ) -> None:
        users, items, dim = sizes
        self.user = nn.Embedding(users, dim)
        self.item = nn.Embedding(items, dim)
        nn.init.normal_(self.user.weight, std=0.1)
        nn.init.normal_(self.item.weight, std=0.1)
        self.log_pop = log_pop
        self.occurrence = torch.ones(items)
        self.cache = torch.randint(0, items, (cache_size,))
        losses = {"ssl-pop": self._ssl_pop, "bir": self._bir, "xir": self._xir}
        self.loss = losses[method]
        parameters = [self.user.weight, self.item.weight]
        self.optimizer = torch.optim.Adam(parameters, lr=LEARNING_RATE, weight_decay=L2)

    def step(self, user_rows: Rows, item_rows: Rows) -> Tensor:
        """Forward, backward, update."""
        users = torch.from_numpy(user_rows)
        items = torch.from_numpy(item_rows)
        self.optimizer.zero_grad()
        loss = self.loss(self.user(users), self.item(items), items)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def _ssl_pop(self, q: Tensor, e: Tensor, items: Tensor) -> Tensor:
        logits = q @ e.T - self.log_pop[items]  # [B, B]
        return torch.mean(torch.logsumexp(logits, 1) - torch.diagonal(logits))

    def _bir(self, q: Tensor, e: Tensor, items: Tensor) -> Tensor:
        scores = q @ e.T  # [B, B]
        loss, _ = self._resampled(scores, torch.diagonal(scores), items, len(items))
        return loss

    def _xir(self, q: Tensor, e: Tensor, items: Tensor) -> Tensor:
        scores = q @ e.T  # [B, B]
        cached = q @ self.item(self.cache).T  # [B, C]
        positive = torch.diagonal(scores)
        half = len(items) // 2
        batch_loss, batch_drawn = self._resampled(scores, positive, items, half)
        cache_loss, cache_drawn = self._resampled(cached, positive, self.cache, half)
        from_batch = items[batch_drawn].view(-1)
        drawn = torch.cat([from_batch, self.cache[cache_drawn].view(-1)])
        self.occurrence += torch.bincount(drawn, minlength=len(self.occurrence))
        touched = torch.unique(drawn)
        weights = self.occurrence[touched]
        places = torch.multinomial(weights, len(self.cache), replacement=True)
        self.cache = touched[places]
        return CACHE_WEIGHT * cache_loss + (1 - CACHE_WEIGHT) * batch_loss

    def _resampled(
        self, scores: Tensor, positive: Tensor, items: Tensor, draws: int
    ) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            weight = torch.softmax(scores - self.log_pop[items], 1)  # [B, K]
            drawn = torch.multinomial(weight, draws, replacement=True)  # [B, m]
        negative = torch.gather(scores, 1, drawn)  # [B, m]
        logits = torch.cat([positive.unsqueeze(1), negative], 1)
        return torch.mean(torch.logsumexp(logits, 1) - positive), drawn
