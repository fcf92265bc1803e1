"""G-Tower: SSL-Pop with the popularity estimated from a stream (Yi et al., RecSys
2019).
"""

from __future__ import annotations

from typing import Literal

from streamer.model.losses.ssl_pop import SslPop


class GTower(SslPop):
    """SSL-Pop whose popularity comes from hash arrays of fixed size."""

    name = "g-tower"
    popularity: Literal["none", "exact", "hash"] = "hash"
