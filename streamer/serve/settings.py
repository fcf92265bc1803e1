"""Settings of a server: `ServeSettings` holds all settings of `streamer serve`."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from streamer.model.setting import setting
from streamer.settings import EventSettings, StreamSettings

MIN_TOKEN = 16


@dataclass(frozen=True, kw_only=True)
class ServeSettings(EventSettings, StreamSettings):
    """All settings of `streamer serve`."""

    from_dir: Path | None = setting(
        None, "Directory that the trainer publishes to.", option="from"
    )
    publish_topic: str | None = setting(
        None, "Instead: Kafka topic that it publishes to.", metavar="TOPIC"
    )
    checkpoint_dir: Path | None = setting(
        None, "Instead: directory of its checkpoints, which are older."
    )
    tail: bool = setting(
        True,
        "Read the events themselves, too, so that a user's latest ones count at once.",
    )
    host: str = setting(
        "127.0.0.1",
        "Address to listen on; another than this machine's own needs a token.",
    )
    port: int = setting(
        8080, "Port to listen on; 0 for any free one.", at_least=0, at_most=65_535
    )
    token: str | None = setting(
        None, "Requests must carry it: `Authorization: Bearer TOKEN`."
    )
    exact_items: int = setting(
        200_000,
        "Up to this many items, all are scored at every request; above, an index of faiss.",
        at_least=0,
    )
    clicks: bool = setting(
        False,
        "Let visitors of the page write events to the topic by clicking on items.",
    )
    max_connections: int = setting(
        256, "Connections at a time; more are refused.", at_least=1
    )

    def problems(self) -> list[str]:
        found = super().problems()
        places = (self.from_dir, self.publish_topic, self.checkpoint_dir)
        if sum(place is not None for place in places) != 1:
            found.append(
                "from, publish-topic and checkpoint-dir: give one of them, as `streamer "
                "run` publishes or saves"
            )
        if self.publish_topic is not None and not self.bootstrap_servers:
            found.append("publish-topic needs bootstrap-servers")
        if self.token is not None and len(self.token) < MIN_TOKEN:
            found.append(
                f"token has {len(self.token)} characters: give at least {MIN_TOKEN}"
            )
        if self.token is None and not is_loopback(self.host):
            found.append(
                f"host is {self.host!r}: without a token only this machine may ask; give a token"
            )
        return found


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is for this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
