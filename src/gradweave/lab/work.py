"""The work that a lab's server repeats, by a schedule or by gloo's own collectives."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from gradweave.errors import OptionError
from gradweave.execute.pattern import contribution, expected
from gradweave.execute.torch_distributed.backend import Collective
from gradweave.execute.torch_distributed.demands import exchange_by
from gradweave.schedules.demand import Demand, Sets


class Work(Protocol):
    """A call, and a check of its result."""

    def run(self) -> None:
        """Makes the call; it may be repeated."""
        ...

    def right(self) -> bool:
        """Whether the first call's result was right."""
        ...

    def sent_bytes(self) -> int:
        """Bytes sent so far, counted message by message; 0 for gloo's own collectives."""
        ...


class AllReduce:
    """An all-reduce among all servers, in place.

    Args:
        rank: rank of this server.
        size: number of servers.
        elements: number of elements of float32.
        collective: runs the all-reduce; gloo does if not given.
    """

    def __init__(self, rank: int, size: int, elements: int, collective: Collective | None) -> None:
        self._size, self._collective = size, collective
        self._tensor = torch.from_numpy(contribution(rank, elements))

    def run(self) -> None:
        """See `Work`."""
        if self._collective is None:
            dist.all_reduce(self._tensor)
        else:
            self._collective(self._tensor)

    def right(self) -> bool:
        """See `Work`."""
        result = expected(self._size, self._tensor.numel(), "sum")
        right = bool((self._tensor.numpy() == result).all())
        self._tensor.zero_()  # so that later sums cannot overflow
        return right

    def sent_bytes(self) -> int:
        """See `Work`."""
        return int(self._collective.sent_bytes.sum()) if self._collective else 0


class Exchange:
    """A demand, carried out by its schedule.

    Args:
        collective: the collective of the demand.
        server: node id of this server.
    """

    def __init__(self, collective: Collective, server: int) -> None:
        self._collective = collective
        demand = collective.schedule.demanded
        self._send, self._expected = _ends(demand, server, range(len(demand)))
        self._receive = torch.zeros(len(self._expected))

    def run(self) -> None:
        """See `Work`."""
        exchange_by(self._collective, self._send, self._receive)

    def right(self) -> bool:
        """See `Work`."""
        return bool((self._receive.numpy() == self._expected).all())

    def sent_bytes(self) -> int:
        """See `Work`."""
        return int(self._collective.sent_bytes.sum())


@dataclasses.dataclass(frozen=True)
class GroupCall:
    """One job's collective among its servers, in the form of a torch.distributed call."""

    collective: str
    ranks: tuple[int, ...]
    """Ranks of its servers, in the group's order."""
    root: int | None = None
    """Rank of the root."""


def own_task(demand: Demand, servers: Sequence[int], calls: Sequence[GroupCall]) -> dict[str, Any]:
    """The task of a server for `OwnCalls`.

    Args:
        demand: the demand with the jobs.
        servers: node ids, by rank.
        calls: the calls, by job.
    """
    sides = {"contributors": demand.contributors, "destinations": demand.destinations}
    return {
        "bytes": demand.bytes.tolist(),
        "job": demand.job.tolist(),
        **{side: [sets[b].tolist() for b in range(len(demand))] for side, sets in sides.items()},
        "servers": list(servers),
        "calls": [dataclasses.asdict(call) for call in calls],
    }


class OwnCalls:
    """A demand's jobs by gloo's own collectives, all started together and then awaited.

    Args:
        demand: the demand with the jobs.
        servers: node ids, by rank.
        rank: rank of this server.
        calls: the calls, by job.
    """

    @staticmethod
    def of(task: dict[str, Any], rank: int) -> "OwnCalls":
        """Builds the calls from a task of `own_task`."""
        calls = [
            GroupCall(one["collective"], tuple(one["ranks"]), one["root"]) for one in task["calls"]
        ]
        demand = Demand(
            np.array(task["bytes"]),
            Sets.of(task["contributors"]),
            Sets.of(task["destinations"]),
            np.array(task["job"]),
            tuple(call.collective for call in calls),
        )
        return OwnCalls(demand, task["servers"], rank, calls)

    def __init__(
        self, demand: Demand, servers: Sequence[int], rank: int, calls: Sequence[GroupCall]
    ) -> None:
        self._jobs = []
        for job, call in enumerate(calls):
            group = dist.new_group(list(call.ranks), backend="gloo")  # all ranks make all groups
            if rank not in call.ranks:
                continue
            blocks = np.flatnonzero(demand.job == job)
            send, expected = _ends(demand, servers[rank], blocks)
            ends = _Ends(
                call,
                group,
                call.ranks.index(rank),
                send,
                torch.zeros(len(expected)),
                _by_peer(demand, blocks, [servers[each] for each in call.ranks]),
            )
            self._jobs.append((_CALLS[call.collective](ends), ends.receive, expected))

    def run(self) -> None:
        """See `Work`."""
        for work in [start() for start, _, _ in self._jobs]:
            work.wait()

    def right(self) -> bool:
        """See `Work`."""
        return all(bool((receive.numpy() == expected).all()) for _, receive, expected in self._jobs)

    def sent_bytes(self) -> int:
        """See `Work`."""
        return 0


def _ends(demand: Demand, server: int, blocks: Any) -> tuple[torch.Tensor, NDArray[np.float32]]:
    """A server's input for some blocks, and its expected result, as float32."""
    given: list[NDArray[np.float32]] = [np.zeros(0, np.float32)]
    wanted = list(given)
    for block in blocks:
        elements = int(demand.bytes[block]) // 4
        contributors, destinations = demand.contributors[block], demand.destinations[block]
        if server in contributors:
            given.append(contribution(server + 3 * block, elements))
        if server in destinations:
            parts = [contribution(each + 3 * block, elements) for each in contributors.tolist()]
            wanted.append(np.asarray(np.sum(parts, axis=0, dtype=np.float32)))
    return torch.from_numpy(np.concatenate(given)), np.concatenate(wanted)


def _by_peer(demand: Demand, blocks: NDArray, group: list[int]) -> NDArray[np.int64]:
    """[n, n] elements sent from each of a group's servers to each, in blocks with one of both."""
    found = np.zeros((len(group), len(group)), np.int64)
    for block in blocks:
        source, target = (
            group.index(int(sets[block][0])) for sets in (demand.contributors, demand.destinations)
        )
        found[source, target] += demand.bytes[block] // 4
    return found


@dataclasses.dataclass(frozen=True)
class _Ends:
    """The arguments of a group's collective at one server."""

    call: GroupCall
    group: Any
    place: int
    """This server's rank in the group."""
    send: torch.Tensor
    receive: torch.Tensor
    by_peer: NDArray[np.int64]
    """[n, n] elements of the messages from each server to each."""


_Start = Callable[[], Any]


def _all_reduce(ends: _Ends) -> _Start:
    def start() -> Any:
        ends.receive.copy_(ends.send)
        return dist.all_reduce(ends.receive, group=ends.group, async_op=True)

    return start


def _all_to_all(ends: _Ends) -> _Start:
    gets, gives = ends.by_peer[:, ends.place].tolist(), ends.by_peer[ends.place].tolist()
    return lambda: dist.all_to_all_single(
        ends.receive, ends.send, gets, gives, group=ends.group, async_op=True
    )


def _broadcast(ends: _Ends) -> _Start:
    def start() -> Any:
        if ends.call.ranks[ends.place] == ends.call.root:
            ends.receive.copy_(ends.send)
        return dist.broadcast(ends.receive, ends.call.root, group=ends.group, async_op=True)

    return start


def _all_gather(ends: _Ends) -> _Start:
    _check_equal(ends, ends.receive, ends.send)
    return lambda: dist.all_gather_into_tensor(
        ends.receive, ends.send, group=ends.group, async_op=True
    )


def _reduce_scatter(ends: _Ends) -> _Start:
    _check_equal(ends, ends.send, ends.receive)
    return lambda: dist.reduce_scatter_tensor(
        ends.receive, ends.send, group=ends.group, async_op=True
    )


def _check_equal(ends: _Ends, whole: torch.Tensor, part: torch.Tensor) -> None:
    if whole.numel() != part.numel() * len(ends.call.ranks):
        raise OptionError(f"{ends.call.collective}: gloo supports only equal parts")


_CALLS: dict[str, Callable[[_Ends], _Start]] = {
    "all_reduce": _all_reduce,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
}
OWN_CALLS = tuple(_CALLS)
"""gloo's own collectives that can run here."""
