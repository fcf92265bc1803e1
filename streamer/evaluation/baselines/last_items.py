"""The baseline of returning: what the user had last."""

from __future__ import annotations

import numpy as np

from streamer.evaluation.baselines.base import Stretch
from streamer.evaluation.tally import Ranks
from streamer.model.batch import Rows


class LastItems:
    """Recommends the user's last ten distinct items, most recent first; nothing that is
    new to the user.
    """

    name = "last-items"

    def walk(self, stretch: Stretch) -> Ranks:
        """Rank; what a user had last is state of the stream, there is nothing to learn."""
        ranks = Ranks.missed(len(stretch.ranked))
        at, place = np.nonzero(
            stretch.recent[stretch.ranked] == stretch.targets[:, None]
        )
        ranks.among_all[at] = place + 1
        return ranks

    def forget(self, items: Rows) -> None:
        """There is nothing to forget."""
