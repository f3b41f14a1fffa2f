"""Gradweave's grid worlds, whose events can move reward machines.

``generator``, ``laboratory``, ``buttons``, ``rendezvous``: agents on a grid, which all get 1 when
the team's task is done; with a reward machine (``machine``), each gets 1 when its part is done.
"""

from typing import Any

from gradweave.marl.games.family import TEAM, TOLD, Family
from gradweave.marl.games.reading import Game

WORLDS = "worlds"
"""The family of games whose events can move reward machines."""


def _make(id: str, options: dict[str, Any]) -> Game:
    from gradweave.marl.games.worlds import make

    return make(id, options)


FAMILIES = {
    WORLDS: Family(
        ("generator", "laboratory", "buttons", "rendezvous"),
        TOLD,
        f"{TEAM}: 1 once the task is done; with a machine, 1 to each agent whose part is done",
        ("agents", "max_steps", "machine", "doors"),
        make=_make,
    ),
}
