"""Cooks who share a kitchen.

``overcooked``, ``overcooked_v2``: 2 agents (in v2 the number that the layout has); the team gets 20
per soup, in v2 per soup of the recipe that was ordered. Shaped rewards are separate and not part of
returns.
"""

import dataclasses

from gradweave.marl.games.family import PLAIN, TEAM, Family, each, looked_up

SHAPED = dataclasses.replace(PLAIN, shaped=lambda game, info: each(game, info["shaped_reward"]))
FAMILIES = {
    "overcooked": Family(
        ("overcooked",),
        SHAPED,
        f"{TEAM}: 20 for each soup delivered",
        ("layout", "max_steps", "random_reset"),
        looked_up("layout", "overcooked", "overcooked_layouts"),
    ),
    "overcooked_v2": Family(
        ("overcooked_v2",),
        SHAPED,
        f"{TEAM}: 20 for each soup delivered of the recipe that is asked for",
        (
            *("layout", "max_steps", "agent_view_size", "random_reset", "random_agent_positions"),
            *("start_cooking_interaction", "negative_rewards", "sample_recipe_on_delivery"),
            "indicate_successful_delivery",
        ),
        looked_up("layout", "overcooked_v2.layouts", "overcooked_v2_layouts"),
    ),
}
