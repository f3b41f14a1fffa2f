"""The grown all-gather's loop, compiled.

Each round, receivers with the least slack choose first: over each hop into them, the ready piece
that is rarest among their neighbours. Then swaps: a hop into a receiver that could take more,
blocked by one other hop, takes that hop's place if the other's receiver has no less slack, and so
on at random; such chains fill almost every round that can be filled.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.compiled import kernel
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

# Chosen by hand, and compiled in: an argument would pass through each call of the round's loops.
PER_REPEAT = 4
"""Rounds that earn one repeat of a round that would leave a server more than it can still take.
Runs of many rounds without slack would else end at the first link that idles; short ones are as
quickly restarted."""
LENGTHS = 64
"""Lengths of hops that are told apart: the counting sort has as many buckets for each slack."""
DENSE = 8
"""Where at least one hop in so many is worth an attempt, hops are drawn from all."""


class Growth(NamedTuple):
    """Who can send to whom over what, and what is to be sent."""

    hops: HopTable
    """Of the network; a route that carries several transfers in a round has a hop for each."""
    root: Integers
    """[P] server at which each piece starts."""
    capacity: Integers
    """[L] hops that each link direction carries in a round."""
    intake: Integers
    """[N] pieces that a server can take in one round, at most."""
    most_steps: NDArray[np.int16]
    """[N, P] transfers in a row by which a piece may reach a server, at most; [0, 0] for no limit.
    Each server but a root has a neighbour with less, so that no piece gets stuck."""


class Rule(NamedTuple):
    """How pieces are chosen, and how long rounds are improved."""

    near: int
    """This and the next two as in `Rarity`."""
    everywhere: int
    noise: int
    passes: int
    """How often the swaps go through as many hops as there are."""
    short: int
    """1 to try shorter hops first among receivers of the same slack, 0 not to."""


class _State(NamedTuple):
    """A round half filled. `assign` and `_unassign` keep the counts equal to what they count."""

    holdings: Holdings
    """Who holds, gets and lacks what; what is on the way is not wanted."""
    slots: Slots
    """Which hops send in this round, by link."""
    taken: Integers
    """[N] pieces on the way to a server in this round."""
    carries: Integers
    """[H] piece on each hop in this round; −1 for none."""
    open: Integers
    """[N] while swaps are tried: first, in any order, the servers that `_open` is true of."""
    place: Integers
    """[N] where in `open` a server stands; −1 where it does not."""
    opened: Integers
    """[2] how many servers stand in `open`, and how many hops enter them."""


@kernel
def grow(
    growth: Growth,
    rule: Rule,
    hints: Integers,
    max_rounds: int,
    target: int,
    seed: int,
    stop: NDArray[np.bool_],
    finish: bool,
) -> Integers:
    """[transfers, 3] round, piece and hop of each; no rows where `max_rounds` are too few.

    Args:
        growth: the problem.
        rule: how to choose.
        hints: [M, 3] round, piece and hop to try first in their rounds, by round.
        max_rounds: after which to give up.
        target: rounds to aim at, from which receivers' slack is counted.
        seed: of every random choice.
        stop: [1] set by another thread once time is up.
        finish: whether the run is finished then, without swaps and in a small part of the time, or
            given up.
    """
    np.random.seed(seed)
    state = start(growth)
    left = state.holdings.missing.sum()
    sent = np.empty((left, 3), np.int64)  # as many as are missing: each is sent once
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
    """Adds a round's transfers to those before; how many there are then."""
    for hop in range(len(state.carries)):
        piece = state.carries[hop]
        if piece >= 0:
            sent[count, 0], sent[count, 1], sent[count, 2] = at, piece, hop
            count += 1
    return count


@kernel(inner=True)
def _fill(
    growth: Growth, state: Any, rule: Rule, rounds_left: int, stop: NDArray[np.bool_]
) -> None:
    """What a round's hints leave: receivers choose, then swap."""
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
    rule: Rule,
    hops: Integers,
    salt: int,
    stop: NDArray[np.bool_],
) -> None:
    """Sends something over each hop that has room, in order."""
    for hop in hops:
        if not _last_link_is_full(growth, state, hop):
            _try(growth, state, rule, hop, salt)
        if stop[0]:
            break


@kernel(inner=True)
def _fill_quickly(growth: Growth, state: Any, rule: Rule, rounds_left: int, salt: int) -> None:
    """A valid round in little time: each receiver tries its hops until it can take no more."""
    slack = np.empty(len(growth.intake), np.int64)
    _write_slack(growth, state, rounds_left, slack)
    _try_receivers(growth, state, rule, np.argsort(slack), salt)


@kernel(inner=True, allocates=False)
def _try_receivers(growth: Growth, state: Any, rule: Rule, servers: Integers, salt: int) -> None:
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
    """Takes all of a round's transfers back."""
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
    """Whether some server wants more than it can take in the rounds left."""
    for server in range(len(growth.intake)):
        if state.holdings.missing[server] > rounds_left * growth.intake[server]:
            return True
    return False


@kernel(inlined=True)
def _slack(growth: Growth, state: Any, server: Any, rounds_left: int) -> Any:
    return rounds_left * growth.intake[server] - state.holdings.missing[server]


@kernel(inner=True)
def _by_slack(growth: Growth, state: Any, rule: Rule, rounds_left: int) -> Integers:
    """Hops into servers that want something, least slack first, at random among equals.

    A counting sort, since there are many hops and few values of the slack.
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
    growth: Growth, state: Any, rule: Rule, rank: Integers, place: Integers, begins: Integers
) -> None:
    """Writes the bucket of each hop, −1 where nothing is wanted over it, and where each begins."""
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
    """[N] how many different values of the slack are below a server's."""
    rank, last, values = np.empty(len(slack), np.int64), np.int64(0), -1
    for server in np.argsort(slack):
        if values < 0 or slack[server] > last:
            last, values = slack[server], values + 1
        rank[server] = values
    return rank


@kernel(inner=True, allocates=False)
def _try(growth: Growth, state: Any, rule: Rule, hop: int, salt: int) -> bool:
    """Sends something over a hop if there is room and anything to send."""
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
    """Puts a piece on a hop whose slots are claimed. Takes time in the receiver's hops."""
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
    """Takes a hop's piece off it, and returns the piece; its slots stay claimed."""
    piece, server = state.carries[hop], growth.hops.target[hop]
    state.carries[hop] = -1
    state.holdings.wanted[server, piece] = True
    state.holdings.missing[server] += 1
    state.taken[server] -= 1
    promise(growth.hops, state.holdings.near, server, piece, -1)
    return piece


@kernel(inner=True, allocates=False)
def _take(growth: Growth, state: Any, hop: int, piece: int) -> None:
    """Sends a given piece over a hop, if it fits, is there to be sent and is wanted."""
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
    """Whether a hop's receiver is: saves a call, for most are."""
    return is_full(state.slots, growth.hops.links[growth.hops.first_link[hop + 1] - 1])


@kernel(inlined=True)
def _open(growth: Growth, state: Any, server: Any) -> bool:
    """Whether a server wants more than is on its way, and has room for it."""
    return state.holdings.missing[server] > 0 and state.taken[server] < growth.intake[server]


@kernel(inner=True, allocates=False)
def find_open(growth: Growth, state: Any) -> None:
    """Makes the list of servers that are open; `_note` keeps it."""
    state.opened[:] = 0
    for server in range(len(growth.intake)):
        state.place[server] = -1
        _note(growth, state, server)


@kernel(inlined=True)
def _note(growth: Growth, state: Any, server: Any) -> None:
    """Puts a server among those that are open, or takes it out."""
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
    """A hop into an open server, each as likely: at random among all, or among theirs if few."""
    if DENSE * state.opened[1] > len(growth.hops.source):
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
def swap(growth: Growth, state: Any, rule: Rule, rounds_left: int, stop: NDArray[np.bool_]) -> bool:
    """Random attempts at hops into open servers. Returns whether anything changed.

    As many as there would be if as many hops as there are were drawn from all: the others would be
    in vain, and are counted in place of drawn.
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
    """The one hop to remove so that a hop fits; −1 for none, −2 where one is not enough.

    A receiver's own last link is never an obstacle: taking one piece for another there gains
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
def _replace(growth: Growth, state: Any, rule: Rule, other: int, hop: int, salt: int) -> bool:
    """Sends over a hop in place of another; puts the other back where there is nothing to send."""
    _release_route(growth, state, other)
    piece = _unassign(growth, state, other)
    if _try(growth, state, rule, hop, salt):
        return True
    claim_route(growth, state, other)  # its slots were free a moment ago
    assign(growth, state, other, piece)
    return False


@kernel(inner=True, allocates=False)
def arrive(growth: Growth, state: Any, sent: Integers) -> None:
    """The round's end: what was on the way is held."""
    for i in range(len(sent)):
        piece, hop = sent[i, 1], sent[i, 2]
        state.holdings.holds[growth.hops.target[hop], piece] = True
        state.holdings.held_by[piece] += 1
        state.carries[hop] = -1
