"""Gradweave's worlds whose agents share resources.

``job_scheduling``, ``matthew_effect``, ``manufacturing_plant``: each agent gets the rewards for the
resources that it takes.
"""

import dataclasses
from typing import Any

from gradweave.marl.games.family import MEAN, PLAIN, Family, always, team_per_agent
from gradweave.marl.games.reading import Game

RESOURCES = ("job_scheduling", "matthew_effect", "manufacturing_plant")
"""Families in which agents share resources, each with one game."""


def _make(id: str, options: dict[str, Any]) -> Game:
    from gradweave.marl.games.worlds import make_resources

    return make_resources(id, options)


FAMILIES = {
    name: Family(
        (name,),
        dataclasses.replace(PLAIN, utility=lambda game, state: game.utility(state)),
        f"{MEAN}, each for the resources that it takes",
        ("max_steps",),
        make=_make,
        teams=team_per_agent,
        opposed=always,
    )
    for name in RESOURCES
}
