"""Checks the readers and the baselines on real logs, whose figures are known from other
code.

    python benchmarks/real_logs.py --data DIRECTORY

The directory holds RecBole files `gowalla.inter.gz` (the paper's cut, no times),
`gowalla-time.inter.gz`, `tmall.inter.gz` and `ml-100k.{inter,item,user}.gz`, and
`tmall_user_log_format1.sample.csv.gz` in Tmall's own columns. Those that are missing
are left out. The script prints two tables, and exits with 1 if a figure is wrong.

Baselines are hit rates at 10 over the second half of the stream, on all events and on
those new to their user. What popularity and last items are leaves nothing open.
Co-visitation leaves open how ties are broken and whether a pair counts in both
directions, so its figures are met less closely. So are those of counting, whose weights
by time differ.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from streamer.replay.datasets import open_log
from streamer.replay.evaluation.prequential import PrequentialRun
from streamer.replay.evaluation.settings import PrequentialSettings

SIZES = {
    "gowalla.inter.gz": ("recbole", 29_858, 40_988, 1_027_464),
    "gowalla-time.inter.gz": ("recbole", 13_998, 61_503, 153_563),
    "tmall.inter.gz": ("recbole", 32_542, 13_714, 217_620),
    "tmall_user_log_format1.sample.csv.gz": ("tmall", 358, 4_861, 10_000),
    "ml-100k.inter.gz": ("recbole", 943, 1_682, 100_000),
}
"""Format, users, items and events."""

HIT_RATES = {
    "gowalla-time.inter.gz": {
        "most-popular": (0.011, 0.004),
        "recently-popular": (0.018, 0.006),
        "last-items": (0.335, 0.0),
        "co-visitation": (0.324, 0.036),
        "counting": (0.347, 0.0475),
    },
    "tmall.inter.gz": {
        "most-popular": (0.001, 0.000),
        "recently-popular": (0.026, 0.018),
        "last-items": (0.213, 0.0),
        "co-visitation": (0.274, 0.131),
        "counting": (0.299, 0.150),
    },
    "ml-100k.inter.gz": {
        "most-popular": (0.047, 0.078),
        "recently-popular": (0.049, 0.075),
        "last-items": (0.000, 0.0),
        "co-visitation": (0.133, 0.202),
        "counting": (0.141, 0.214),
    },
}
"""On all events, and on those new to their user."""
TOLERANCE = {"co-visitation": 0.005, "counting": 0.003}


def check_sizes(data: Path) -> bool:
    """Print what each log holds; whether all is as it should be."""
    print(
        f"{'log':38} {'format':8} {'users':>8} {'items':>8} {'events':>10} {'malformed':>10}"
    )
    well = True
    for name, wanted in SIZES.items():
        if not (data / name).exists():
            print(f"{name:38} is not there")
            continue
        with open_log(data / name) as log:
            about = log.describe()
        found = (about["name"], about["users"], about["items"], about["events"])
        right = found == wanted and not about["malformed"]
        well &= right
        print(
            f"{name:38} {found[0]:8} {found[1]:8,} {found[2]:8,} {found[3]:10,} {about['malformed']:10,}"
            f"{'' if right else f'   WRONG, it has {wanted}'}"
        )
    return well


def check_baselines(data: Path) -> bool:
    """Print the hit rates of each baseline; whether they are those that are known."""
    print(f"\n{'log':24} {'baseline':18} {'HR@10 all / new':>16} {'known':>16}")
    well = True
    for name, wanted in HIT_RATES.items():
        if not (data / name).exists():
            continue
        for baseline, found in hit_rates(data / name).items():
            pairs = zip(found, wanted[baseline], strict=True)
            right = all(
                abs(here - known) <= TOLERANCE.get(baseline, 0.001)
                for here, known in pairs
            )
            well &= right
            print(
                f"{name:24} {baseline:18} {_pair(found):>16} {_pair(wanted[baseline]):>16}{'' if right else '   WRONG'}"
            )
    return well


def hit_rates(path: Path) -> dict[str, tuple[float, float]]:
    """Of each baseline, beside a model that is as small as can be: the baselines do not
    depend on it.
    """
    settings = PrequentialSettings(
        dim=1, cache_size=32, hash_slots=64, rerank=False, ks=(10,)
    )
    with open_log(path) as log:
        result = PrequentialRun(
            log.batches(pass_seed=log.seed), len(log), settings
        ).run()
    slices = ("second-half/all", "second-half/new")
    return {
        baseline: tuple(
            result.value("hr", 10, slice_, baseline) or 0.0 for slice_ in slices
        )
        for baseline in HIT_RATES[path.name]
    }


def _pair(rates: tuple[float, float]) -> str:
    return f"{rates[0]:.3f} / {rates[1]:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, required=True, help="directory of the logs"
    )
    data = parser.parse_args().data
    if not any((data / name).exists() for name in SIZES):
        parser.error(f"there is none of these in {data}: {', '.join(SIZES)}")
    raise SystemExit(not all([check_sizes(data), check_baselines(data)]))


if __name__ == "__main__":
    main()
