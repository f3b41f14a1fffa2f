"""One round of the learned policies, compiled: it draws and sends workloads one after the other.

A transfer only changes the scores of nearby hops, and only those are updated, so that a draw costs
little more on a large network than on a small one. (JAX, in training, recomputes all scores.) A
hop's features are computed by `features`. A tree's features are written out, with each weight
divided by its scale once per draw: otherwise their product would differ in the last bit, and so
would draws.
"""

from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

from gradweave.common.compiled import kernel
from gradweave.learning.episodes import features as table
from gradweave.learning.episodes.state_kernel import (
    Booleans,
    EpisodeArrays,
    WorkloadTable,
    begin_sets,
    key_server,
    unsent_trees,
)
from gradweave.schedulers.kernels.bitset import (
    WORD,
    Bitset,
    bit,
    count,
    has,
    lowest,
    without_lowest,
)
from gradweave.schedulers.kernels.worklist import add_once
from gradweave.schedulers.problem import HopsOver, HopTable, Integers

BLOCK = 64
"""Number of hops per block; a block keeps its best score, or its sum of weights."""
TOLERANCE = 0.05
"""Relative change of a link's contenders per free capacity below which its hops are not rescored:
if hundreds of hops share a link, each transfer would otherwise rescore thousands. With 20
contenders or fewer, every change counts."""

for _function in (
    table.clipped,
    table.load,
    table.logarithm,
    table.receiver_features,
    table.route_features,
):
    register_jitable(forceinline=True)(_function)  # as by `kernel(inlined=True)`


class RoundScores(NamedTuple):
    """The policy's scores at a round's start, and the features that draws need."""

    hop: NDArray[np.float32]
    """[H, 12] as in `features.Scores`."""
    piece: NDArray[np.float32]
    """[N, 7] as in `features.Scores`."""
    match: NDArray[np.float32]
    """[N, Q] as in `features.Scores`."""
    link_slack: NDArray[np.float32]
    """[H] as in `features.Round`."""
    chain: Integers
    """[H] as in `features.Round`."""


class _Round(NamedTuple):
    """A partly drawn round. Scores are exact up to `TOLERANCE`, everything else is exact."""

    there: Booleans
    """[H] hops of the stage."""
    sets: Any
    """Sets of workloads that can be sent as far as data is concerned."""
    room: Integers
    """[L] transfers that a link can still carry in this round."""
    contenders: Integers
    """[L] hops that fit and use the link."""
    ratio: NDArray[np.float64]
    """[L] contenders per transfer that the link can still carry."""
    log_ratio: NDArray[np.float64]
    """[L] logarithm of the ratio."""
    scored_ratio: NDArray[np.float64]
    """[L] the ratio when the link's hops were last scored."""
    ready: Integers
    """[H] workloads ready on the hop."""
    fits: Booleans
    """[H] whether a workload is ready and every link has capacity left."""
    into: Integers
    """[N] hops of the stage into the server."""
    out: Integers
    """[N] hops of the stage out of it."""
    taken: NDArray[np.float64]
    """[N] transfers into the server in this round."""
    fixed: NDArray[np.float64]
    """[H] the constant part of the hop's score within the round, plus noise."""
    value: NDArray[np.float64]
    """[H] logarithm of the hop's weight, or the weight itself if hops are drawn by weight; `empty`
    if the hop does not fit."""
    empty: float
    """The value of a hop that does not fit."""
    of_block: NDArray[np.float64]
    """Highest value of each block of hops, or their sum if hops are drawn by weight."""
    stale: Booleans
    """Whether each block must be updated."""
    logarithms: NDArray[np.float64]
    """Logarithms of the integers up to the number of trees or hops."""
    chance: NDArray[np.float64]
    """[Q] weights for the draw of a tree."""
    ready_trees: Bitset
    """[W] the ready trees, for the draw of a tree."""
    queue: Integers
    """[H] hops to rescore, or hops that no longer fit: one use at a time."""
    queued: Booleans
    """[H] whether a hop is queued for rescoring."""
    changed: Integers
    """[L] links whose free capacity or contenders changed with the last transfer."""
    is_changed: Booleans
    """[L] whether a link is in `changed`."""


@kernel
def draw_round(
    hops: HopTable,
    workloads: WorkloadTable,
    progress: EpisodeArrays,
    scores: RoundScores,
    there: Booleans,
    selected: Booleans,
    rounds_left: float,
    temperature: float,
    seed: int,
    at: int,
) -> int:
    """Draws and sends a round's workloads, one after the other, until none fits.

    A transfer takes time proportional to the hops that share a link with it or with a hop that it
    blocks, plus, for the draws, one `BLOCK`-th of H and the ready trees.

    Args:
        hops: the network.
        workloads: the problem.
        progress: the episode; changed.
        scores: the policy's scores.
        there: [H] hops of the stage.
        selected: [Q] trees whose workloads may be sent.
        rounds_left: rounds until the stage's bound.
        temperature: temperature of the draws; 0 takes the best.
        seed: the seed of every random choice.
        at: the round.

    Returns:
        Number of workloads sent.
    """
    np.random.seed(seed)
    state = _begin_round(
        hops, workloads, progress, scores, there, selected, rounds_left, temperature
    )
    return _draw_all(hops, workloads, progress, scores, state, rounds_left, temperature, at)


@kernel(inner=True, allocates=False)
def _draw_all(
    hops: HopTable,
    workloads: WorkloadTable,
    progress: EpisodeArrays,
    scores: RoundScores,
    state: Any,
    rounds_left: float,
    temperature: float,
    at: int,
) -> int:
    """Draws and sends; returns the number sent. Initially all hops are queued for scoring."""
    waits, sent = len(hops.source), 0
    while True:
        _score_hops(hops, workloads, progress, scores, state, rounds_left, temperature, waits)
        hop = _draw_hop(state, temperature)
        if hop < 0:
            return sent
        tree = _draw_tree(hops, workloads, progress, scores, state, hop, rounds_left, temperature)
        _send(hops, workloads, progress, state, hop, tree, at)
        gone = _without_workload(hops, workloads, state, hop, tree)
        changed, gone = _take_room(hops, workloads.over, state, hop, gone)
        changed = _contend_no_more(hops, state, changed, gone)
        waits = _queue_changed(hops, workloads.over, state, hop, changed)
        sent += 1


@kernel(inner=True)
def _begin_round(
    hops: HopTable,
    workloads: WorkloadTable,
    progress: EpisodeArrays,
    scores: RoundScores,
    there: Booleans,
    selected: Booleans,
    rounds_left: float,
    temperature: float,
) -> Any:
    """A round before the first draw; all hops are queued for scoring."""
    links, number, servers = len(workloads.capacity), len(hops.source), len(workloads.intake)
    trees, blocks = len(selected), (number + BLOCK - 1) // BLOCK
    empty = 0.0 if temperature == 1.0 else -np.inf
    state = _Round(
        there=there,
        sets=begin_sets(workloads, progress.waiting, progress.pending, selected),
        room=workloads.capacity.copy(),
        contenders=np.zeros(links, np.int64),
        ratio=np.zeros(links),
        log_ratio=np.zeros(links),
        scored_ratio=np.zeros(links),
        ready=np.zeros(number, np.int64),
        fits=np.zeros(number, np.bool_),
        into=np.zeros(servers, np.int64),
        out=np.zeros(servers, np.int64),
        taken=np.zeros(servers),
        fixed=np.zeros(number),
        value=np.full(number, empty),
        empty=empty,
        of_block=np.zeros(blocks),
        stale=np.ones(blocks, np.bool_),
        logarithms=np.log(np.maximum(np.arange(max(trees, number) + 1), table.LEAST)),
        chance=np.zeros(trees),
        ready_trees=np.zeros((trees + WORD - 1) // WORD, np.uint64),
        queue=np.arange(number),
        queued=np.zeros(number, np.bool_),
        changed=np.arange(links),
        is_changed=np.zeros(links, np.bool_),
    )
    _count_ready(hops, workloads, state)
    _score_what_stays(hops, workloads, scores, state, rounds_left, temperature)
    _contend_all(hops, state)
    return state


@kernel(inner=True, allocates=False)
def _contend_all(hops: HopTable, state: Any) -> None:
    """Counts the hops that contend for each link, at a round's start."""
    for hop in range(len(state.fits)):
        if state.fits[hop]:
            for i in range(hops.first_link[hop], hops.first_link[hop + 1]):
                state.contenders[hops.links[i]] += 1
    for link in range(len(state.room)):
        _contend(state.contenders, state.room, state.ratio, state.log_ratio, link)
        state.scored_ratio[link] = state.ratio[link]


@kernel(inner=True, allocates=False)
def _count_ready(hops: HopTable, workloads: WorkloadTable, state: Any) -> None:
    """Counts each hop's ready workloads and each server's hops, at a round's start."""
    sets, there, ready, fits = state.sets, state.there, state.ready, state.fits
    holds, pending, selected, by_sender = sets.holds, sets.pending, sets.selected, sets.by_sender
    senders, receivers, into, out = hops.source, hops.target, state.into, state.out
    allowed, row = workloads.allowed, workloads.allowed_row
    for hop in range(len(there)):
        if not there[hop]:
            continue
        sender, receiver = senders[hop], receivers[hop]
        into[receiver] += 1
        out[sender] += 1
        for place in range(len(by_sender)):
            may, by = selected[place] & allowed[row[hop], place], by_sender[place]
            unsent = unsent_trees(pending[receiver, place], pending[sender, place], by, may)
            ready[hop] += count(unsent & holds[sender, place])
        fits[hop] = ready[hop] > 0


@kernel(inner=True, allocates=False)
def _score_what_stays(
    hops: HopTable,
    workloads: WorkloadTable,
    scores: RoundScores,
    state: Any,
    rounds_left: float,
    temperature: float,
) -> None:
    """The part of a hop's score that draws do not change; for best actions, plus tie noise."""
    of_hops, link_slack, chain = scores.hop, scores.link_slack, scores.chain
    first_link, fixed, fits, grown = hops.first_link, state.fixed, state.fits, workloads.grown
    best, tie = _takes_best(temperature), _tie(temperature)
    for hop in range(len(fits)):
        if not fits[hop]:
            continue
        length = first_link[hop + 1] - first_link[hop]
        slack, no_slack, of_length = table.route_features(np, link_slack[hop], length)
        total = of_hops[hop, table.LINK_SLACK] * slack
        total += of_hops[hop, table.NO_LINK_SLACK] * no_slack
        total += of_hops[hop, table.LENGTH] * of_length
        if not grown:
            total += of_hops[hop, table.CHAIN_SLACK] * table.clipped(np, rounds_left - chain[hop])
        if best:
            total += tie * np.random.random()
        fixed[hop] = total


@kernel(inlined=True)
def _contend(contenders: Integers, room: Integers, ratio: Any, log_ratio: Any, link: int) -> None:
    """Updates a link's contenders per transfer that it can still carry."""
    ratio[link] = contenders[link] / max(room[link], 1)
    log_ratio[link] = table.logarithm(np, ratio[link])


@kernel(inlined=True)
def _score_hops(
    hops: HopTable,
    workloads: WorkloadTable,
    progress: EpisodeArrays,
    scores: RoundScores,
    state: Any,
    rounds_left: float,
    temperature: float,
    waits: int,
) -> None:
    """Scores the hops at the head of the queue. A score depends on no other hop's score."""
    ratio, log_ratio, logarithms = state.ratio, state.log_ratio, state.logarithms
    queue, queued, fits = state.queue, state.queued, state.fits
    links, first_link = hops.links, hops.first_link
    receivers, intake = hops.target, workloads.intake
    to_come, taken, ready = progress.to_come, state.taken, state.ready
    value, stale, fixed, of_hops = state.value, state.stale, state.fixed, scores.hop
    sender_link, receiver_link = workloads.sender_link, workloads.receiver_link
    for place in range(waits):
        hop = queue[place]
        queued[hop] = False
        if not fits[hop]:
            continue
        end = receivers[hop]
        slack, no_slack, taken_share, load = table.receiver_features(
            np, to_come[end], taken[end], intake[end], rounds_left
        )
        conflict = 0.0
        for i in range(first_link[hop], first_link[hop + 1]):
            conflict += ratio[links[i]]
        total = fixed[hop] + of_hops[hop, table.SLACK] * slack
        total += of_hops[hop, table.NO_SLACK] * no_slack
        total += of_hops[hop, table.CONTENTION] * table.logarithm(np, conflict)
        total += of_hops[hop, table.CONTENTION_AT_RECEIVER] * log_ratio[receiver_link[hop]]
        total += of_hops[hop, table.CONTENTION_AT_SENDER] * log_ratio[sender_link[hop]]
        total += of_hops[hop, table.READY] * logarithms[ready[hop]]
        total += of_hops[hop, table.TAKEN] * taken_share
        total += of_hops[hop, table.LOAD] * load
        if temperature == 1.0:
            total = np.exp(min(max(total, -500.0), 500.0))
        value[hop] = total
        stale[hop // BLOCK] = True


@kernel(inlined=True)
def _draw_hop(state: Any, temperature: float) -> int:
    """Draws a hop that fits, by its weight; −1 if there is none."""
    value, of_block, stale = state.value, state.of_block, state.stale
    if temperature == 1.0:  # one random number instead of one per hop
        for block in range(len(of_block)):
            if stale[block]:
                stale[block] = False
                of_block[block] = value[BLOCK * block : BLOCK * (block + 1)].sum()
        return _by_weight(value, of_block, np.random.random() * of_block.sum())
    chosen, highest = -1, -np.inf
    if not _takes_best(temperature):
        for hop in range(len(value)):
            if value[hop] > -np.inf:
                noisy = value[hop] + _noise(temperature)
                if noisy > highest:
                    chosen, highest = hop, noisy
        return chosen
    best = -1
    for block in range(len(of_block)):
        if stale[block]:
            stale[block] = False
            of_block[block] = _highest(value, block)
        if of_block[block] > highest:
            best, highest = block, of_block[block]
    if best >= 0:
        for hop in range(BLOCK * best, min(BLOCK * (best + 1), len(value))):
            if value[hop] == highest:
                chosen = hop
                break
    return chosen


@kernel(inlined=True)
def _highest(value: Any, block: int) -> float:
    """The highest value of a block."""
    highest = -np.inf
    for hop in range(BLOCK * block, min(BLOCK * (block + 1), len(value))):
        highest = max(highest, value[hop])
    return highest


@kernel(inlined=True)
def _by_weight(value: Any, of_block: Any, goal: float) -> int:
    """The hop at which the sum of weights reaches a goal; −1 if no weight is positive."""
    chosen, last = -1, -1
    for block in range(len(of_block)):
        if of_block[block] > 0:
            last = block
            if goal <= of_block[block]:
                break
            goal -= of_block[block]
    if last >= 0:
        for hop in range(BLOCK * last, min(BLOCK * (last + 1), len(value))):
            if value[hop] > 0:
                chosen = hop
                goal -= value[hop]
                if goal <= 0:
                    break
    return chosen


@kernel(inlined=True)
def _draw_tree(
    hops: HopTable,
    workloads: WorkloadTable,
    progress: EpisodeArrays,
    scores: RoundScores,
    state: Any,
    hop: int,
    rounds_left: float,
    temperature: float,
) -> int:
    """Draws a tree whose workload is ready on a hop that fits; there must be one."""
    chosen, highest, total_chance = -1, -np.inf, 0.0
    sender, receiver = hops.source[hop], hops.target[hop]
    chance, logarithms = state.chance, state.logarithms
    weights, match, holders = scores.piece[receiver], scores.match[receiver], progress.holders
    of_near = weights[table.NEAR] * table.SHARE / max(state.into[receiver], 1)
    of_logarithm = weights[table.NEAR_LOGARITHM]
    of_held = weights[table.HELD] * table.SHARE / len(workloads.intake)
    of_receiver = weights[table.LACK_OF_RECEIVER] * table.SHARE / max(state.out[receiver], 1)
    of_sender = weights[table.LACK_OF_SENDER] * table.SHARE / max(state.out[sender], 1)
    near, lack = progress.near[receiver], progress.lack[receiver]
    lack_of_sender = progress.lack[sender]
    waiting, arriving = progress.waiting[receiver], progress.arriving[receiver]
    by_sender, height, grown = workloads.by_sender, workloads.height, workloads.grown
    best, tie = _takes_best(temperature), _tie(temperature)
    ready_trees = state.ready_trees
    _find_ready_trees(hops, workloads, state, hop)
    for place in range(len(ready_trees)):
        word = ready_trees[place]
        while word:
            tree = WORD * place + lowest(word)
            word = without_lowest(word)
            total = float(match[tree])
            if grown:
                total += of_near * near[tree] + of_logarithm * logarithms[max(near[tree], 1)]
                total += of_held * holders[tree]
                total += of_receiver * lack[tree] + of_sender * lack_of_sender[tree]
            else:
                total += weights[table.PIECE_CHAIN_SLACK] * table.clipped(
                    np, rounds_left - height[sender if by_sender[tree] else receiver, tree]
                )
            total += weights[table.AWAITED] / max(waiting[tree] - arriving[tree], 1)
            if temperature == 1.0:
                chance[tree] = np.exp(min(max(total, -500.0), 500.0))
                total_chance += chance[tree]
            elif not best:
                total += _noise(temperature)
            elif total + tie > highest:  # below this, noise cannot change the result
                total += tie * np.random.random()
            if total > highest:
                chosen, highest = tree, total
    if temperature == 1.0:
        return _by_chance(ready_trees, chance, np.random.random() * total_chance)
    return chosen


@kernel(inlined=True)
def _find_ready_trees(hops: HopTable, workloads: WorkloadTable, state: Any, hop: int) -> None:
    """Writes the trees whose workload is ready on a hop, [W]."""
    sets, sender, receiver = state.sets, hops.source[hop], hops.target[hop]
    holds, pending, selected, by_sender = sets.holds, sets.pending, sets.selected, sets.by_sender
    allowed, row, ready = workloads.allowed, workloads.allowed_row[hop], state.ready_trees
    for place in range(len(ready)):
        may, by = selected[place] & allowed[row, place], by_sender[place]
        unsent = unsent_trees(pending[receiver, place], pending[sender, place], by, may)
        ready[place] = unsent & holds[sender, place]


@kernel(inlined=True)
def _by_chance(trees: Bitset, chance: Any, goal: float) -> int:
    """The member of a set at which the sum of chances reaches a goal, or else the last."""
    tree = -1
    for place in range(len(trees)):
        word = trees[place]
        while word:
            tree = WORD * place + lowest(word)
            word = without_lowest(word)
            goal -= chance[tree]
            if goal <= 0:
                return tree
    return tree


@kernel(inlined=True)
def _send(
    hops: HopTable,
    workloads: WorkloadTable,
    progress: EpisodeArrays,
    state: Any,
    hop: int,
    tree: int,
    at: int,
) -> None:
    """Sends a tree's workload over a hop."""
    key, receiver = key_server(hops, workloads, hop, tree), hops.target[hop]
    progress.pending[key, tree] = False
    state.sets.pending[key, tree // WORD] &= ~bit(tree)
    progress.arriving[receiver, tree] += 1
    progress.sent_round[key, tree] = at
    progress.sent_hop[key, tree] = hop
    progress.to_come[receiver] -= 1
    state.taken[receiver] += 1
    if not workloads.grown:
        return
    progress.holders[tree] += 1
    receivers, senders, near, lack = hops.target, hops.source, progress.near, progress.lack
    allowed, row = workloads.allowed, workloads.allowed_row
    for other in hops.leaving[hops.first_leaving[receiver] : hops.first_leaving[receiver + 1]]:
        near[receivers[other], tree] += has(allowed, row[other], tree)
    for other in hops.entering[hops.first_entering[receiver] : hops.first_entering[receiver + 1]]:
        lack[senders[other], tree] -= has(allowed, row[other], tree)


@kernel(inlined=True)
def _without_workload(
    hops: HopTable,
    workloads: WorkloadTable,
    state: Any,
    hop: int,
    tree: int,
) -> int:
    """Removes a workload from the hops that could have made the same transfer.

    Returns:
        Number of these hops that no longer fit; they are at the head of the queue.
    """
    key, gone = key_server(hops, workloads, hop, tree), 0
    by_sender = workloads.by_sender[tree]
    first = hops.first_leaving if by_sender else hops.first_entering
    rows = hops.leaving if by_sender else hops.entering
    allowed, row, senders = workloads.allowed, workloads.allowed_row, hops.source
    holds = state.sets.holds
    there, ready, fits, queue = state.there, state.ready, state.fits, state.queue
    for other in rows[first[key] : first[key + 1]]:
        can = there[other] and has(holds, senders[other], tree)
        if can and has(allowed, row[other], tree):
            ready[other] -= 1
            if ready[other] == 0 and fits[other]:
                fits[other] = False
                queue[gone] = other
                gone += 1
    return gone


@kernel(inlined=True)
def _take_room(hops: HopTable, over: HopsOver, state: Any, hop: int, gone: int) -> tuple[int, int]:
    """Uses up capacity of a hop's links; hops over full links no longer fit.

    Returns:
        Number of changed links; number of hops at the head of the queue that no longer fit.
    """
    room, fits, queue, changed_links = state.room, state.fits, state.queue, state.changed
    links, first_on, hops_on, is_changed = hops.links, over.first, over.hop, state.is_changed
    changed = 0
    for i in range(hops.first_link[hop], hops.first_link[hop + 1]):
        link = links[i]
        room[link] -= 1
        changed = add_once(changed_links, is_changed, link, changed)
        if room[link] == 0:
            for j in range(first_on[link], first_on[link + 1]):
                other = hops_on[j]
                if fits[other]:
                    fits[other] = False
                    queue[gone] = other
                    gone += 1
    return changed, gone


@kernel(inlined=True)
def _contend_no_more(hops: HopTable, state: Any, changed: int, gone: int) -> int:
    """Removes hops that no longer fit from the contenders; returns the number of changed links."""
    queue, value, contenders, stale = state.queue, state.value, state.contenders, state.stale
    links, first_link, empty = hops.links, hops.first_link, state.empty
    changed_links, is_changed = state.changed, state.is_changed
    for place in range(gone):
        other = queue[place]
        value[other] = empty
        stale[other // BLOCK] = True
        for i in range(first_link[other], first_link[other + 1]):
            contenders[links[i]] -= 1
            changed = add_once(changed_links, is_changed, links[i], changed)
    return changed


@kernel(inlined=True)
def _queue_changed(hops: HopTable, over: HopsOver, state: Any, hop: int, changed: int) -> int:
    """Queues the hops to rescore: over changed links, into the receiver, or out of the sender.

    A hop's score depends on its links' capacity and contenders, on its workloads, and on what its
    receiver still takes; nothing else changes within a round.

    Returns:
        Number of queued hops.
    """
    fits, queued, queue = state.fits, state.queued, state.queue
    links, is_changed, contenders = state.changed, state.is_changed, state.contenders
    room, ratio, log_ratio = state.room, state.ratio, state.log_ratio
    scored_ratio = state.scored_ratio
    hops_on, first_on = over.hop, over.first
    waits = 0
    for place in range(changed):
        link = links[place]
        is_changed[link] = False
        if contenders[link] == 0:
            continue
        _contend(contenders, room, ratio, log_ratio, link)
        if abs(ratio[link] - scored_ratio[link]) < TOLERANCE * scored_ratio[link]:
            continue
        scored_ratio[link] = ratio[link]
        rows = hops_on[first_on[link] : first_on[link + 1]]
        waits = _queue_up(rows, fits, queued, queue, waits)
    sender, receiver = hops.source[hop], hops.target[hop]
    rows = hops.entering[hops.first_entering[receiver] : hops.first_entering[receiver + 1]]
    waits = _queue_up(rows, fits, queued, queue, waits)
    rows = hops.leaving[hops.first_leaving[sender] : hops.first_leaving[sender + 1]]
    return _queue_up(rows, fits, queued, queue, waits)


@kernel(inlined=True)
def _queue_up(rows: Integers, fits: Booleans, queued: Booleans, queue: Integers, waits: int) -> int:
    """Queues the hops that fit and are not queued; returns the number of queued hops."""
    for hop in rows:
        if fits[hop]:
            waits = add_once(queue, queued, hop, waits)
    return waits


@kernel(inlined=True)
def _takes_best(temperature: float) -> bool:
    """Whether the temperature is so low that the highest score is taken, up to noise."""
    return temperature <= table.TIE


@kernel(inlined=True)
def _tie(temperature: float) -> float:
    """Largest tie-breaking noise if the best is taken."""
    return table.TIE if temperature == 0 else temperature


@kernel(inlined=True)
def _noise(temperature: float) -> float:
    """Gumbel noise: the highest of noisy scores is a draw by their softmax."""
    return -temperature * np.log(-np.log(np.random.random() + 1e-300) + 1e-300)
