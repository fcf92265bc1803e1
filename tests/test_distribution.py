"""Which process runs which tests."""

from __future__ import annotations

from types import SimpleNamespace

from distribution import SPREAD, FileScheduling


class Worker:
    """Takes tests, and remembers which."""

    gateway = SimpleNamespace(id="gw")
    shutting_down = False

    def __init__(self) -> None:
        self.taken: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.taken += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def test_all_tests_of_a_file_go_to_one_process_and_those_of_a_spread_one_to_any():
    spread = min(SPREAD)
    tests = ["tests/a.py::One::test", "tests/a.py::test", "tests/a.py::test[@]", f"{spread}::a", f"{spread}::b"]
    options = {"tx": ["popen", "popen"]}
    option = SimpleNamespace(loadscopereorder=False)
    scheduling = FileScheduling(SimpleNamespace(getvalue=options.get, option=option))
    one, other = Worker(), Worker()
    for worker in (one, other):
        scheduling.add_node(worker)
        scheduling.add_node_collection(worker, tests)
    scheduling.schedule()
    assert (one.taken, other.taken) == ([0, 1, 2], [3, 4])
