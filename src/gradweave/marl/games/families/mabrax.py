"""MABrax: bodies whose limbs are agents.

MABrax, ``ant_4x2`` and others: one body; all limbs get its reward.
"""

from gradweave.marl.games.family import TEAM, Family, always, each
from gradweave.marl.games.reading import Reading

MABRAX = ("ant_4x2", "halfcheetah_6x1", "hopper_3x1", "humanoid_9|8", "walker2d_2x3")
FAMILIES = {
    "mabrax": Family(
        MABRAX,
        Reading(
            each,
            each,
            lambda game, state, info, done: info["truncation"] > 0,
            # Each observation is a part of the body's state; the critic should see all of it.
        ),
        TEAM,
        ("backend", "episode_length"),
        continuous=always,
    ),
}
