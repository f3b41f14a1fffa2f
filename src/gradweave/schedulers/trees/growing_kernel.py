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

KEEP = 0.3
"""Share of the swaps between equals that are left out, so that a pass does not undo itself."""
PER_REPEAT = 4
"""Rounds that earn one repeat of a round that would leave a server more than it can still take.
Runs of many rounds without slack would else end at the first link that idles; short ones are as
quickly restarted."""
LENGTHS = 64
"""Lengths of hops that are told apart."""
DENSE = 8
"""Where at least one hop in so many is worth an attempt, hops are drawn from all."""


class Growth(NamedTuple):
    """Who can send to whom over what. Servers are ranks, resources link directions."""

    root: NDArray[np.int64]
    """[P] server at which each piece starts."""
    source: NDArray[np.int64]
    """[H] server that a hop leaves."""
    target: NDArray[np.int64]
    """[H] server that it enters."""
    resources: NDArray[np.int64]
    """What the hops use, one hop after the other, in the order of the route."""
    first: NDArray[np.int64]
    """[H+1] where each hop's resources start."""
    capacity: NDArray[np.int64]
    """[R] hops that each resource carries in a round."""
    first_slot: NDArray[np.int64]
    """[R+1] where each resource's slots start."""
    intake: NDArray[np.int64]
    """[N] pieces that a server can take in one round, at most."""
    most_steps: NDArray[np.int16]
    """[N, P] transfers in a row by which a piece may reach a server, at most; [0, 0] for no limit.
    Each server but a root has a neighbour with less, so that no piece gets stuck."""


class Rule(NamedTuple):
    """How pieces are chosen, and how long rounds are improved."""

    near: int
    """Weight of the number of hops by which the receiver could get the piece, from servers that
    hold it or are about to: so that its neighbours are not all sent the same piece at once."""
    everywhere: int
    """Weight of the number of servers that hold it at all."""
    noise: int
    """Random part: up to this, less one; a power of two."""
    passes: int
    """How often the swaps go through as many hops as there are."""
    short: int
    """1 to try shorter hops first among receivers of the same slack, 0 not to."""


class _State(NamedTuple):
    """A round half filled. `assign` and `_unassign` keep the counts equal to what they count."""

    holds: NDArray[np.bool_]
    """[N, P] held since an earlier round."""
    wanted: NDArray[np.bool_]
    """[N, P] neither held nor on the way."""
    near: NDArray[np.int64]
    """[N, P] hops into the server from one that holds the piece or is about to."""
    steps: NDArray[np.int16]
    """[N, P] where they are limited, transfers in a row by which a piece reached a server."""
    held_by: NDArray[np.int64]
    """[P] servers that hold the piece."""
    missing: NDArray[np.int64]
    """[N] pieces that a server wants."""
    taken: NDArray[np.int64]
    """[N] pieces on the way to a server in this round."""
    used: NDArray[np.int64]
    """[R] slots taken in this round."""
    holder: NDArray[np.int64]
    """[sum of capacities] hop in each taken slot; a resource's taken slots come first."""
    carries: NDArray[np.int64]
    """[H] piece on each hop in this round; −1 for none."""
    leaving: NDArray[np.int64]
    """[H] hops by the server that they leave."""
    first_leaving: NDArray[np.int64]
    """[N+1] where each server's start."""
    entering: NDArray[np.int64]
    """[H] hops by the server that they enter."""
    first_entering: NDArray[np.int64]
    """[N+1] where each server's start."""
    open: NDArray[np.int64]
    """[N] while swaps are tried: first, in any order, the servers that `_open` is true of."""
    place: NDArray[np.int64]
    """[N] where in `open` a server stands; −1 where it does not."""
    opened: NDArray[np.int64]
    """[2] how many servers stand in `open`, and how many hops enter them."""


@kernel
def grow(
    growth: Growth,
    rule: Rule,
    hints: NDArray[np.int64],
    max_rounds: int,
    target: int,
    seed: int,
    late: NDArray[np.bool_],
    finish: bool,
) -> NDArray[np.int64]:
    """[transfers, 3] round, piece and hop of each; no rows where `max_rounds` are too few.

    Args:
        growth: the problem.
        rule: how to choose.
        hints: [M, 3] round, piece and hop to try first in their rounds, by round.
        max_rounds: after which to give up.
        target: rounds hoped for, from which receivers' slack is counted.
        seed: of every random choice.
        late: [1] set by another thread once time is up.
        finish: whether the run is finished then, without swaps and in a small part of the time, or
            given up.
    """
    np.random.seed(seed)
    state = start(growth)
    left = state.missing.sum()
    sent = np.empty((left, 3), np.int64)  # as many as are missing: each is sent once
    count, at, hint, again = 0, 0, 0, 0
    while left:
        given_up = late[0] and not finish
        if given_up or at >= max_rounds or _too_late(growth, state, max_rounds - at):
            return np.empty((0, 3), np.int64)
        state.used[:] = 0
        state.taken[:] = 0
        while hint < len(hints) and hints[hint, 0] <= at:
            _take(growth, state, hints[hint, 2], hints[hint, 1])
            hint += 1
        _fill(growth, state, rule, max(target, at + 1) - at, late)
        while again < at // PER_REPEAT and _too_late(growth, state, max_rounds - at - 1):
            undo(growth, state)
            _fill(growth, state, rule, max(target, at + 1) - at, late)
            again += 1
        before = count
        for hop in range(len(growth.source)):
            piece = state.carries[hop]
            if piece >= 0:
                sent[count, 0], sent[count, 1], sent[count, 2] = at, piece, hop
                count += 1
        if count == before:
            return np.empty((0, 3), np.int64)
        arrive(growth, state, sent[before:count])
        left -= count - before
        at += 1
    return sent


@kernel(inner=True)
def _fill(
    growth: Growth, state: Any, rule: Rule, rounds_left: int, late: NDArray[np.bool_]
) -> None:
    """What a round's hints leave: receivers choose, then swap."""
    salt = np.random.randint(1 << 30)
    if not late[0]:
        for hop in _by_slack(growth, state, rule, rounds_left):
            last = growth.resources[growth.first[hop + 1] - 1]
            if state.used[last] < growth.capacity[last]:  # most are full: saves the call
                _try(growth, state, rule, hop, salt)
            if late[0]:
                break
    if late[0]:
        _fill_quickly(growth, state, rule, rounds_left, salt)
        return
    find_open(growth, state)
    for _ in range(rule.passes):
        if not swap(growth, state, rule, rounds_left, late):
            break


@kernel(inner=True)
def _fill_quickly(growth: Growth, state: Any, rule: Rule, rounds_left: int, salt: int) -> None:
    """A valid round in little time: each receiver tries its hops until it can take no more."""
    servers = len(growth.intake)
    slack = np.empty(servers, np.int64)
    for server in range(servers):
        slack[server] = _slack(growth, state, server, rounds_left)
    for server in np.argsort(slack):
        begin = state.first_entering[server]
        count = state.first_entering[server + 1] - begin
        offset = np.random.randint(count) if count else 0
        for i in range(count):
            if not _open(growth, state, server):
                break
            hop = state.entering[begin + (offset + i) % count]
            first = growth.resources[growth.first[hop]]
            if state.carries[hop] < 0 and state.used[first] < growth.capacity[first]:
                _try(growth, state, rule, hop, salt)


@kernel(inner=True)
def undo(growth: Growth, state: Any) -> None:
    """Takes all of a round's transfers back."""
    state.used[:] = 0
    for hop in range(len(growth.source)):
        if state.carries[hop] >= 0:
            _unassign(growth, state, hop)


@kernel(inner=True)
def start(growth: Growth) -> Any:
    """The state before the first round. In plain loops: NumPy's functions take long to compile."""
    servers, pieces, hops = len(growth.intake), len(growth.root), len(growth.source)
    holds, wanted = np.zeros((servers, pieces), np.bool_), np.ones((servers, pieces), np.bool_)
    near = np.zeros((servers, pieces), np.int64)
    held_by, missing = np.empty(pieces, np.int64), np.empty(servers, np.int64)
    for server in range(servers):
        missing[server] = pieces
    for piece in range(pieces):
        holds[growth.root[piece], piece], wanted[growth.root[piece], piece] = True, False
        held_by[piece] = 1
        missing[growth.root[piece]] -= 1
    carries = np.empty(hops, np.int64)
    for hop in range(hops):
        carries[hop] = -1
    leaving, first_leaving = _grouped(growth.source, servers)
    entering, first_entering = _grouped(growth.target, servers)
    for piece in range(pieces):
        root = growth.root[piece]
        for i in range(first_leaving[root], first_leaving[root + 1]):
            near[growth.target[leaving[i]], piece] += 1
    return _State(
        holds,
        wanted,
        near,
        np.zeros(growth.most_steps.shape, np.int16),
        held_by,
        missing,
        np.zeros(servers, np.int64),
        np.zeros(len(growth.capacity), np.int64),
        np.empty(growth.first_slot[-1], np.int64),
        carries,
        leaving,
        first_leaving,
        entering,
        first_entering,
        np.empty(servers, np.int64),
        np.empty(servers, np.int64),
        np.zeros(2, np.int64),
    )


@kernel(inner=True)
def _grouped(server: NDArray[np.int64], servers: int) -> Any:
    """[H] hops by one of their servers, ascending, and [N+1] where each server's start."""
    grouped, first = np.empty(len(server), np.int64), np.zeros(servers + 1, np.int64)
    for hop in range(len(server)):
        first[server[hop] + 1] += 1
    for each in range(servers):
        first[each + 1] += first[each]
    place = first.copy()
    for hop in range(len(server)):
        grouped[place[server[hop]]] = hop
        place[server[hop]] += 1
    return grouped, first


@kernel(inner=True)
def _too_late(growth: Growth, state: Any, rounds_left: int) -> bool:
    """Whether some server wants more than it can take in the rounds left."""
    for server in range(len(growth.intake)):
        if state.missing[server] > rounds_left * growth.intake[server]:
            return True
    return False


@kernel(inlined=True)
def _slack(growth: Growth, state: Any, server: Any, rounds_left: int) -> Any:
    return rounds_left * growth.intake[server] - state.missing[server]


@kernel(inner=True)
def _by_slack(growth: Growth, state: Any, rule: Rule, rounds_left: int) -> NDArray[np.int64]:
    """Hops into servers that want something, least slack first, at random among equals.

    A counting sort, since there are many hops and few values of the slack.
    """
    rank = _slack_ranks(growth, state, rounds_left)
    begins = np.zeros(len(rank) * LENGTHS + 1, np.int64)
    place = np.empty(len(growth.source), np.int64)
    for hop in range(len(place)):
        server = growth.target[hop]
        place[hop] = -1
        if state.missing[server] and state.carries[hop] < 0:
            length = growth.first[hop + 1] - growth.first[hop]
            place[hop] = rank[server] * LENGTHS + rule.short * min(length, LENGTHS - 1)
            begins[place[hop] + 1] += 1
    for i in range(1, len(begins)):
        begins[i] += begins[i - 1]
    by_slack = np.empty(begins[-1], np.int64)
    for hop in np.random.permutation(len(place)):
        if place[hop] >= 0:
            by_slack[begins[place[hop]]] = hop
            begins[place[hop]] += 1
    return by_slack


@kernel(inner=True)
def _slack_ranks(growth: Growth, state: Any, rounds_left: int) -> NDArray[np.int64]:
    """[N] how many different values of the slack are below a server's."""
    slack = np.empty(len(growth.intake), np.int64)
    for server in range(len(slack)):
        slack[server] = _slack(growth, state, server, rounds_left)
    rank, last, values = np.empty(len(slack), np.int64), np.int64(0), -1
    for server in np.argsort(slack):
        if values < 0 or slack[server] > last:
            last, values = slack[server], values + 1
        rank[server] = values
    return rank


@kernel(inner=True)
def _choose(growth: Growth, state: Any, rule: Rule, hop: int, salt: int) -> Any:
    """The rarest piece to send over a hop, ties by a hash; −1 where there is none.

    Takes most of the search's time: one pass over the pieces for each hop that is tried. A hash of
    piece, hop and round breaks ties, which costs less than a random number for each piece.
    """
    source, target = growth.source[hop], growth.target[hop]
    best, lowest = -1, np.int64(1) << 62
    mix = salt + hop * 40503
    held, wanted, near = state.holds[source], state.wanted[target], state.near[target]
    limited = len(growth.most_steps) > 0
    for piece in range(len(growth.root)):
        if held[piece] and wanted[piece]:
            if limited and state.steps[source, piece] >= growth.most_steps[target, piece]:
                continue
            mixed = ((piece + 1) * 2654435761 + mix * 2246822519) & 0xFFFFFFFF
            key = (
                rule.near * near[piece]
                + rule.everywhere * state.held_by[piece]
                + (((mixed ^ (mixed >> 15)) * 2654435761 & 0xFFFFFFFF) >> 12) % rule.noise
            )
            if key < lowest:
                best, lowest = piece, key
    return best


@kernel(inner=True)
def _try(growth: Growth, state: Any, rule: Rule, hop: int, salt: int) -> bool:
    """Sends something over a hop if there is room and anything to send."""
    if not claim(growth, state, hop):
        return False
    piece = _choose(growth, state, rule, hop, salt)
    if piece < 0:
        _release(growth, state, hop)
        return False
    assign(growth, state, hop, piece)
    return True


@kernel(inner=True)
def assign(growth: Growth, state: Any, hop: int, piece: Any) -> None:
    """Puts a piece on a hop whose resources are claimed. Takes time in the receiver's hops."""
    server = growth.target[hop]
    if len(growth.most_steps):
        state.steps[server, piece] = state.steps[growth.source[hop], piece] + 1
    state.carries[hop] = piece
    state.wanted[server, piece] = False
    state.missing[server] -= 1
    state.taken[server] += 1
    _promise(growth, state, server, piece, 1)


@kernel(inner=True)
def _unassign(growth: Growth, state: Any, hop: int) -> Any:
    """Takes a hop's piece off it, and returns the piece; its resources stay claimed."""
    piece, server = state.carries[hop], growth.target[hop]
    state.carries[hop] = -1
    state.wanted[server, piece] = True
    state.missing[server] += 1
    state.taken[server] -= 1
    _promise(growth, state, server, piece, -1)
    return piece


@kernel(inner=True)
def _promise(growth: Growth, state: Any, server: Any, piece: Any, more: int) -> None:
    """Counts a server among those that can send a piece, or no longer."""
    for i in range(state.first_leaving[server], state.first_leaving[server + 1]):
        state.near[growth.target[state.leaving[i]], piece] += more


@kernel(inner=True)
def _take(growth: Growth, state: Any, hop: int, piece: int) -> None:
    """Sends a given piece over a hop, if it fits, is there to be sent and is wanted."""
    source, target = growth.source[hop], growth.target[hop]
    if not (state.holds[source, piece] and state.wanted[target, piece]) or state.carries[hop] >= 0:
        return
    limited = len(growth.most_steps) > 0
    if limited and state.steps[source, piece] >= growth.most_steps[target, piece]:
        return
    if claim(growth, state, hop):
        assign(growth, state, hop, piece)


@kernel(inner=True)
def claim(growth: Growth, state: Any, hop: int) -> bool:
    """Takes a slot of each resource of a hop, or none. A route may use a resource twice."""
    for i in range(growth.first[hop], growth.first[hop + 1]):
        resource = growth.resources[i]
        if state.used[resource] >= growth.capacity[resource]:
            for j in range(growth.first[hop], i):
                _free(growth, state, growth.resources[j], hop)
            return False
        state.holder[growth.first_slot[resource] + state.used[resource]] = hop
        state.used[resource] += 1
    return True


@kernel(inlined=True)
def _free(growth: Growth, state: Any, resource: int, hop: int) -> None:
    """Gives one of a hop's slots back; the last slot moves there, so that taken ones stay first."""
    last = growth.first_slot[resource] + state.used[resource] - 1
    for slot in range(growth.first_slot[resource], last):
        if state.holder[slot] == hop:
            state.holder[slot] = state.holder[last]
            break
    state.used[resource] -= 1


@kernel(inner=True)
def _release(growth: Growth, state: Any, hop: int) -> None:
    for i in range(growth.first[hop], growth.first[hop + 1]):
        _free(growth, state, growth.resources[i], hop)


@kernel(inlined=True)
def _open(growth: Growth, state: Any, server: Any) -> bool:
    """Whether a server wants more than is on its way, and has room for it."""
    return state.missing[server] > 0 and state.taken[server] < growth.intake[server]


@kernel(inner=True)
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
    hops = state.first_entering[server + 1] - state.first_entering[server]
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
    if DENSE * state.opened[1] > len(growth.source):
        while True:
            hop = np.random.randint(len(growth.source))
            if state.place[growth.target[hop]] >= 0:
                return hop
    at = np.random.randint(state.opened[1])
    for i in range(state.opened[0]):
        server = state.open[i]
        count = state.first_entering[server + 1] - state.first_entering[server]
        if at < count:
            return state.entering[state.first_entering[server] + at]
        at -= count
    return -1  # not reached: the counts add up


@kernel(inner=True)
def swap(growth: Growth, state: Any, rule: Rule, rounds_left: int, late: NDArray[np.bool_]) -> bool:
    """Random attempts at hops into open servers. Returns whether anything changed.

    As many as there would be if as many hops as there are were drawn from all: the others would be
    in vain, and are counted in place of drawn.
    """
    changed = False
    drawn = 0.0
    while drawn < len(growth.source) and state.opened[1] > 0 and not late[0]:
        drawn += len(growth.source) / state.opened[1]
        hop = _draw(growth, state)
        last = growth.resources[growth.first[hop + 1] - 1]
        if state.carries[hop] >= 0 or state.used[last] >= growth.capacity[last]:
            continue
        other = _only_obstacle(growth, state, hop)
        if other == -2:
            continue
        target = growth.target[hop]
        salt = np.random.randint(1 << 30)
        if other == -1:
            if _try(growth, state, rule, hop, salt):
                changed = True
                _note(growth, state, target)
            continue
        loser = growth.target[other]
        gain = _slack(growth, state, loser, rounds_left) - _slack(
            growth, state, target, rounds_left
        )
        if gain < 0 or (gain == 0 and np.random.random() < KEEP):
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
    obstacle = -1
    for i in range(growth.first[hop], growth.first[hop + 1]):
        resource = growth.resources[i]
        if state.used[resource] < growth.capacity[resource]:
            continue
        if i == growth.first[hop + 1] - 1:
            return -2
        begin = growth.first_slot[resource]
        if obstacle >= 0:
            found = False
            for slot in range(begin, begin + state.used[resource]):
                found |= state.holder[slot] == obstacle
            if not found:
                return -2
        else:
            obstacle = state.holder[begin + np.random.randint(state.used[resource])]
    return obstacle


@kernel(inner=True)
def _replace(growth: Growth, state: Any, rule: Rule, other: int, hop: int, salt: int) -> bool:
    """Sends over a hop in place of another; puts the other back where there is nothing to send."""
    _release(growth, state, other)
    piece = _unassign(growth, state, other)
    if _try(growth, state, rule, hop, salt):
        return True
    claim(growth, state, other)  # its slots were free a moment ago
    assign(growth, state, other, piece)
    return False


@kernel(inner=True)
def arrive(growth: Growth, state: Any, sent: NDArray[np.int64]) -> None:
    """The round's end: what was on the way is held."""
    for i in range(len(sent)):
        piece, hop = sent[i, 1], sent[i, 2]
        state.holds[growth.target[hop], piece] = True
        state.held_by[piece] += 1
        state.carries[hop] = -1
