"""Searches plans around the policy's, if there is more time than one decoding takes.

An evolution strategy with one parent and one child: a plan is drawn around the best so far and
decoded roughly; if it is better, it becomes the parent. Steps get longer after successes and
shorter after failures, so that about one in five succeeds. At the end the best plans are decoded
finely. The result is never worse than the first plan decoded without a search.

Source: Rechenberg, Evolutionsstrategie, 1973 (the one-fifth rule).
"""

import numpy as np

from gradweave.common.stop import Stop
from gradweave.schedulers.greedy.decisions import (
    Decisions,
    graph_of,
    noise,
    proposal_of,
    rounded,
    simple_plans,
)
from gradweave.schedulers.greedy.decoding import (
    EFFORT_S,
    Decoded,
    Wiring,
    decode,
    grown_us,
    transfer_us,
)
from gradweave.schedulers.greedy.tuning import TUNING


def search(wiring: Wiring, first: Decisions, effort_s: float, seed: int, stop: Stop) -> Decoded:
    """The best of the plans found around a first plan.

    Args:
        wiring: the network and the gradient.
        first: the plan to begin with.
        effort_s: approximate limit in seconds of one core.
        seed: the seed of the draws.
        stop: ends the search sooner; the first plan is decoded in any case.
    """
    rng, graph, spread = np.random.default_rng(seed), graph_of(wiring), TUNING.spread
    for_fine = TUNING.fine_share * effort_s
    fine = min(TUNING.fine, max(1, int(for_fine / EFFORT_S)))
    fine_s = max(EFFORT_S, for_fine / fine)
    draw_s = max(TUNING.draw_s, rough_s(wiring))
    draws = int((effort_s - for_fine - EFFORT_S) / draw_s)
    if wiring.topology.num_servers > TUNING.trained_servers and draws < TUNING.least_draws:
        return decode(wiring, proposal_of(wiring, first), effort_s)
    best = decode(wiring, proposal_of(wiring, first), EFFORT_S)
    parent, least = first, np.inf
    plans: list[tuple[float, int, Decisions]] = []
    starts = [first, *simple_plans(wiring)][: max(1, round(TUNING.started * draws))]
    for number in range(draws):
        if stop.reached():
            return best
        drawn = number >= len(starts)
        if drawn:
            moved = zip(parent, noise(graph, rng), strict=True)
            plan = Decisions(*(rounded(a + spread * b) for a, b in moved))
        else:
            plan = starts[number]
        seconds = decode(wiring, proposal_of(wiring, plan), draw_s).seconds
        if drawn:
            # One success undoes four failures, so that lengths settle where one draw in five is
            # better.
            longer = TUNING.longer if seconds < least else TUNING.longer**-0.25
            spread = max(spread * longer, TUNING.least_spread)
        if seconds < least:
            parent = plan
        least = min(least, seconds)
        plans.append((seconds, number, plan))
    for _, _, plan in sorted(plans, key=lambda one: one[:2])[:fine]:
        if stop.reached():
            return best
        found = decode(wiring, proposal_of(wiring, plan), fine_s)
        if found.seconds < best.seconds:
            best = found
    return best


def rough_s(wiring: Wiring) -> float:
    """Minimum time of a draw: growing its trees, and simulating them four times."""
    transfers = TUNING.max_trees * len(wiring.stages) * (wiring.topology.num_servers - 1)
    return 1e-6 * (
        grown_us(wiring, TUNING.max_trees, TUNING.passes) + 4 * transfer_us(wiring) * transfers
    )
