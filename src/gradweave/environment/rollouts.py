"""Random episodes by the thousand: the rules of the environment, on packed states.

`SchedulingEnvironment` plays any policy, one state at a time. These rollouts play one policy only,
workloads at random, and lay the states out for it: trees as bits, and environments last, so that
each instruction of the processor works on many environments. An episode is the same as the
environment's: replayed there, action by action, it takes the same rounds.

Environments go through rounds together; one whose round is over waits for the others. Within a
round each step sends one workload in every environment that can still send.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key, UInt, UInt32

from gradweave.environment.packed import MOST, Stage, stages
from gradweave.environment.problem import NEVER, Problem
from gradweave.environment.random_policy import hashed, scaled
from gradweave.environment.state import WORD
from gradweave.errors import OptionError


class Episodes(NamedTuple):
    """Episodes of B environments, each of which played E, one after the other."""

    rounds: Int[Array, "E B"]
    """Rounds of each."""
    sent_round: Int[Array, "B N Q"] | None
    """Round of each transfer in the last ones, as in `State`; None if not asked for."""
    sent_hop: Int[Array, "B N Q"] | None
    """Hop of each transfer in the last ones."""
    steps: Int[Array, ""]
    """Steps that were taken; in each one, environments send a workload or wait."""


class Lanes(eqx.Module):
    """What the environments are in the middle of."""

    pending: UInt32[Array, "NW B"]
    """Transfers not sent yet."""
    can_send: UInt32[Array, "NW B"]
    """Trees that each server can send in this round."""
    selected: UInt32[Array, "W B"]
    """Trees selected in this round."""
    count: UInt[Array, "P B"]
    """Workloads that can be sent on each hop; 0 where a link of its route is full."""
    room: UInt[Array, "F B"] | None
    """Transfers that listed links can still carry, and a row for no link; None where each one
    carries one a round."""
    sent_round: Int[Array, "NQ B"] | None
    """Round of each transfer."""
    sent_hop: Int[Array, "NQ B"] | None
    """Place of its hop."""


class Progress(eqx.Module):
    """How far the environments have come."""

    episode: Int[Array, " B"]
    """Episodes begun, less one."""
    round: Int[Array, " B"]
    """Rounds begun in the episode."""
    rounds: Int[Array, "E B"]
    """Rounds of the episodes that ended."""
    steps: UInt32[Array, ""]
    """Steps taken."""


class Rollouts:
    """Random episodes of one problem: called with a key, plays them.

    >>> import jax, gradweave as gw
    >>> from gradweave.environment import Instance, Problem
    >>> instance = Instance(gw.topology.ring(4))
    >>> episodes = Rollouts(Problem.of(instance), environments=8, schedules=True)(jax.random.key(0))
    >>> best = episodes.rounds[-1].argmin()
    >>> instance.schedule(episodes.sent_round[best], episodes.sent_hop[best]).rounds
    2
    """

    def __init__(
        self,
        problem: Problem,
        environments: int = 1024,
        *,
        episodes: int = 1,
        share: float = 1.0,
        schedules: bool = False,
    ) -> None:
        """Compiles nothing yet.

        Args:
            problem: whose episodes to play; a single one, not a batch. A barrier has to stand
                between its stages. Its `limit` is not looked at.
            environments: how many to play side by side.
            episodes: how many each plays, one after the other.
            share: chance of a tree to be selected in a round, in steps of 1/256.
            schedules: whether to note what was sent when.

        Raises:
            OptionError: where stages overlap, are too large, or the share is out of range.
        """
        if not 1 / 256 <= share <= 1:
            raise OptionError(f"share: expected 1/256 to 1, got {share}")
        self.environments, self.episodes = environments, episodes
        self.shape = problem.pending.shape
        self.stages = stages(problem)
        play = functools.partial(
            _play, lanes=environments, episodes=episodes, share=share, schedules=schedules
        )
        self.play = jax.jit(lambda key: self._combined(play, key))
        """The program, for those who want to compile it apart."""

    def __call__(self, key: Key[Array, ""]) -> Episodes:
        """Plays.

        Args:
            key: for all random numbers.
        """
        return self.play(key)

    def _combined(self, play: Callable[..., tuple[Progress, Lanes]], key: Array) -> Episodes:
        """Stages in turn: a barrier between them makes each one a problem of its own."""
        rounds = jnp.zeros((self.episodes, self.environments), jnp.int32)
        steps = jnp.zeros((), jnp.int32)
        sent_round = sent_hop = None
        for number, stage in enumerate(self.stages):
            progress, lanes = play(stage, jax.random.fold_in(key, number))
            if lanes.sent_round is not None and lanes.sent_hop is not None:
                if sent_round is None or sent_hop is None:
                    sent_round = jnp.full((self.environments, *self.shape), NEVER, jnp.int32)
                    sent_hop = sent_round
                when, hop = (_unpacked(stage, x) for x in (lanes.sent_round, lanes.sent_hop))
                sent = when != NEVER
                when = jnp.where(sent, when + rounds[-1][:, None, None], NEVER)
                hop = jnp.where(sent, jnp.asarray(stage.hops, jnp.int32)[hop], NEVER)
                sent_round = sent_round.at[:, :, stage.trees].set(when)
                sent_hop = sent_hop.at[:, :, stage.trees].set(hop)
            rounds += progress.rounds
            steps += progress.steps.astype(jnp.int32)
        return Episodes(rounds, sent_round, sent_hop, steps)


def _unpacked(stage: Stage, table: Array) -> Array:
    """[B, N, Q] from [N·Q and one more, B]."""
    trees = len(stage.trees)
    return jnp.moveaxis(table[: stage.servers * trees].reshape(stage.servers, trees, -1), -1, 0)


def _play(
    stage: Stage, key: Array, *, lanes: int, episodes: int, share: float, schedules: bool
) -> tuple[Progress, Lanes]:
    """Plays one stage until each environment has played all its episodes."""
    seed, trees_key = jax.random.bits(key, (2, lanes), jnp.uint32)
    flat = stage.servers * len(stage.trees) + 1

    def a_round(carry: tuple) -> tuple:
        progress, state, number, more = carry
        apart = functools.partial(_apart, more)
        selected = _drawn_trees(trees_key, number, stage.words, share)
        progress, state = _begin_round(stage, apart, progress, state, selected, episodes)

        def a_step(carry: tuple) -> tuple:
            state, steps, more = carry
            bits = hashed(seed ^ hashed(steps))
            state, can = _send(stage, functools.partial(_apart, more), state, bits, progress)
            return state, steps + 1, can.any()

        begun = (state, progress.steps, jnp.array(True))
        state, steps, _ = jax.lax.while_loop(lambda carry: carry[-1], a_step, begun)
        progress = eqx.tree_at(lambda progress: progress.steps, progress, steps)
        return progress, state, number + 1, (progress.episode < episodes).any()

    zeros = functools.partial(jnp.zeros, dtype=jnp.uint32)
    never = jnp.full((flat, lanes), NEVER, jnp.int32) if schedules else None
    state = Lanes(
        pending=zeros((len(stage.pending), lanes)),
        can_send=zeros((len(stage.pending), lanes)),
        selected=zeros((stage.words, lanes)),
        count=zeros((stage.places, lanes)).astype(_count_type(stage)),
        room=None if stage.one_each else zeros((len(stage.listed) + 1, lanes)).astype(jnp.uint16),
        sent_round=never,
        sent_hop=never,
    )
    progress = Progress(
        episode=jnp.full(lanes, -1, jnp.int32),
        round=jnp.zeros(lanes, jnp.int32),
        rounds=jnp.zeros((episodes, lanes), jnp.int32),
        steps=jnp.zeros((), jnp.uint32),
    )
    begin = (progress, state, jnp.zeros((), jnp.uint32), jnp.array(True))
    progress, state, *_ = jax.lax.while_loop(lambda carry: carry[-1], a_round, begin)
    return progress, state


def _begin_round(
    stage: Stage,
    apart: Callable[..., Any],
    progress: Progress,
    state: Lanes,
    selected: Array,
    episodes: int,
) -> tuple[Progress, Lanes]:
    """What was on the way has arrived; new episodes begin where all transfers are sent."""
    lanes = jnp.arange(selected.shape[1])
    left = apart(lambda pending: functools.reduce(jnp.bitwise_or, list(pending)), state.pending)
    over = (left == 0) & (progress.episode < episodes)
    ended = over & (progress.episode >= 0)
    log = jnp.where(ended, progress.episode, episodes)
    rounds = progress.rounds.at[log, lanes].set(progress.round, mode="drop")
    episode = progress.episode + over
    playing = episode < episodes
    first = jnp.asarray(stage.pending)[:, None]
    pending = jnp.where(over & playing, first, state.pending)
    can_send = apart(functools.partial(_can_send, stage), pending)
    count = apart(functools.partial(_counts, stage), pending, can_send, selected)
    room = state.room
    if room is not None:
        most = np.minimum(np.append(stage.capacity[stage.listed], MOST), MOST)
        room = jnp.broadcast_to(jnp.asarray(most, room.dtype)[:, None], room.shape)
    return (
        Progress(episode, jnp.where(over, 0, progress.round) + playing, rounds, progress.steps),
        Lanes(pending, can_send, selected, count, room, state.sent_round, state.sent_hop),
    )


def _can_send(stage: Stage, pending: Array) -> Array:
    """[NW, B] trees in which each server waits for nothing."""
    if not stage.by_sender:
        return ~pending
    shape = (stage.servers, stage.words, -1)
    by_server = pending.reshape(shape)
    waits = [by_server[child] & jnp.asarray(trees)[..., None] for child, trees in stage.prefixes]
    return ~functools.reduce(jnp.bitwise_or, waits).reshape(pending.shape)


def _counts(stage: Stage, pending: Array, can_send: Array, selected: Array) -> Array:
    """[P, B] workloads that are ready on each hop."""
    count = jnp.zeros((), _count_type(stage))
    for word in range(stage.words):
        ready = (
            can_send[stage.sender * stage.words + word]
            & pending[stage.row_server * stage.words + word]
        )
        ready &= jnp.asarray(stage.allowed[:, word])[:, None] & selected[word]
        count = count + jax.lax.population_count(ready).astype(count.dtype)
    return count


def _drawn_trees(seed: Array, number: Array, words: int, share: float) -> Array:
    """[W, B] trees at random, each with the chance given: its binary digits choose and or or."""
    digits = round(share * 256)
    if digits == 256:
        return jnp.full((words, len(seed)), 2**WORD - 1, jnp.uint32)
    drawn = jnp.zeros((words, len(seed)), jnp.uint32)
    for place in range(8):
        bits = jnp.stack(
            [hashed(seed ^ hashed((number * words + word) * 8 + place)) for word in range(words)]
        )
        drawn = drawn | bits if digits >> place & 1 else drawn & bits
    return drawn


def _send(
    stage: Stage, apart: Callable[..., Any], state: Lanes, bits: Array, progress: Progress
) -> tuple[Lanes, Bool[Array, " B"]]:
    """Sends a workload, drawn uniformly from those that can be sent, wherever there is one."""
    width, lane = bits.shape[0], jnp.arange(bits.shape[0], dtype=jnp.uint32)
    place, nth, can = _drawn_hop(stage, apart, state.count, bits)
    word, bit = _drawn_tree(stage, apart, state, place, nth, can)
    server, links, row, at = apart(functools.partial(_whereabouts, stage), place, word, bit, can)
    # The bit is set; taking it away leaves the others as they are.
    pending = _at(state.pending, row * width + lane, add=jnp.zeros_like(bit) - bit)
    room, full = state.room, None
    if room is not None:
        room, full = apart(functools.partial(_less_room, stage), room, links)
    elif stage.looked_up:
        full = apart(functools.partial(_full, stage), links)
    holds = (
        apart(functools.partial(_holds, stage), state.can_send, word, bit) if stage.grown else None
    )
    count = _less_count(
        stage, state.count, server, jnp.where(can, place, 2**16), links, holds, full
    )
    sent_round, sent_hop = state.sent_round, state.sent_hop
    if sent_round is not None and sent_hop is not None:
        sent_round = _at(sent_round, at * width + lane, put=progress.round - 1)
        sent_hop = _at(sent_hop, at * width + lane, put=place.astype(jnp.int32))
    return Lanes(pending, state.can_send, state.selected, count, room, sent_round, sent_hop), can


def _drawn_hop(
    stage: Stage, apart: Callable[..., Any], count: Array, bits: Array
) -> tuple[Array, Array, Array]:
    """A hop, with a chance proportional to its workloads, and which of them; two levels deep."""
    narrow, wide = jnp.iinfo(count.dtype).max, jnp.uint16
    lane = jnp.arange(bits.shape[0], dtype=jnp.uint32)

    def total(counts: Array) -> Array:
        return functools.reduce(jnp.add, list(counts))

    def of_groups(count: Array) -> Array:
        rows = count.reshape(stage.rows, stage.groups, -1)
        few = max(1, narrow // stage.most)  # rows that sum up to a narrow number
        parts = [rows[i : i + few] for i in range(0, stage.rows, few)]
        return functools.reduce(jnp.add, [total(part).astype(wide) for part in parts])

    def in_groups(sums: Array, total: Array, bits: Array) -> Array:
        return _passed(list(sums), scaled(bits, total.astype(jnp.uint32)).astype(wide))

    def in_group(count: Array, found: Array) -> Array:
        group = found & 0xFFFF
        rows = (group + row * stage.groups for row in range(stage.rows))
        counts = [_at(count, row * len(lane) + lane).astype(wide) for row in rows]
        within = _passed(counts, (found >> 16).astype(wide))
        return (within & 0xFFFF) * stage.groups + group | within >> 16 << 16

    sums = apart(of_groups, count)
    workloads = apart(total, sums)
    found = apart(in_group, count, apart(in_groups, sums, workloads, bits))
    return found & 0xFFFF, found >> 16, workloads > 0


def _passed(counts: list[Array], number: Array) -> Array:
    """Where counts, one after the other, come to exceed a number; and what is left of it << 16."""
    passed, index, before = counts[0], jnp.zeros_like(number), jnp.zeros_like(number)
    for i, count in enumerate(counts[1:], start=1):
        beyond = passed <= number
        index = jnp.where(beyond, jnp.asarray(i, number.dtype), index)
        before = jnp.where(beyond, passed, before)
        passed = passed + count
    return index.astype(jnp.uint32) | (number - before).astype(jnp.uint32) << 16


def _drawn_tree(
    stage: Stage, apart: Callable[..., Any], state: Lanes, place: Array, nth: Array, can: Array
) -> tuple[Array, Array]:
    """The n-th tree whose workload is ready on a hop: its word, and its bit in it."""
    lane = jnp.arange(len(place), dtype=jnp.uint32)

    def ready(can_send: Array, pending: Array, selected: Array, place: Array) -> list[Array]:
        both = _at(_ends(stage), place)
        sender, server = both & 0xFFFF, both >> 16
        found = []
        for word in range(stage.words):
            here = _at(can_send, (sender * stage.words + word) * len(lane) + lane)
            here &= _at(pending, (server * stage.words + word) * len(lane) + lane) & selected[word]
            found.append(here & _at(jnp.asarray(stage.allowed[:, word]), place))
        return found

    def in_words(words: list[Array], nth: Array) -> Array:
        counts = [jax.lax.population_count(word).astype(jnp.uint16) for word in words]
        return _passed(counts, nth.astype(jnp.uint16))

    def in_word(words: list[Array], found: Array, can: Array) -> Array:
        word, number = words[0], found & 0xFFFF
        for i in range(1, len(words)):
            word = jnp.where(number == i, words[i], word)
        return jnp.where(can, _nth_bit(word, found >> 16), jnp.uint32(0))

    words = apart(ready, state.can_send, state.pending, state.selected, place)
    found = apart(in_words, words, nth)
    return found & 0xFFFF, apart(in_word, words, found, can)


def _nth_bit(word: Array, nth: Array) -> Array:
    """The n-th of the bits that are set, alone."""
    position = jnp.zeros_like(word)
    for half in (16, 8, 4, 2, 1):
        below = jax.lax.population_count((word >> position) & jnp.uint32((1 << half) - 1))
        beyond = nth >= below
        position = jnp.where(beyond, position + jnp.uint32(half), position)
        nth = jnp.where(beyond, nth - below, nth)
    return jnp.uint32(1) << position


def _whereabouts(
    stage: Stage, place: Array, word: Array, bit: Array, can: Array
) -> tuple[Array, Array, Array, Array]:
    """Of a workload: row server, links, row in `pending`, row in `sent_round`; none if it is 0."""
    narrow = _number_type(stage)
    none = jnp.asarray(jnp.iinfo(narrow).max, narrow)
    server = _at(_ends(stage), place) >> 16
    table = jnp.asarray(stage.links.T.reshape(-1), narrow)
    positions = jnp.arange(stage.route, dtype=jnp.uint32)[:, None] * stage.places
    tree = word * WORD + (WORD - 1 - jax.lax.clz(bit))
    trees = len(stage.trees)
    return (
        jnp.where(can, server.astype(narrow), none),
        jnp.where(can, _at(table, place + positions), none),
        server * stage.words + word,
        jnp.where(can, server * trees + tree, jnp.uint32(stage.servers * trees)),
    )


def _holds(stage: Stage, can_send: Array, word: Array, bit: Array) -> Array:
    """[N, B] whether each server could send the workload's tree: 1 or 0."""
    by_server = can_send.reshape(stage.servers, stage.words, -1)
    here = by_server[:, 0]
    for i in range(1, stage.words):
        here = jnp.where(word == i, by_server[:, i], here)
    return jnp.where(here & bit != 0, jnp.uint8(1), jnp.uint8(0))


def _taken(stage: Stage, links: Array, position: int) -> Array:
    """[F+1, B] which of the listed links stands at a position of the route; never the last."""
    number = np.append(stage.listed, jnp.iinfo(links.dtype).max - 1)
    return jnp.asarray(number, links.dtype)[:, None] == links[position]


def _full(stage: Stage, links: Array) -> Array:
    """[F+1, B] listed links on the route, each of which carries one transfer: 1 or 0."""
    full: Any = jnp.zeros((), jnp.uint8)
    for position in stage.looked_up:
        full = jnp.where(_taken(stage, links, position), jnp.uint8(1), full)
    return full


def _less_room(stage: Stage, room: Array, links: Array) -> tuple[Array, Array]:
    """[F+1, B] room after a transfer, and whether there is none: 1 or 0."""
    for position in stage.looked_up:
        room = jnp.where(_taken(stage, links, position), room - jnp.asarray(1, room.dtype), room)
    return room, jnp.where(room == 0, jnp.uint8(1), jnp.uint8(0))


def _less_count(
    stage: Stage,
    count: Array,
    row_server: Array,
    place: Array,
    links: Array,
    holds: Array | None,
    full: Array | None,
) -> Array:
    """[P, B] without what the workload sent rules out: the same transfer, and full links' hops."""
    one = jnp.asarray(1, count.dtype)
    if holds is not None:
        fewer = count - jnp.minimum(count, holds[stage.sender].astype(count.dtype))
        count = jnp.where(
            jnp.asarray(stage.row_server, row_server.dtype)[:, None] == row_server, fewer, count
        )
    elif not stage.one_each:
        here = jnp.arange(stage.places, dtype=jnp.uint32)[:, None] == place
        count = jnp.where(here, count - jnp.minimum(count, one), count)
    blocked: Any = False
    for here, there in stage.compared:
        column = stage.links[:, here]
        unlike = np.where(column == stage.no_link, jnp.iinfo(links.dtype).max - 1, column)
        blocked |= jnp.asarray(unlike, links.dtype)[:, None] == links[there]
    if full is not None and stage.looked_up:
        found = [full[stage.place_in_list(position)] for position in stage.looked_up]
        blocked |= functools.reduce(jnp.bitwise_or, found) != 0
    return jnp.where(blocked, jnp.zeros_like(one), count)


def _ends(stage: Stage) -> Array:
    """[P] sender, and row server << 16."""
    return jnp.asarray(stage.sender | stage.row_server << 16, jnp.uint32)


def _count_type(stage: Stage) -> Any:
    return jnp.uint8 if stage.most < 2**8 else jnp.uint16


def _number_type(stage: Stage) -> Any:
    """For servers and links, with two numbers left that are none of them."""
    return jnp.uint8 if max(stage.servers, stage.no_link + 1) < 2**8 - 2 else jnp.uint16


def _at(table: Array, index: Array, *, add: Array | None = None, put: Array | None = None) -> Array:
    """Elements of a table taken as flat, or the table with something done to them."""
    place = table.reshape(-1).at[index]
    if add is None and put is None:
        return place.get(mode="promise_in_bounds")
    how: Any = {"mode": "promise_in_bounds", "unique_indices": True}
    changed = place.set(put, **how) if add is None else place.add(add, **how)
    return changed.reshape(table.shape)


def _apart(more: Bool[Array, ""], function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function says, made before anything that uses it is.

    XLA's compiler for processors would work it out again for every row of a table that it is used
    in, were it not behind a branch; a branch that is always taken, which the compiler cannot know.
    Elsewhere a branch would cost more than it saves.

    Args:
        more: True, but not known to the compiler.
        function: of arrays.
        arguments: the arrays.
    """
    if jax.default_backend() != "cpu":
        return jax.lax.optimization_barrier(function(*arguments))
    shapes = jax.eval_shape(function, *arguments)

    def nothing(*_: Any) -> Any:
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    return jax.lax.cond(more, function, nothing, *arguments)
