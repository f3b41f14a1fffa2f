"""Gradweave's scheduling, a game of workloads that share a network's links.

``gradweave:NETWORK``: the return is minus the number of rounds, divided by its lower bound.
"""

from typing import Any

from gradweave.marl.games.family import MEAN, Family, each
from gradweave.marl.games.reading import Game, Reading

OWN = "gradweave:"
"""Prefix of the ids of Gradweave's scheduling; a specification of a network follows."""


def _make(spec: str, options: dict[str, Any]) -> Game:
    from gradweave.environment.jaxmarl_adapter import JaxMARLScheduling
    from gradweave.environment.problem import Instance
    from gradweave.environment.rewards import Rewards
    from gradweave.topology.spec import from_spec

    rewards = Rewards() if options.pop("paper_rewards", False) else Rewards.ours()
    team = bool(options.pop("team", False))
    instance = Instance(from_spec(spec.removeprefix(OWN)), **options)
    return JaxMARLScheduling(instance, rewards=rewards, team=team)


FAMILIES = {
    "scheduling": Family(
        (f"{OWN}NETWORK",),
        Reading(
            each,
            each,
            lambda game, state, info, done: info["truncated"][0],
            available=lambda game, state: each(game, game.get_avail_actions(state)),
        ),
        f"{MEAN}: minus the rounds",
        ("collective", "trees", "team", "paper_rewards"),
        make=_make,
    ),
}
