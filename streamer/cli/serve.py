"""`streamer serve`: recommendations over HTTP, from what a trainer publishes."""

from __future__ import annotations

import logging

import click

from streamer.cli.options import GroupedCommand, settings_options
from streamer.serve.settings import ServeSettings


@click.command(cls=GroupedCommand)
@settings_options(ServeSettings)
@click.option("--descriptor", type=int, hidden=True)  # of a socket that listens already
def serve(settings: ServeSettings, descriptor: int | None) -> None:
    """Answer requests for recommendations with what a trainer has just learned.

    Start the trainer with --publish-dir DIR and the server with --from DIR, or both
    with --publish-topic; or serve its checkpoints with --checkpoint-dir. With the
    trainer's --bootstrap-servers and --topic, or its --data-dir, a user's latest events
    count at once.
    """
    from streamer.web.serving import serving

    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S"
    )
    with serving(settings, descriptor) as server:
        logging.getLogger("streamer").info("recommendations at %s", server.url)
        server.run()
