"""Whether drawing without replacement could help `learned`: how many of its episodes are alike.

python benchmarks/experiments/learned_draws.py

On the two of 150 networks whose bound the best of 64 episodes of the trained policies missed that
did not backtrack; by these and by the rule, at several temperatures, and with backtracking.
"""

import collections
import time

from benchmarks.command_line import parser_of
from benchmarks.random_networks import well_connected_network
from benchmarks.record import record
from gradweave.environment.instance import Instance
from gradweave.learning.episodes.compiled_instance import CompiledInstance
from gradweave.learning.episodes.episode import play
from gradweave.learning.episodes.tuning import RULE
from gradweave.learning.policies.policy import read_weights
from gradweave.schedulers.learned import ROUTES

NETWORKS = (3, 13)
"""Seeds of well connected networks: of 18 and of 10 servers."""
TEMPERATURES = (0.0, 0.3, 1.0, 2.0)
EPISODES = 400


def rows_of(seed: int, policy: str) -> list[dict]:
    weights = RULE if policy == "rule" else read_weights()
    instance = Instance(well_connected_network(seed), "all_gather", "grown", routes=ROUTES)
    problem = CompiledInstance.of(instance)
    play(problem, weights, seed=0, repair=True)  # compiles
    rows = []
    for temperature in TEMPERATURES:
        for returns in (False, True):
            began = time.process_time()
            played = [
                play(
                    problem,
                    weights,
                    seed=(seed, number),
                    temperature=temperature,
                    repair=True,
                    backtracks=returns,
                )
                for number in range(EPISODES)
            ]
            each_ms = 1e3 * (time.process_time() - began) / EPISODES
            distinct = {(e.sent_round.tobytes(), e.sent_hop.tobytes()) for e in played}
            rounds = collections.Counter(episode.rounds for episode in played)
            rows.append(
                {
                    "network": seed,
                    "policy": policy,
                    "servers": instance.topology.num_servers,
                    "bound": instance.bound,
                    "temperature": temperature,
                    "returns": returns,
                    "episodes": EPISODES,
                    "milliseconds": round(each_ms, 1),
                    "distinct": len(distinct),
                    "at_bound": rounds[instance.bound],
                    "rounds": dict(sorted(rounds.items())),
                }
            )
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser_of(__doc__).parse_args()
    parts = ((seed, policy) for policy in ("trained", "rule") for seed in NETWORKS)
    record("learned_draws", rows=[row for part in parts for row in rows_of(*part)])


if __name__ == "__main__":
    main()
