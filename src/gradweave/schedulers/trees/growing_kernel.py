"""The loop of grown all-gathers, compiled.

In each round, receivers with the least slack choose first: over each hop into them, the ready piece
that is rarest among their neighbours. Then swaps follow: a hop into a receiver that could take
more, if blocked by a single other hop, takes that hop's place if the other's receiver has no less
slack, and so on at random. Such chains fill almost every round that can be filled.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.common.compiled import kernel
from gradweave.schedulers.kernels.rarest_piece import (
    Holdings,
    held_by_roots,
    may_send,
    promise,
    rarest_piece,
)
from gradweave.schedulers.kernels.slots import (
    SKIPPED_EQUALS,
    Slots,
    any_holder,
    claim,
    holds_slot,
    is_full,
    no_slots_taken,
    release,
)
from gradweave.schedulers.problem import HopTable, Integers

# Chosen by hand, and compiled in: as arguments they would pass through each call in the loops.
PER_REPEAT = 4
"""Number of rounds per allowed redraw of a round that leaves a server more than it can still take.
Without redraws, runs of many rounds without slack would end at the first idle link; short runs are
as quickly restarted."""
LENGTHS = 64
"""Lengths of hops that are distinguished: buckets of the counting sort per slack."""
DENSE = 8
"""Hops are drawn from all if at least one in this many is worth an attempt."""


class Growth(NamedTuple):
    """The hops, and the pieces to send over them."""

    hops: HopTable
    """The network's hops; a route with several transfers per round has a hop for each."""
    root: Integers
    """[P] server at which each piece starts."""
    capacity: Integers
    """[L] hops that each link direction carries per round."""
    intake: Integers
    """[N] most pieces that each server can take per round."""
    most_steps: NDArray[np.int16]
    """[N, P] most steps in sequence by which a piece may reach a server; [0, 0] for no limit. Each
    server except a root has a neighbour with a smaller value, so that no piece gets stuck."""


class GrowingRule(NamedTuple):
    """The choice of pieces, and the effort of improving rounds."""

    near: int
    """`near`, `everywhere` and `noise` are as in `Rarity`."""
    everywhere: int
    noise: int
    passes: int
    """Number of passes of swaps; each tries as many hops as there are."""
    short: int
    """1 to try shorter hops first among receivers of the same slack, 0 otherwise."""


class _State(NamedTuple):
    """A partly filled round. `assign` and `_unassign` keep its counts consistent."""

    holdings: Holdings
    """Which server holds, receives and lacks which piece; pieces on the way are not wanted."""
    slots: Slots
    """The hops that send in this round, by link."""
    taken: Integers
    """[N] pieces on the way to each server in this round."""
    carries: Integers
    """[H] piece on each hop in this round; −1 for none."""
    open: Integers
    """[N] while swaps are tried: the servers for which `_open` is true come first, in any order."""
    place: Integers
    """[N] position of each server in `open`; −1 if it is not open."""
    opened: Integers
    """[2] number of open servers, and of hops that enter them."""


@kernel
def grow(
    growth: Growth,
    rule: GrowingRule,
    hints: Integers,
    max_rounds: int,
    target: int,
    seed: int,
    stop: NDArray[np.bool_],
    finish: bool,
) -> Integers:
    """[transfers, 3] round, piece and hop of each; no rows if `max_rounds` are too few.

    Args:
        growth: the problem.
        rule: how to choose pieces.
        hints: [M, 3] round, piece and hop to try first in their rounds, by round.
        max_rounds: number of rounds after which to give up.
        target: number of rounds to aim at, from which receivers' slack is counted.
        seed: the seed of every random choice.
        stop: [1] set by another thread when time is up.
        finish: whether the run is then finished, without swaps and in a small part of the time, or
            abandoned.
    """
    np.random.seed(seed)
    state = start(growth)
    left = state.holdings.missing.sum()
    sent = np.empty((left, 3), np.int64)  # one per missing piece: each is sent once
    count, at, hint, again = 0, 0, 0, 0
    while left:
        given_up = stop[0] and not finish
        if given_up or at >= max_rounds or _cannot_finish(growth, state, max_rounds - at):
            return np.empty((0, 3), np.int64)
        state.slots.used[:] = 0
        state.taken[:] = 0
        while hint < len(hints) and hints[hint, 0] <= at:
            _take(growth, state, hints[hint, 2], hints[hint, 1])
            hint += 1
        _fill(growth, state, rule, max(target, at + 1) - at, stop)
        while again < at // PER_REPEAT and _cannot_finish(growth, state, max_rounds - at - 1):
            undo(growth, state)
            _fill(growth, state, rule, max(target, at + 1) - at, stop)
            again += 1
        before, count = count, list_sent(state, at, sent, count)
        if count == before:
            return np.empty((0, 3), np.int64)
        arrive(growth, state, sent[before:count])
        left -= count - before
        at += 1
    return sent


@kernel(inner=True, allocates=False)
def list_sent(state: Any, at: int, sent: Integers, count: int) -> int:
    """Appends a round's transfers; returns the new number of transfers."""
    for hop in range(len(state.carries)):
        piece = state.carries[hop]
        if piece >= 0:
            sent[count, 0], sent[count, 1], sent[count, 2] = at, piece, hop
            count += 1
    return count


@kernel(inner=True)
def _fill(
    growth: Growth, state: Any, rule: GrowingRule, rounds_left: int, stop: NDArray[np.bool_]
) -> None:
    """Fills a round after its hints: receivers choose, then swaps follow."""
    salt = np.random.randint(1 << 30)
    if not stop[0]:
        _try_each(growth, state, rule, _by_slack(growth, state, rule, rounds_left), salt, stop)
    if stop[0]:
        _fill_quickly(growth, state, rule, rounds_left, salt)
        return
    find_open(growth, state)
    for _ in range(rule.passes):
        if not swap(growth, state, rule, rounds_left, stop):
            break


@kernel(inner=True, allocates=False)
def _try_each(
    growth: Growth,
    state: Any,
    rule: GrowingRule,
    hops: Integers,
    salt: int,
    stop: NDArray[np.bool_],
) -> None:
    """Sends a piece over each hop that fits, in order."""
    for hop in hops:
        if not _last_link_is_full(growth, state, hop):
            _try(growth, state, rule, hop, salt)
        if stop[0]:
            break


@kernel(inner=True)
def _fill_quickly(
    growth: Growth, state: Any, rule: GrowingRule, rounds_left: int, salt: int
) -> None:
    """Fills a valid round quickly: each receiver tries its hops until it can take no more."""
    slack = np.empty(len(growth.intake), np.int64)
    _write_slack(growth, state, rounds_left, slack)
    _try_receivers(growth, state, rule, np.argsort(slack), salt)


@kernel(inner=True, allocates=False)
def _try_receivers(
    growth: Growth, state: Any, rule: GrowingRule, servers: Integers, salt: int
) -> None:
    for server in servers:
        begin = growth.hops.first_entering[server]
        count = growth.hops.first_entering[server + 1] - begin
        offset = np.random.randint(count) if count else 0
        for i in range(count):
            if not _open(growth, state, server):
                break
            hop = growth.hops.entering[begin + (offset + i) % count]
            first = growth.hops.links[growth.hops.first_link[hop]]
            if state.carries[hop] < 0 and not is_full(state.slots, first):
                _try(growth, state, rule, hop, salt)


@kernel(inner=True, allocates=False)
def undo(growth: Growth, state: Any) -> None:
    """Takes back all of a round's transfers."""
    state.slots.used[:] = 0
    for hop in range(len(growth.hops.source)):
        if state.carries[hop] >= 0:
            _unassign(growth, state, hop)


@kernel(inner=True)
def start(growth: Growth) -> Any:
    """The state before the first round."""
    hops, servers = len(growth.hops.source), len(growth.intake)
    carries = np.empty(hops, np.int64)
    for hop in range(hops):
        carries[hop] = -1
    return _State(
        held_by_roots(growth.hops, growth.root, growth.most_steps),
        no_slots_taken(growth.capacity),
        np.zeros(servers, np.int64),
        carries,
        np.empty(servers, np.int64),
        np.empty(servers, np.int64),
        np.zeros(2, np.int64),
    )


@kernel(inner=True, allocates=False)
def _cannot_finish(growth: Growth, state: Any, rounds_left: int) -> bool:
    """Whether some server wants more than it can take in the remaining rounds."""
    for server in range(len(growth.intake)):
        if state.holdings.missing[server] > rounds_left * growth.intake[server]:
            return True
    return False


@kernel(inlined=True)
def _slack(growth: Growth, state: Any, server: Any, rounds_left: int) -> Any:
    return rounds_left * growth.intake[server] - state.holdings.missing[server]


@kernel(inner=True)
def _by_slack(growth: Growth, state: Any, rule: GrowingRule, rounds_left: int) -> Integers:
    """Hops into servers that want a piece, least slack first, at random among equals.

    It is a counting sort, since there are many hops and few values of the slack.
    """
    slack = np.empty(len(growth.intake), np.int64)
    _write_slack(growth, state, rounds_left, slack)
    begins = np.zeros(len(slack) * LENGTHS + 1, np.int64)
    place = np.empty(len(growth.hops.source), np.int64)
    _find_places(growth, state, rule, _ranks(slack), place, begins)
    by_slack = np.empty(begins[-1], np.int64)
    _put_in_order(np.random.permutation(len(place)), place, begins, by_slack)
    return by_slack


@kernel(inner=True, allocates=False)
def _find_places(
    growth: Growth, state: Any, rule: GrowingRule, rank: Integers, place: Integers, begins: Integers
) -> None:
    """Writes the bucket of each hop (−1 if the receiver wants nothing), and where each begins."""
    for hop in range(len(place)):
        server = growth.hops.target[hop]
        place[hop] = -1
        if state.holdings.missing[server] and state.carries[hop] < 0:
            length = growth.hops.first_link[hop + 1] - growth.hops.first_link[hop]
            place[hop] = rank[server] * LENGTHS + rule.short * min(length, LENGTHS - 1)
            begins[place[hop] + 1] += 1
    for i in range(1, len(begins)):
        begins[i] += begins[i - 1]


@kernel(inner=True, allocates=False)
def _put_in_order(hops: Integers, place: Integers, begins: Integers, by_slack: Integers) -> None:
    """Writes hops bucket by bucket."""
    for hop in hops:
        if place[hop] >= 0:
            by_slack[begins[place[hop]]] = hop
            begins[place[hop]] += 1


@kernel(inner=True, allocates=False)
def _write_slack(growth: Growth, state: Any, rounds_left: int, slack: Integers) -> None:
    """Writes each server's slack, [N]."""
    for server in range(len(slack)):
        slack[server] = _slack(growth, state, server, rounds_left)


@kernel(inner=True)
def _ranks(slack: Integers) -> Integers:
    """[N] number of distinct slack values below each server's."""
    rank, last, values = np.empty(len(slack), np.int64), np.int64(0), -1
    for server in np.argsort(slack):
        if values < 0 or slack[server] > last:
            last, values = slack[server], values + 1
        rank[server] = values
    return rank


@kernel(inner=True, allocates=False)
def _try(growth: Growth, state: Any, rule: GrowingRule, hop: int, salt: int) -> bool:
    """Sends a piece over a hop if it fits and there is a piece to send."""
    if not claim_route(growth, state, hop):
        return False
    source, target = growth.hops.source[hop], growth.hops.target[hop]
    piece = rarest_piece(rule, state.holdings, source, target, hop, salt)
    if piece < 0:
        _release_route(growth, state, hop)
        return False
    assign(growth, state, hop, piece)
    return True


@kernel(inner=True, allocates=False)
def assign(growth: Growth, state: Any, hop: int, piece: Any) -> None:
    """Puts a piece on a hop with claimed slots, in time linear in the receiver's hops."""
    server = growth.hops.target[hop]
    if len(growth.most_steps):
        steps = state.holdings.steps
        steps[server, piece] = steps[growth.hops.source[hop], piece] + 1
    state.carries[hop] = piece
    state.holdings.wanted[server, piece] = False
    state.holdings.missing[server] -= 1
    state.taken[server] += 1
    promise(growth.hops, state.holdings.near, server, piece, 1)


@kernel(inner=True, allocates=False)
def _unassign(growth: Growth, state: Any, hop: int) -> Any:
    """Removes and returns a hop's piece; its slots stay claimed."""
    piece, server = state.carries[hop], growth.hops.target[hop]
    state.carries[hop] = -1
    state.holdings.wanted[server, piece] = True
    state.holdings.missing[server] += 1
    state.taken[server] -= 1
    promise(growth.hops, state.holdings.near, server, piece, -1)
    return piece


@kernel(inner=True, allocates=False)
def _take(growth: Growth, state: Any, hop: int, piece: int) -> None:
    """Sends a given piece over a hop, if it fits, the sender holds it and the receiver wants it."""
    source, target = growth.hops.source[hop], growth.hops.target[hop]
    if state.carries[hop] < 0 and may_send(state.holdings, source, target, piece):
        if claim_route(growth, state, hop):
            assign(growth, state, hop, piece)


@kernel(inlined=True)
def claim_route(growth: Growth, state: Any, hop: int) -> bool:
    """Takes a slot of each link of a hop, or none."""
    first = growth.hops.first_link
    return claim(state.slots, growth.hops.links, first[hop], first[hop + 1], hop)


@kernel(inlined=True)
def _release_route(growth: Growth, state: Any, hop: int) -> None:
    first = growth.hops.first_link
    release(state.slots, growth.hops.links, first[hop], first[hop + 1], hop)


@kernel(inlined=True)
def _last_link_is_full(growth: Growth, state: Any, hop: int) -> bool:
    """Whether a hop's last link is full; checked first, since most are."""
    return is_full(state.slots, growth.hops.links[growth.hops.first_link[hop + 1] - 1])


@kernel(inlined=True)
def _open(growth: Growth, state: Any, server: Any) -> bool:
    """Whether a server wants more pieces than are on the way, and can take more."""
    return state.holdings.missing[server] > 0 and state.taken[server] < growth.intake[server]


@kernel(inner=True, allocates=False)
def find_open(growth: Growth, state: Any) -> None:
    """Makes the list of open servers; `_note` maintains it."""
    state.opened[:] = 0
    for server in range(len(growth.intake)):
        state.place[server] = -1
        _note(growth, state, server)


@kernel(inlined=True)
def _note(growth: Growth, state: Any, server: Any) -> None:
    """Adds a server to the open servers, or removes it."""
    place = state.place[server]
    if (place >= 0) == _open(growth, state, server):
        return
    hops = growth.hops.first_entering[server + 1] - growth.hops.first_entering[server]
    if place < 0:
        state.place[server] = state.opened[0]
        state.open[state.opened[0]] = server
        state.opened[0] += 1
        state.opened[1] += hops
        return
    state.opened[0] -= 1
    state.opened[1] -= hops
    last = state.open[state.opened[0]]
    state.open[place], state.place[last] = last, place
    state.place[server] = -1


@kernel(inlined=True)
def _draw(growth: Growth, state: Any) -> Any:
    """A uniformly random hop into an open server, drawn from all hops, or from theirs if few."""
    if DENSE * state.opened[1] > len(growth.hops.source):
        # Rejection: `DENSE` draws on average at most.
        while True:
            hop = np.random.randint(len(growth.hops.source))
            if state.place[growth.hops.target[hop]] >= 0:
                return hop
    at = np.random.randint(state.opened[1])
    for i in range(state.opened[0]):
        server = state.open[i]
        count = growth.hops.first_entering[server + 1] - growth.hops.first_entering[server]
        if at < count:
            return growth.hops.entering[growth.hops.first_entering[server] + at]
        at -= count
    return -1  # not reached: the counts add up


@kernel(inner=True, allocates=False)
def swap(
    growth: Growth, state: Any, rule: GrowingRule, rounds_left: int, stop: NDArray[np.bool_]
) -> bool:
    """Tries random hops into open servers. Returns whether anything changed.

    The number of attempts is what drawing H times among all H hops would give. Draws of hops into
    servers that are not open would have no effect, so they are counted without being made.
    """
    changed = False
    drawn = 0.0
    while drawn < len(growth.hops.source) and state.opened[1] > 0 and not stop[0]:
        drawn += len(growth.hops.source) / state.opened[1]
        hop = _draw(growth, state)
        if state.carries[hop] >= 0 or _last_link_is_full(growth, state, hop):
            continue
        other = _only_obstacle(growth, state, hop)
        if other == -2:
            continue
        target = growth.hops.target[hop]
        salt = np.random.randint(1 << 30)
        if other == -1:
            if _try(growth, state, rule, hop, salt):
                changed = True
                _note(growth, state, target)
            continue
        loser = growth.hops.target[other]
        gain = _slack(growth, state, loser, rounds_left) - _slack(
            growth, state, target, rounds_left
        )
        if gain < 0 or (gain == 0 and np.random.random() < SKIPPED_EQUALS):
            continue
        if _replace(growth, state, rule, other, hop, salt):
            changed = True
            _note(growth, state, target)
            _note(growth, state, loser)
    return changed


@kernel(inlined=True)
def _only_obstacle(growth: Growth, state: Any, hop: int) -> Any:
    """The single hop to remove so that a hop fits; −1 if none, −2 if one is not enough.

    A receiver's last link is never an obstacle: exchanging one piece for another there gains
    nothing.
    """
    links, obstacle, last = growth.hops.links, -1, growth.hops.first_link[hop + 1] - 1
    for i in range(growth.hops.first_link[hop], last + 1):
        if not is_full(state.slots, links[i]):
            continue
        if i == last:
            return -2
        if obstacle < 0:
            obstacle = any_holder(state.slots, links[i])
        elif not holds_slot(state.slots, links[i], obstacle):
            return -2
    return obstacle


@kernel(inner=True, allocates=False)
def _replace(
    growth: Growth, state: Any, rule: GrowingRule, other: int, hop: int, salt: int
) -> bool:
    """Sends over a hop instead of another; restores the other if there is nothing to send."""
    _release_route(growth, state, other)
    piece = _unassign(growth, state, other)
    if _try(growth, state, rule, hop, salt):
        return True
    claim_route(growth, state, other)  # its slots were free a moment ago
    assign(growth, state, other, piece)
    return False


@kernel(inner=True, allocates=False)
def arrive(growth: Growth, state: Any, sent: Integers) -> None:
    """Ends the round: pieces on the way have arrived."""
    for i in range(len(sent)):
        piece, hop = sent[i, 1], sent[i, 2]
        state.holdings.holds[growth.hops.target[hop], piece] = True
        state.holdings.held_by[piece] += 1
        state.carries[hop] = -1
