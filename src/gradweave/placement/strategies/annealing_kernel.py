"""Simulated annealing of a table of devices, compiled.

The table is a row of positions: position s·D + p holds the device of stage s in pipeline p, and
positions from S·D on hold idle devices. The objective shifts from means to maxima: the largest time
has weight `max_weight` and the mean time the rest, over devices in their groups and over pipelines
at each boundary between stages. Maxima alone are flat: moving one device to its right place rarely
changes a maximum.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.common.compiled import kernel
from gradweave.placement.exchange_kernel import exchange_cost

MOVES_PER_CHECK = 1024
"""Moves after which the stop is checked, the temperature drops, and costs are summed from
scratch."""
WEIGHT_FIXED_FROM = 0.8
"""Fraction of the moves after which the weight of maxima stays constant."""
TAILS, STAGES, NEAR = 0.08, 0.12, 0.45
"""Cumulative fractions of the kinds of moves: exchange the tails of two pipelines; reverse a
stretch of stages; put a device next to a near one. The remaining moves exchange any two devices."""


class Table(NamedTuple):
    """The numbers of a problem, and a placement with its costs."""

    delay: NDArray[np.float64]
    """[N, N] seconds, both directions added."""
    per_byte: NDArray[np.float64]
    """[N, N] seconds per byte, both directions added."""
    moved: NDArray[np.float64]
    """[S−1] bytes between stages."""
    part: NDArray[np.float64]
    """[S] bytes of a device's part of the gradient."""
    fits: NDArray[np.bool_]
    """[S, N]"""
    at: NDArray[np.int64]
    """[N] device at each position."""
    edge: NDArray[np.float64]
    """[S−1, D] seconds at each boundary of each pipeline."""
    exchange: NDArray[np.float64]
    """[S, D] seconds of each device in its group."""


@kernel
def anneal(
    table: Table,
    alike: bool,
    near: NDArray[np.int64],
    moves: int,
    hot: float,
    cold: float,
    last_max_weight: float,
    seed: int,
    stopped: NDArray[np.bool_],
) -> None:
    """Applies up to `moves` moves to a table's placement, until the search is stopped.

    Args:
        table: any placement that fits.
        alike: whether stages may change places.
        near: [N, K] the nearest devices of each.
        moves: number of moves to try.
        hot: the first temperature, in seconds.
        cold: the last temperature.
        last_max_weight: final `max_weight`.
        seed: seed of the moves.
        stopped: [1] set to end the search.
    """
    np.random.seed(seed)
    before = np.empty(len(table.at), np.int64)
    _anneal(table, alike, near, moves, hot, cold, last_max_weight, stopped, before)


@kernel(inner=True, allocates=False)
def _anneal(
    table: Any,
    alike: bool,
    near: NDArray[np.int64],
    moves: int,
    hot: float,
    cold: float,
    last_max_weight: float,
    stopped: NDArray[np.bool_],
    before: NDArray[np.int64],
) -> None:
    """See `anneal`; `before` is scratch, [N]."""
    stages, data = table.exchange.shape
    _measure_all(table)
    max_weight, temperature = 0.0, hot
    cost = _cost(table, max_weight)
    # A move recomputes O(D) pairs and sums O(S·D) of them; the whole table would be O(S·D²).
    for move in range(moves):
        if move % MOVES_PER_CHECK == 0:
            if stopped[0]:
                break
            done = move / moves
            temperature = hot * (cold / hot) ** done
            max_weight = last_max_weight * min(1.0, done / WEIGHT_FIXED_FROM)
            _measure_all(table)  # incremental sums drift
            cost = _cost(table, max_weight)
        kind = np.random.random()
        if kind < TAILS and data > 1 and stages > 1:
            first = np.random.randint(1, stages)
            one, other = np.random.randint(data), np.random.randint(data)
            _exchange_tails(table, first, one, other)
            changed = _cost(table, max_weight)
            if _accepted(changed - cost, temperature):
                cost = changed
            else:
                _exchange_tails(table, first, one, other)
        elif kind < STAGES and alike and stages > 2:
            _copy(table.at, before)
            _reverse(table, np.random.randint(stages), np.random.randint(stages))
            changed = _cost(table, max_weight)
            if _accepted(changed - cost, temperature):
                cost = changed
            else:
                _copy(before, table.at)
                _measure_all(table)
        else:
            one, other = _two(table, near, kind < NEAR)
            if not _may_exchange(table, one, other):
                continue
            _exchange(table, one, other)
            changed = _cost(table, max_weight)
            if _accepted(changed - cost, temperature):
                cost = changed
            else:
                _exchange(table, one, other)


@kernel
def local_search(table: Table, alike: bool, tries: int, stopped: NDArray[np.bool_]) -> float:
    """Exchanges devices between groups while that lowers the exact cost; returns the final cost.

    Args:
        table: the placement, changed in place.
        alike: whether stages may change places.
        tries: maximum number of exchanges to try.
        stopped: [1] set to end the search.
    """
    stages, data = table.exchange.shape
    used = stages * data
    groups = table.at[:used].copy().reshape(stages, data)
    best = exchange_cost(table.delay, table.per_byte, table.moved, table.part, alike, groups)
    improving = True
    while improving and tries > 0 and not stopped[0]:
        improving = False
        for one in range(used):
            if stopped[0] or tries <= 0:
                break
            for other in range((one // data + 1) * data, len(table.at)):
                if not _may_exchange(table, one, other):
                    continue
                if not _helps(table, one, other):
                    continue
                table.at[one], table.at[other] = table.at[other], table.at[one]
                groups = table.at[:used].copy().reshape(stages, data)
                tries -= 1
                cost = exchange_cost(
                    table.delay, table.per_byte, table.moved, table.part, alike, groups
                )
                if cost < best * (1 - 1e-12):
                    best, improving = cost, True
                else:
                    table.at[one], table.at[other] = table.at[other], table.at[one]
    return best


@kernel
def perturbed(
    table: Table, alike: bool, times: int, cost: float, seed: int, stopped: NDArray[np.bool_]
) -> Table:
    """Exchanges a few devices at random and searches again, repeatedly; returns the best table.

    Args:
        table: a placement that no exchange improves.
        alike: whether stages may change places.
        times: number of repetitions.
        cost: cost of the placement.
        seed: seed of the exchanges.
        stopped: [1] set to end the search.
    """
    np.random.seed(seed)
    best = table.at.copy()
    for _ in range(times):
        if stopped[0]:
            break
        for _ in range(2 + np.random.randint(3)):
            one, other = np.random.randint(len(best)), np.random.randint(len(best))
            if _may_exchange(table, one, other):
                table.at[one], table.at[other] = table.at[other], table.at[one]
        found = local_search(table, alike, 1 << 30, stopped)
        if found < cost:
            cost, best = found, table.at.copy()
        else:
            table.at[:] = best
    table.at[:] = best
    return table


@kernel(inner=True, allocates=False)
def _helps(table: Any, one: int, other: int) -> bool:
    """Whether two devices differ as seen from some third; identical devices need no exchange."""
    first, second = table.at[one], table.at[other]
    for third in range(len(table.at)):
        if third != first and third != second:
            if table.delay[first, third] != table.delay[second, third]:
                return True
            if table.per_byte[first, third] != table.per_byte[second, third]:
                return True
    return False


@kernel(inlined=True)
def _copy(source: Any, target: Any) -> None:
    """``target[:] = source`` without an allocation."""
    for i in range(len(target)):
        target[i] = source[i]


@kernel(inner=True, allocates=False)
def _accepted(rise: float, temperature: float) -> bool:
    return rise <= 0.0 or np.random.random() < np.exp(-rise / temperature)


@kernel(inner=True, allocates=False)
def _may_exchange(table: Any, one: int, other: int) -> bool:
    """Whether both devices fit in their new places; false if both are idle or in one place."""
    stages, data = table.exchange.shape
    if one == other or (one >= stages * data and other >= stages * data):
        return False
    for here, there in ((one, other), (other, one)):
        if here < stages * data and not table.fits[here // data, table.at[there]]:
            return False
    return True


@kernel(inner=True, allocates=False)
def _two(table: Any, near: Any, beside: bool) -> Any:
    """Two positions: any two, or such that one device comes next to a device near it."""
    stages, data = table.exchange.shape
    used, count = stages * data, len(table.at)
    one = np.random.randint(used)
    if not beside or near.shape[1] == 0:
        return one, np.random.randint(count)
    wanted = near[table.at[one], np.random.randint(near.shape[1])]
    from_ = 0
    for place in range(count):
        if table.at[place] == wanted:
            from_ = place
    stage, pipeline = one // data, one % data
    side = np.random.randint(3)
    if side == 0 and stage + 1 < stages:
        return (stage + 1) * data + pipeline, from_
    if side == 1 and stage > 0:
        return (stage - 1) * data + pipeline, from_
    return stage * data + np.random.randint(data), from_


@kernel(inner=True, allocates=False)
def _cost(table: Any, max_weight: float) -> float:
    """The cost of the whole table, part mean and part maximum."""
    stages, data = table.exchange.shape
    largest, total = 0.0, 0.0
    for stage in range(stages):
        for p in range(data):
            largest = max(largest, table.exchange[stage, p])
            total += table.exchange[stage, p]
    cost = max_weight * largest + (1 - max_weight) * total / (stages * data)
    for stage in range(stages - 1):
        largest, total = 0.0, 0.0
        for p in range(data):
            largest = max(largest, table.edge[stage, p])
            total += table.edge[stage, p]
        cost += max_weight * largest + (1 - max_weight) * total / data
    return cost


@kernel(inner=True, allocates=False)
def _measure_all(table: Any) -> None:
    stages, data = table.exchange.shape
    for stage in range(stages):
        for p in range(data):
            _measure_exchange(table, stage, p)
            if stage < stages - 1:
                _measure_edge(table, stage, p)


@kernel(inner=True, allocates=False)
def _measure_exchange(table: Any, stage: int, p: int) -> None:
    data = table.exchange.shape[1]
    here, total = table.at[stage * data + p], 0.0
    for other in range(data):
        if other != p:
            there = table.at[stage * data + other]
            total += table.delay[here, there] + table.part[stage] * table.per_byte[here, there]
    table.exchange[stage, p] = total


@kernel(inner=True, allocates=False)
def _measure_edge(table: Any, stage: int, p: int) -> None:
    data = table.exchange.shape[1]
    here, there = table.at[stage * data + p], table.at[(stage + 1) * data + p]
    table.edge[stage, p] = (
        table.delay[here, there] + table.moved[stage] * table.per_byte[here, there]
    )


@kernel(inner=True, allocates=False)
def _exchange(table: Any, one: int, other: int) -> None:
    """Exchanges two devices and recomputes only the times that change."""
    stages, data = table.exchange.shape
    table.at[one], table.at[other] = table.at[other], table.at[one]
    for here, there in ((one, other), (other, one)):
        stage, p = here // data, here % data
        if stage >= stages:
            continue
        if stage > 0:
            _measure_edge(table, stage - 1, p)
        if stage < stages - 1:
            _measure_edge(table, stage, p)
        if there // data == stage:  # the group has the same devices
            _measure_exchange(table, stage, p)
            continue
        gone, come, part = table.at[there], table.at[here], table.part[stage]
        for q in range(data):
            if q != p:
                mate = table.at[stage * data + q]
                table.exchange[stage, q] += (
                    table.delay[mate, come]
                    - table.delay[mate, gone]
                    + part * (table.per_byte[mate, come] - table.per_byte[mate, gone])
                )
        _measure_exchange(table, stage, p)


@kernel(inner=True, allocates=False)
def _exchange_tails(table: Any, first: int, one: int, other: int) -> None:
    """Exchanges the devices of two pipelines from a stage on."""
    stages, data = table.exchange.shape
    for stage in range(first, stages):
        a, b = stage * data + one, stage * data + other
        table.at[a], table.at[b] = table.at[b], table.at[a]
        seconds = table.exchange[stage, one]
        table.exchange[stage, one] = table.exchange[stage, other]
        table.exchange[stage, other] = seconds
    for stage in range(first - 1, stages - 1):
        for p in (one, other):
            _measure_edge(table, stage, p)


@kernel(inner=True, allocates=False)
def _reverse(table: Any, first: int, last: int) -> None:
    """Reverses the order of the stages in a range."""
    data = table.exchange.shape[1]
    low, high = min(first, last), max(first, last)
    while low < high:
        for p in range(data):
            a, b = low * data + p, high * data + p
            table.at[a], table.at[b] = table.at[b], table.at[a]
        low, high = low + 1, high - 1
    _measure_all(table)
