"""Three trainers of a group that are ended, killed or paused in turn: how many of the events written are trained?

    python benchmarks/group_chaos.py --bootstrap-servers broker:9092 --signal KILL --rounds 8 --down 12

Each trainer's count is that of its last checkpoint, so the sum is what the three models have learned.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic

from streamer.event import encode

TINY = ["--dim", "8", "--batch-size", "256", "--cache-size", "64", "--hash-slots", "64", "--threads", "1", "--json"]


def write(servers: str, topic: str, rate: int, stop: threading.Event, written: list[int]) -> None:
    producer, rng = KafkaProducer(bootstrap_servers=servers, linger_ms=20), random.Random(1)
    due = time.monotonic()
    while not stop.wait(max(0.0, due - time.monotonic())):
        due += 0.1
        for _ in range(rate // 10):
            producer.send(topic, encode(f"u{rng.randrange(1000)}", f"i{rng.randrange(500)}", time.time()))
        written[0] += rate // 10
    producer.flush(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--signal", choices=["TERM", "KILL", "STOP"], default="TERM")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument(
        "--down", type=float, default=10.0, help="seconds until a trainer is started or continued again"
    )
    parser.add_argument("--rate", type=int, default=3_000, help="events a second")
    parser.add_argument("--kafka", action="append", default=[], metavar="NAME=VALUE", help="as of streamer run")
    given = parser.parse_args()
    topic, directory = f"chaos-{uuid.uuid4().hex[:8]}", Path(tempfile.mkdtemp(prefix="streamer-chaos-"))
    admin = KafkaAdminClient(bootstrap_servers=given.bootstrap_servers)
    admin.create_topics([NewTopic(topic, 6, 1)])
    options = [part for setting in given.kafka for part in ("--kafka", setting)]

    def start(name: int) -> subprocess.Popen[bytes]:
        run = ["run", "--bootstrap-servers", given.bootstrap_servers, "--topic", topic, "--group-id", topic, *options]
        run += [*TINY, "--checkpoint-every", "5", "--checkpoint-dir", str(directory / str(name))]
        log = (directory / f"{name}.log").open("ab")
        code = "import sys; from streamer.cli.main import main; main()"
        return subprocess.Popen([sys.executable, "-c", code, *run], stdout=subprocess.PIPE, stderr=log)

    trainers = [start(name) for name in range(3)]
    time.sleep(15)
    stop, written = threading.Event(), [0]
    writer = threading.Thread(target=write, args=(given.bootstrap_servers, topic, given.rate, stop, written))
    writer.start()
    for turn in range(given.rounds):
        time.sleep(10)
        name = turn % 3
        os.kill(trainers[name].pid, signal.Signals[f"SIG{given.signal}"])
        if given.signal == "STOP":
            time.sleep(given.down)
            os.kill(trainers[name].pid, signal.SIGCONT)
        else:
            trainers[name].wait()
            time.sleep(given.down)
            trainers[name] = start(name)
    stop.set()
    writer.join()
    while sum(offset.offset for offset in admin.list_group_offsets(topic)[topic].values()) < written[0]:
        time.sleep(1)
    for trainer in trainers:
        trainer.terminate()
    summaries: list[dict[str, Any]] = [json.loads(trainer.communicate()[0]) for trainer in trainers]
    trained = sum(summary["consumed"] for summary in summaries)
    print(f"{given.rounds} x SIG{given.signal}: {trained:,} trained of {written[0]:,} written; logs in {directory}")


if __name__ == "__main__":
    main()
