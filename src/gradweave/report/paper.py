"""Figures from Table 2 of the paper, for comparison. They were not measured here.

Source: Wei, Liu, Wu, "AllReduce Scheduling with Hierarchical Deep Reinforcement Learning", Table 2;
mean number of rounds.
"""

_NETWORKS = ("B3", "B4", "B5", "D4", "D5", "D6", "J10", "J15", "J20")

PAPER: dict[str, dict[str, float]] = {
    name: dict(zip(_NETWORKS, figures, strict=True))
    for name, figures in {
        "parameter_server": (16.8, 31.8, 51.6, 30.0, 48.4, 71.2, 23.0, 36.0, 51.2),
        "ring:steps=paper": (18.0, 64.0, 150.0, 47.1, 75.9, 112.3, 40.0, 69.6, 80.0),
    }.items()
}
"""The paper's mean rounds by the corresponding scheduler here, and network."""

PAPER_LEARNED: dict[str, float] = dict(
    zip(_NETWORKS, (10.2, 20.8, 34.7, 23.2, 33.8, 48.0, 22.7, 39.9, 62.2), strict=True)
)
"""The mean rounds of the paper's learned method."""

NOT_REPRODUCED = ("B4", "B5", "J10", "J15", "J20")
"""Networks on which the paper's ring figures cannot be reproduced, since its server order and its
graphs are unknown."""
