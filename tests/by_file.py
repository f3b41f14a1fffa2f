"""Which worker runs which tests: a file's stay together, and the dearest files come first.

What a file's tests share — its fixtures, what it keeps in `functools.cache`, programs that JAX has
compiled — is made once that way. Where idle workers take single tests from others, it is made again
by each. The last files are cheap ones, so that workers end together.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.costs import Cost, function_of, path_of, recorded

TOGETHER = "many processes"
"""One worker has all files that start a process per server, from the beginning to the end."""


class ByFile(LoadScopeScheduling):
    """Gives each worker a file at a time."""

    def __init__(
        self, config: pytest.Config, log: Any, starts_many_processes: Callable[[Path], bool]
    ) -> None:
        super().__init__(config, log)
        self._starts_many_processes = starts_many_processes
        self._costs = recorded()

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return TOGETHER if self._starts_many_processes(path_of(nodeid)) else file

    def _assign_work_unit(self, node: Any) -> None:
        dearest = max(self.workqueue, key=self._cost_s)
        self.workqueue.move_to_end(dearest, last=False)
        super()._assign_work_unit(node)

    def _cost_s(self, unit: str) -> float:
        return math.inf if unit == TOGETHER else cost_s(self.workqueue[unit], self._costs)


def cost_s(names: Iterable[str], costs: Mapping[str, Cost]) -> float:
    """What some tests cost together, by what is recorded; others cost nothing."""
    cases = defaultdict[str, int](int)
    for name in names:
        cases[function_of(name)] += 1
    known = ((costs[name], count) for name, count in cases.items() if name in costs)
    return sum(cost.shared_s + count * cost.case_s for cost, count in known)
