"""The learned policies' round, compiled: its features, its message passing, its draws.

The numbers are those of `learning.features` and `learning.networks`, which say what each means;
tests hold the two together. While workloads are drawn, what one of them changes is kept up to date
where it changes, so that the next one costs no more on a large network than its surroundings do.

Functions take arrays one by one: compiling a function that is handed tuples of them takes minutes.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradweave.compiled import kernel

LOWEST, HIGHEST, UNIT = -4.0, 8.0, 4.0
PLENTY = 1e6
ROUNDING = 1e-4
"""Slack of links below this is none: sums of shares come out exact in one order and not another."""
TIE = 1e-4
"""Noise between equals where the best is taken."""

Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]
Numbers = NDArray[np.float32]


@kernel(inner=True)
def _cut(slack: Any) -> Any:
    return min(max(slack, LOWEST), HIGHEST) / UNIT


@kernel
def enter_stage(
    giver: Integers,
    taker: Integers,
    there: Booleans,
    under_way: Booleans,
    pending: Booleans,
    near: Integers,
    lack: Integers,
    held: Integers,
) -> None:
    """Counts, for each server and piece, the neighbours that hold it and those that lack it.

    Args:
        giver: [H] of each hop.
        taker: [H] of each hop.
        there: [H] hops of the stage.
        under_way: [Q] its trees.
        pending: [N, Q] transfers not sent.
        near: [N, Q] set to the hops into a server from one that holds the piece.
        lack: [N, Q] set to the hops out of a server to one that lacks it.
        held: [Q] set to the servers that hold it.
    """
    servers, trees = pending.shape
    near[:] = 0
    lack[:] = 0
    held[:] = servers
    for hop in range(len(giver)):
        if there[hop]:
            for tree in range(trees):
                near[taker[hop], tree] += not (under_way[tree] and pending[giver[hop], tree])
                lack[giver[hop], tree] += under_way[tree] and pending[taker[hop], tree]
    for server in range(servers):
        for tree in range(trees):
            held[tree] -= under_way[tree] and pending[server, tree]


@kernel
def hop_counts(
    giver: Integers,
    taker: Integers,
    there: Booleans,
    allowed: Booleans,
    at_giver: Booleans,
    height: Integers,
    under_way: Booleans,
    waiting: Integers,
    pending: Booleans,
) -> tuple[Integers, Integers, Integers, Booleans, Booleans]:
    """What each hop can carry, now and later.

    Returns:
        [H] workloads to come, those that are ready, the rounds of the longest chain that one of
        them begins; [N, Q] transfers that can be made now; [Q] trees with one.
    """
    servers, trees = pending.shape
    hops = len(giver)
    left, ready = np.zeros(hops, np.int64), np.zeros(hops, np.int64)
    chain = np.zeros(hops, np.int64)
    cells, candidates = np.zeros((servers, trees), np.bool_), np.zeros(trees, np.bool_)
    for hop in range(hops):
        if not there[hop]:
            continue
        for tree in range(trees):
            key = giver[hop] if at_giver[tree] else taker[hop]
            if under_way[tree] and allowed[hop, tree] and pending[key, tree]:
                left[hop] += 1
                if waiting[giver[hop], tree] == 0:
                    ready[hop] += 1
                    candidates[tree] = True
                    cells[key, tree] = True
                    chain[hop] = max(chain[hop], height[key, tree])
    return left, ready, chain, cells, candidates


@kernel
def link_features(
    links: Integers,
    first_link: Integers,
    capacity: Integers,
    there: Booleans,
    wanted: NDArray[np.float64],
    ready: Integers,
    rounds_left: float,
) -> tuple[Numbers, Numbers]:
    """[L, 3] features of the links, and [H] the slack of each route's tightest link.

    Args:
        links: of the hops' routes.
        first_link: [H+1] where each hop's start.
        capacity: [L] of each link.
        there: [H] hops of the stage.
        wanted: [H] transfers to come over each hop.
        ready: [H] workloads that are ready on it.
        rounds_left: until the stage's bound.
    """
    demand, contenders = np.zeros(len(capacity)), np.zeros(len(capacity))
    features = np.zeros((len(capacity), 3), np.float32)
    slack = np.full(len(there), PLENTY, np.float32)
    for hop in range(len(there)):
        if there[hop]:
            for i in range(first_link[hop], first_link[hop + 1]):
                demand[links[i]] += wanted[hop]
                contenders[links[i]] += ready[hop]
                features[links[i], 2] = 1.0
    for link in range(len(capacity)):
        if features[link, 2] > 0:
            room = max(capacity[link], 1)
            features[link, 0] = min(demand[link] / (rounds_left * room), 2.0)
            features[link, 1] = np.log1p(contenders[link] / room) / 4.0
    for hop in range(len(there)):
        for i in range(first_link[hop], first_link[hop + 1]):
            if features[links[i], 2] > 0:
                spare = rounds_left * capacity[links[i]] - demand[links[i]]
                slack[hop] = min(slack[hop], spare)
    return features, slack


@kernel
def neighbours_want(giver: Integers, taker: Integers, there: Booleans, lacks: Booleans) -> Booleans:
    """[N, Q] whether a server has a hop to one that lacks the tree."""
    want = np.zeros_like(lacks)
    for hop in range(len(giver)):
        if there[hop]:
            for tree in range(lacks.shape[1]):
                want[giver[hop], tree] |= lacks[taker[hop], tree]
    return want


@kernel(fastmath=True)
def mean_over_hops(
    x: Numbers, source: Integers, target: Integers, there: Booleans, rows: int
) -> Numbers:
    """[rows, D] the mean of what each target hears from its sources, hop by hop.

    Args:
        x: [., D] what is said.
        source: [H] row of `x` that a hop carries.
        target: [H] row that hears it.
        there: [H] hops that count.
        rows: of the result.
    """
    width = x.shape[1]
    out, number = np.zeros((rows, width), np.float32), np.zeros(rows, np.float32)
    for hop in range(len(source)):
        if there[hop]:
            number[target[hop]] += 1
            for j in range(width):
                out[target[hop], j] += x[source[hop], j]
    for row in range(rows):
        scale = np.float32(1) / max(number[row], np.float32(1))
        for j in range(width):
            out[row, j] *= scale
    return out


@kernel(fastmath=True)
def mean_where(mask: Booleans, x: Numbers) -> Numbers:
    """[A, D] the mean of the rows of `x` where each row of the mask says so.

    Args:
        mask: [A, B].
        x: [B, D].
    """
    width = x.shape[1]
    out = np.zeros((mask.shape[0], width), np.float32)
    for row in range(mask.shape[0]):
        number = np.float32(0)
        for other in range(mask.shape[1]):
            if mask[row, other]:
                number += 1
                for j in range(width):
                    out[row, j] += x[other, j]
        for j in range(width):
            out[row, j] /= max(number, np.float32(1))
    return out


@kernel(fastmath=True)
def times(x: Numbers, y: Numbers) -> Numbers:
    """[A, C] the product of [A, B] and [B, C]. A library's threads would wait for one another."""
    out = np.zeros((x.shape[0], y.shape[1]), np.float32)
    for row in range(x.shape[0]):
        for i in range(x.shape[1]):
            for j in range(y.shape[1]):
                out[row, j] += x[row, i] * y[i, j]
    return out


@kernel(fastmath=True)
def add_told(
    view: Numbers, heard: Numbers, weights: Numbers, bias: Numbers, mask: Booleans
) -> None:
    """Adds to each row that is there what it makes of what it heard, where that is positive.

    Args:
        view: [A, D], changed.
        heard: [M, A, D] what each row heard, by kind.
        weights: [M, D, D] what is made of it.
        bias: [D].
        mask: [A] rows that are there.
    """
    width = view.shape[1]
    made = np.empty(width, np.float32)
    for row in range(view.shape[0]):
        if not mask[row]:
            continue
        for j in range(width):
            made[j] = bias[j]
        for kind in range(heard.shape[0]):
            for i in range(width):
                value = heard[kind, row, i]
                for j in range(width):
                    made[j] += value * weights[kind, i, j]
        for j in range(width):
            view[row, j] += max(made[j], np.float32(0))


@kernel(inner=True)
def _log(number: Any) -> Any:
    return np.log(max(number, 1e-3))


@kernel(inner=True)
def _noise(temperature: float) -> float:
    """What is added to a score before the highest is taken."""
    if temperature == 0:
        return TIE * np.random.random()
    return -temperature * np.log(-np.log(np.random.random() + 1e-300) + 1e-300)


@kernel(inner=True)
def _queue_up(hops: Integers, fits: Booleans, queued: Booleans, queue: Integers, waits: int) -> int:
    """Queues the hops that can be used and do not wait already; how many wait then."""
    for hop in hops:
        if fits[hop] and not queued[hop]:
            queued[hop] = True
            queue[waits] = hop
            waits += 1
    return waits


@kernel
def draw_round(
    giver: Integers,
    taker: Integers,
    giver_link: Integers,
    taker_link: Integers,
    links: Integers,
    first_link: Integers,
    hops_on: Integers,
    first_on: Integers,
    hops_from: Integers,
    first_from: Integers,
    hops_into: Integers,
    first_into: Integers,
    capacity: Integers,
    intake: Integers,
    allowed: Booleans,
    at_giver: Booleans,
    height: Integers,
    grown: bool,
    there: Booleans,
    selected: Booleans,
    waiting: Integers,
    pending: Booleans,
    arriving: Integers,
    to_come: NDArray[np.float64],
    near: Integers,
    lack: Integers,
    held: Integers,
    hop_weights: Numbers,
    piece_weights: Numbers,
    match: Numbers,
    link_slack: Numbers,
    chain: Integers,
    rounds_left: float,
    temperature: float,
    seed: int,
    at: int,
    sent_round: Integers,
    sent_hop: Integers,
) -> int:
    """Draws and sends a round's workloads; how many there were.

    Args:
        giver: [H] of each hop.
        taker: [H] of each hop.
        giver_link: [H] link of each hop's route at its giver's end.
        taker_link: [H] link at its taker's end.
        links: of the hops' routes.
        first_link: [H+1] where each hop's start.
        hops_on: hops over each link.
        first_on: [L+1] where each link's start.
        hops_from: hops out of each server.
        first_from: [N+1] where each server's start.
        hops_into: hops into each server.
        first_into: [N+1] where each server's start.
        capacity: [L] of each link direction.
        intake: [N] transfers that a server can take in a round.
        allowed: [H, Q] workloads that exist.
        at_giver: [Q] as in `Instance.arrays`.
        height: [N, Q] as in `Instance.arrays`.
        grown: whether trees grow.
        there: [H] hops of the stage.
        selected: [Q] trees whose workloads may be sent.
        waiting: [N, Q] transfers that a server waits for.
        pending: [N, Q] transfers not sent; changed.
        arriving: [N, Q] transfers on the way; changed.
        to_come: [N] transfers into each server that are not made; changed.
        near: [N, Q] see `enter_stage`; changed.
        lack: [N, Q] see `enter_stage`; changed.
        held: [Q] see `enter_stage`; changed.
        hop_weights: [H, 12] what the features of each hop count for.
        piece_weights: [N, 7] what those of a piece count for, by the taker.
        match: [N, Q] added to a tree's score at a taker.
        link_slack: [H] transfers that the tightest link of a route can spare.
        chain: [H] rounds of the longest chain that a workload of the hop begins.
        rounds_left: until the stage's bound.
        temperature: of the draws; 0 takes the best.
        seed: of every random choice.
        at: the round.
        sent_round: [N, Q] changed.
        sent_hop: [N, Q] changed.
    """
    np.random.seed(seed)
    hops, trees, servers = len(giver), len(at_giver), len(intake)
    room = capacity.copy()
    contenders = np.zeros(len(capacity), np.int64)
    count = np.zeros(hops, np.int64)
    fits = np.zeros(hops, np.bool_)
    into, out = np.zeros(servers, np.int64), np.zeros(servers, np.int64)
    for hop in range(hops):
        if not there[hop]:
            continue
        into[taker[hop]] += 1
        out[giver[hop]] += 1
        for tree in range(trees):
            count[hop] += (
                selected[tree]
                and allowed[hop, tree]
                and waiting[giver[hop], tree] == 0
                and pending[giver[hop] if at_giver[tree] else taker[hop], tree]
            )
        fits[hop] = count[hop] > 0
        if fits[hop]:
            for i in range(first_link[hop], first_link[hop + 1]):
                contenders[links[i]] += 1
    weight, score = np.zeros(hops), np.zeros(hops)
    taken = np.zeros(servers)
    queue, queued = np.arange(hops), np.zeros(hops, np.bool_)
    dirty, is_dirty = np.zeros(len(capacity), np.int64), np.zeros(len(capacity), np.bool_)
    waits, made = hops, 0
    while True:
        # Score what has changed.
        for place in range(waits):
            hop = queue[place]
            queued[hop] = False
            if not fits[hop]:
                continue
            end = taker[hop]
            takes = float(max(intake[end], 1))
            slack = rounds_left * intake[end] - to_come[end]
            conflict = 0.0
            for i in range(first_link[hop], first_link[hop + 1]):
                conflict += contenders[links[i]] / max(room[links[i]], 1)
            by_taker = contenders[taker_link[hop]] / max(room[taker_link[hop]], 1)
            by_giver = contenders[giver_link[hop]] / max(room[giver_link[hop]], 1)
            own = hop_weights[hop]
            total = own[0] * _cut(slack) + own[1] * (slack <= 0)
            total += own[2] * _cut(link_slack[hop]) + own[3] * (link_slack[hop] <= ROUNDING)
            total += own[4] * _log(conflict) + own[5] * _log(by_taker) + own[6] * _log(by_giver)
            total += own[7] * _log(float(count[hop])) + own[8] * taken[end] / takes
            total += own[9] * min(to_come[end] / (rounds_left * takes), 2.0)
            total += own[10] * ((first_link[hop + 1] - first_link[hop]) / 2.0 - 1.0)
            if not grown:
                total += own[11] * _cut(rounds_left - chain[hop])
            score[hop] = total
            weight[hop] = np.exp(min(max(total, -500.0), 500.0))
        # Draw a hop.
        chosen, highest = -1, -np.inf
        if temperature == 1.0:
            goal = np.random.random() * weight.sum()
            for hop in range(hops):
                if fits[hop]:
                    chosen = hop
                    goal -= weight[hop]
                    if goal <= 0:
                        break
        else:
            for hop in range(hops):
                if fits[hop]:
                    noisy = score[hop] + _noise(temperature)
                    if noisy > highest:
                        chosen, highest = hop, noisy
        if chosen < 0:
            return made
        hop, source, end = chosen, giver[chosen], taker[chosen]
        # Draw a tree on it.
        chosen, highest = -1, -np.inf
        own = piece_weights[end]
        for tree in range(trees):
            key = source if at_giver[tree] else end
            if not (
                selected[tree]
                and allowed[hop, tree]
                and waiting[source, tree] == 0
                and pending[key, tree]
            ):
                continue
            total = float(match[end, tree])
            if grown:
                total += own[0] * 4.0 * near[end, tree] / max(into[end], 1)
                total += own[1] * np.log(max(near[end, tree], 1.0))
                total += own[2] * 4.0 * held[tree] / servers
                total += own[3] * 4.0 * lack[end, tree] / max(out[end], 1)
                total += own[4] * 4.0 * lack[source, tree] / max(out[source], 1)
            else:
                total += own[5] * _cut(rounds_left - height[key, tree])
            total += own[6] / max(waiting[end, tree] - arriving[end, tree], 1)
            noisy = total + _noise(temperature)
            if noisy > highest:
                chosen, highest = tree, noisy
        tree = chosen
        # Send it: hops of the same transfer have one workload less.
        key = source if at_giver[tree] else end
        made += 1
        pending[key, tree] = False
        arriving[end, tree] += 1
        sent_round[key, tree] = at
        sent_hop[key, tree] = hop
        to_come[end] -= 1
        taken[end] += 1
        gone, soiled = 0, 0
        first = first_from if at_giver[tree] else first_into
        rows = hops_from if at_giver[tree] else hops_into
        for i in range(first[key], first[key + 1]):
            other = rows[i]
            if there[other] and allowed[other, tree] and waiting[giver[other], tree] == 0:
                count[other] -= 1
                if count[other] == 0 and fits[other]:
                    fits[other] = False
                    queue[gone] = other
                    gone += 1
        for i in range(first_link[hop], first_link[hop + 1]):
            link = links[i]
            room[link] -= 1
            if not is_dirty[link]:
                is_dirty[link] = True
                dirty[soiled] = link
                soiled += 1
            if room[link] == 0:
                for j in range(first_on[link], first_on[link + 1]):
                    other = hops_on[j]
                    if fits[other]:
                        fits[other] = False
                        queue[gone] = other
                        gone += 1
        for place in range(gone):  # they contend no more
            other = queue[place]
            weight[other] = 0.0
            for i in range(first_link[other], first_link[other + 1]):
                link = links[i]
                contenders[link] -= 1
                if not is_dirty[link]:
                    is_dirty[link] = True
                    dirty[soiled] = link
                    soiled += 1
        if grown:
            held[tree] += 1
            for i in range(first_from[end], first_from[end + 1]):
                near[taker[hops_from[i]], tree] += allowed[hops_from[i], tree]
            for i in range(first_into[end], first_into[end + 1]):
                lack[giver[hops_into[i]], tree] -= allowed[hops_into[i], tree]
        # What must be scored anew: hops over changed links, and around the taker.
        waits = 0
        for place in range(soiled):
            link = dirty[place]
            is_dirty[link] = False
            rows = hops_on[first_on[link] : first_on[link + 1]]
            waits = _queue_up(rows, fits, queued, queue, waits)
        rows = hops_into[first_into[end] : first_into[end + 1]]
        waits = _queue_up(rows, fits, queued, queue, waits)
        rows = hops_from[first_from[source] : first_from[source + 1]]
        waits = _queue_up(rows, fits, queued, queue, waits)
