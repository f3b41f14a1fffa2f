"""Schedules that need not make sense as files, and what the checker of its own says of them."""

from functools import lru_cache
from typing import Any

import gradweave as gw
import gradweave_check as checker
from gradweave.schedules.file import demand_to_object
from gradweave.topology.formats.object import topology_to_object
from tests.verifier.oracle import Draft


def accepted(draft: Draft, adding: bool) -> bool:
    """Whether the checker finds a schedule valid."""
    try:
        return checker.check(as_file(draft), adding=adding)[0][0]
    except (checker.Wrong, *checker.BROKEN):
        return False


@lru_cache(maxsize=4)
def _network(topology: gw.topology.Topology) -> dict[str, Any]:
    return topology_to_object(topology)


def as_file(draft: Draft) -> dict[str, Any]:
    """A schedule as its file has it, whether or not it makes sense."""
    names = ("round", "piece", "source", "target", "op", "route")
    columns = {name: [getattr(row, name) for row in draft.rows] for name in names}
    columns["op"] = [("reduce", "copy")[op] for op in columns["op"]]
    asked = draft.asked
    more = {} if asked is None else {"demand": demand_to_object(asked.demand())}
    more |= {} if asked is None else {"block": list(asked.block)}
    return {
        "format": "gradweave-schedule",
        "version": 1 if asked is None else 3,
        "collective": draft.collective,
        "topology": _network(draft.topology),
        "pieces": len(draft.root),
        "root": list(draft.root),
        "rounds": 1 + max(row.round for row in draft.rows) if draft.rows else 0,
        "transfers": {name: list(map(_plain, column)) for name, column in columns.items()},
        **more,
    }


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
