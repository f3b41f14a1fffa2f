"""Files go whole to one worker, the dearest first."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("xdist")

from tests import by_file
from tests.by_file import ByFile, cost_s
from tests.costs import Cost

COSTS = {
    "tests/a.py::test_cheap": Cost(0.0, 0.1, 1),
    "tests/b.py::test_table": Cost(2.0, 0.5, 9),
}
NAMES = [
    "tests/a.py::test_cheap",
    "tests/b.py::test_table[1::2]",
    "tests/many.py::test_x",
    "tests/b.py::test_table[2]",
    "tests/many_more.py::test_y",
    "src/c.py::c.f",
]


class Worker:
    """Takes what it is sent."""

    gateway = SimpleNamespace(id="worker")

    def __init__(self) -> None:
        self.sent: list[list[str]] = []
        self.shutting_down = False

    def send_runtest_some(self, indices: list[int]) -> None:
        self.sent.append([NAMES[index] for index in indices])

    def shutdown(self) -> None:
        self.shutting_down = True


def test_files_stay_whole_and_the_dearest_come_first(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(by_file, "recorded", lambda: COSTS)
    monkeypatch.setattr(pytestconfig.option, "tx", ["2*popen"])
    scheduler = ByFile(pytestconfig, None, lambda path: Path(path).name.startswith("many"))
    workers = cast(Any, [Worker(), Worker()])
    for worker in workers:
        scheduler.add_node(worker)
        scheduler.add_node_collection(worker, NAMES)
    scheduler.schedule()
    first, second = (worker.sent for worker in workers)
    assert first[0] == ["tests/many.py::test_x", "tests/many_more.py::test_y"]
    assert second[0] == ["tests/b.py::test_table[1::2]", "tests/b.py::test_table[2]"]
    assert [first[1], second[1]] == [["tests/a.py::test_cheap"], ["src/c.py::c.f"]]


def test_what_is_shared_counts_once():
    assert cost_s(NAMES, COSTS) == pytest.approx(0.1 + 2.0 + 2 * 0.5)
