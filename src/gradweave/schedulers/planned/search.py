"""Plans drawn around the policy's, where there is more time than one decoding takes.

An evolution strategy of one parent and one child: a plan is drawn around the best so far and
decoded roughly; where it is better, it is the parent from then on. Steps get longer after successes
and shorter after failures, so that about one in five succeeds. At last the best are decoded finely.

Source: Rechenberg, Evolutionsstrategie, 1973 (the one-fifth rule).
"""

import numpy as np

from gradweave.schedulers.planned.decoding import Decoded, Wiring, decode, grown_us
from gradweave.schedulers.planned.policy import Decisions, graph_of, noise, proposal_of, rounded
from gradweave.schedulers.planned.tuning import TUNING
from gradweave.stop import Stop


def search(wiring: Wiring, first: Decisions, effort_s: float, seed: int, stop: Stop) -> Decoded:
    """The best of the plans that are found around a first one.

    Args:
        wiring: the network and the gradient.
        first: the plan to begin with.
        effort_s: seconds of one core, about, that this may take.
        seed: of the draws.
        stop: ends it sooner; one plan is decoded in any case.
    """
    rng, graph, spread = np.random.default_rng(seed), graph_of(wiring), TUNING.spread
    fine_s = TUNING.fine_share * effort_s / TUNING.fine
    # On large networks trees alone take longer than a draw should.
    draw_s = max(TUNING.draw_s, 1e-6 * grown_us(wiring, TUNING.max_trees))
    draws = max(1, int((1 - TUNING.fine_share) * effort_s / draw_s))
    parent, least = first, np.inf
    plans: list[tuple[float, int, Decisions]] = []
    for number in range(draws):
        plan = first
        if number:
            moved = zip(parent, noise(graph, rng), strict=True)
            plan = Decisions(*(rounded(a + spread * b) for a, b in moved))
        seconds = decode(wiring, proposal_of(wiring, plan), draw_s).seconds
        if plans and seconds < least:
            parent, spread = plan, spread * TUNING.longer
        elif plans:
            spread = max(spread * TUNING.longer**-0.25, TUNING.least_spread)
        least = min(least, seconds)
        plans.append((seconds, number, plan))
        if stop.reached():
            break
    best: Decoded | None = None
    for _, _, plan in sorted(plans, key=lambda one: one[:2])[: TUNING.fine]:
        found = decode(wiring, proposal_of(wiring, plan), fine_s)
        if best is None or found.seconds < best.seconds:
            best = found
        if stop.reached():
            break
    assert best is not None
    return best
