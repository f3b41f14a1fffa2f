"""Constants of `learned:policy=rule`: the weight of each feature, for all networks."""

import numpy as np

from gradweave.learning.episodes import features as table
from gradweave.learning.episodes.rule import RuleWeights

HOP = {
    table.SLACK: -28.5977,
    table.NO_SLACK: -3.79535,
    table.LINK_SLACK: -49.6993,
    table.NO_LINK_SLACK: -29.8859,
    table.CONTENTION: -48.8041,
    table.CONTENTION_AT_RECEIVER: 3.76158,
    table.CONTENTION_AT_SENDER: -46.9079,
    table.READY: 0.548674,
    table.TAKEN: -1.4966,
    table.LOAD: -2.97394,
    table.LENGTH: -11.5342,
    table.CHAIN_SLACK: -24.1595,
}
"""Weights of a hop's features."""
PIECE = {
    table.NEAR: -27.1757,
    table.NEAR_LOGARITHM: -24.9478,
    table.HELD: -37.5206,
    table.LACK_OF_RECEIVER: 9.85397,
    table.LACK_OF_SENDER: 0.504841,
    table.PIECE_CHAIN_SLACK: -18.6284,
    table.AWAITED: 4.98369,
}
"""Weights of a tree's features."""
RULE = RuleWeights(
    hop=np.array([HOP[feature] for feature in range(table.HOP_FEATURES)], np.float32),
    piece=np.array([PIECE[feature] for feature in range(table.PIECE_FEATURES)], np.float32),
)
"""Found by CMA-ES on the exercises of `gradweave.learning`, the best of three searches:
benchmarks/experiments/learned_ablation.py of commit 4c2bd757, seed 1. Only differences of scores
matter: the larger all weights, the closer draws are to best actions."""
