"""Which strategies earn their place: what `solve` finds without each of them, on 60 networks.

    python benchmarks/experiments/leave_one_out.py

The networks of `same_schedules`; for seconds those of up to 16 servers, with gradients of 1 and of
100 MB. Strategies begin in a fixed order, and the best result counts, so that to leave out one that
did not win changes nothing but the time. One that won is left out, and all others are run again.
Time is what a strategy's attempts took of all attempts: shares of one run, for the machine may be
busy. The rules by which `merged` chooses trees are compared by themselves.
"""

from collections import Counter
from collections.abc import Sequence

import gradweave as gw
from benchmarks.experiment import Case, Row, Rows, run
from benchmarks.experiments.same_schedules import SEED, networks
from gradweave.schedulers.scheduler import Scheduler
from gradweave.schedulers.solving.portfolio import DEFAULT, portfolio
from gradweave.schedulers.trees.merged import Merged

MOST_SERVERS = 16
SIZES = (1e6, 1e8)
RULES = ("most_loaded", "random", "deepest")


def tried_for(network: gw.Topology, size: float | None) -> Sequence[Scheduler]:
    """What `solve` tries by default."""
    if size is None:
        return DEFAULT
    default = portfolio(network, "all_reduce")
    return (*default.usual, *default.last_resort)


def solved(
    network: gw.Topology, size: float | None, schedulers: Sequence[Scheduler] | None = None
) -> gw.schedulers.Solution:
    objective = "rounds" if size is None else "seconds"
    return gw.solve(
        network, schedulers=schedulers, objective=objective, gradient_bytes=size, seed=SEED
    )


def name(scheduler: Scheduler) -> str:
    """Of the strategy, whatever its options."""
    return type(scheduler).__name__


def value(solution: gw.schedulers.Solution) -> float:
    return solution.rounds if solution.timing is None else solution.timing.seconds


def least(solution: gw.schedulers.Solution) -> float:
    return solution.bound.rounds if solution.timing is None else solution.timing.bound.seconds


def left_out(network: gw.Topology, size: float | None) -> Row:
    """With all, and without the one that won."""
    whole = solved(network, size)
    spent = sum(attempt.wall_s for attempt in whole.attempts)
    shares: Counter[str] = Counter()
    for attempt in whole.attempts:
        shares[name(attempt.scheduler)] += attempt.wall_s / spent
    winner = name(whole.scheduler)
    others = [one for one in tried_for(network, size) if name(one) != winner]
    without = solved(network, size, others)
    return {
        "least": least(whole),
        "value": value(whole),
        "winner": winner,
        "without_winner": value(without),
        "then_wins": name(without.scheduler),
        "share_of_time": {strategy: round(share, 4) for strategy, share in shares.items()},
    }


def by_rule(network: gw.Topology) -> Row:
    """Rounds of merged trees by each rule, with equally many tries."""
    return {
        "rounds_by_rule": {
            rule: Merged(tries=4, rule=rule).schedule(network, seed=SEED).rounds for rule in RULES
        },
    }


def cases() -> list[Case]:
    """Rules by themselves; then rounds, and seconds of small networks, by `bytes`."""
    return [
        {"place": place, "network": network} | asked
        for place, network in enumerate(networks())
        for asked in (
            {"compared": "rules"},
            {"compared": "strategies", "bytes": None},
            *({"compared": "strategies", "bytes": size} for size in SIZES),
        )
        if not asked.get("bytes") or network.num_servers <= MOST_SERVERS
    ]


def measure(network: gw.Topology, compared: str, place: int, bytes: float | None = None) -> Row:
    return by_rule(network) if compared == "rules" else left_out(network, bytes)


if __name__ == "__main__":
    run(
        __doc__,
        Rows(cases, measure),
        seeds=[SEED],
    )
