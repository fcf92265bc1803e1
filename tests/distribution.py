"""Which process runs which tests: all of a file go to one, so that what a module starts is started once.

xdist has `--dist loadgroup` for this, which passes groups on in the ids of tests; since 9.2, pytest ignores that.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

SPREAD = {
    "tests/benchmarks/test_scripts.py",
    "tests/faults/test_faults.py",
    "tests/simulation/test_simulation.py",
    "tests/test_pages.py",
}
"""Files whose tests are long and share nothing: any process may run each of them."""


class FileScheduling(LoadScopeScheduling):
    """A file goes to the next process that has nothing to do, and so does a test of a file of `SPREAD`."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return nodeid if file in SPREAD else file
