"""Gradweave's worlds whose agents share what there is.

``job_scheduling``, ``matthew_effect``, ``manufacturing_plant``: agents who share what there is, and
each get what they take.
"""

import dataclasses
from typing import Any

from gradweave.marl.games.family import MEAN, PLAIN, Family, always, team_per_agent
from gradweave.marl.games.reading import Game

RESOURCES = ("job_scheduling", "matthew_effect", "manufacturing_plant")
"""Families of games, of one each, in which agents share what there is."""


def _make(id: str, options: dict[str, Any]) -> Game:
    from gradweave.marl.games.worlds import make_resources

    return make_resources(id, options)


FAMILIES = {
    name: Family(
        (name,),
        dataclasses.replace(PLAIN, utility=lambda game, state: game.utility(state)),
        f"{MEAN}, who each get what they take",
        ("max_steps",),
        make=_make,
        teams=team_per_agent,
        opposed=always,
    )
    for name in RESOURCES
}
