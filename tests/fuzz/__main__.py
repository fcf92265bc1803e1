"""`python -m fuzz [TARGET ...] [--scale 0.1] [--seed 1]`: try inputs; what finds something is kept in `corpus/`."""

from __future__ import annotations

import argparse
import logging
import random
import resource
import sys
import time

from fuzz.run import fuzz
from fuzz.targets import TARGETS

MAX_GROWTH_KB = 300_000


def main() -> None:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", help="by default all")
    parser.add_argument("--scale", type=float, default=1.0, help="how many of the usual inputs")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    given = parser.parse_args()
    logging.disable()
    total = 0
    failed = False
    for name in given.targets or TARGETS:
        *_, usual = TARGETS[name]
        count = max(1, round(usual * given.scale))
        before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.monotonic()
        problems = fuzz(name, count, given.seed)
        grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
        total += count
        failed |= bool(problems) or grown_kb > MAX_GROWTH_KB
        seconds = time.monotonic() - began
        print(f"{name}: {count:,} inputs in {seconds:.0f} s, memory grew by {grown_kb / 1000:.0f} MB", flush=True)
        for problem in problems:
            print(f"  {problem}", flush=True)
    print(f"{total:,} inputs, seed {given.seed}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
