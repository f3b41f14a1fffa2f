"""Plans for one group, found in the process of its rank 0."""

import atexit
import functools
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from gradweave.common.wording import counted
from gradweave.errors import GradweaveError
from gradweave.execute.program import is_own
from gradweave.printable import in_one_line
from gradweave.processes.children import STOP_S
from gradweave.schedules.schedule import Schedule
from gradweave.simulator.runtime import runtime_of
from gradweave.topology.topology import Topology
from gradweave.topology.units import format_bandwidth
from gradweave.torch.calls import SizeClass
from gradweave.torch.located import Flow, located, nearly, routes
from gradweave.torch.plans import Plans
from gradweave.torch.predicted import own_messages

_LEAVE_S = STOP_S + 2.0
"""How long a group that ends waits for its search to stop."""
_log = logging.getLogger("gradweave")


class Weight(NamedTuple):
    """The possible gain of a plan: the class with the greatest weight is planned first."""

    lately: bool
    """Whether the group has called the class recently."""
    bytes: int
    """Bytes of all calls of the class so far."""


class Running(NamedTuple):
    """How the calls of a class run."""

    of: SizeClass
    plan: Schedule | None
    """The plan; None: the backend's own algorithm."""
    change: int
    """Number of changes when this was decided."""
    timed: tuple[float, int] | None = None
    """The plan's time in seconds and the size of its calls in bytes, if measured since."""


Ratios = Mapping[tuple[int, int], float]
"""By sender and receiver, the rate of messages in proportion to what it was."""


class Planner:
    """Finds one plan at a time for the requested collectives and sizes, in a thread.

    The thread also works out how the network has changed if ranks report changed rates.

    Args:
        plans: the source of the plans.
    """

    def __init__(self, plans: Plans) -> None:
        self._plans = [plans]
        """As given, and after each change of the network or of the cost of messages."""
        self._noted: _Noted | None = None
        self._wanted: dict[SizeClass, Callable[[], Weight]] = {}
        self._changed = threading.Condition()
        self._ended = False
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    def start(self, publish: Callable[[SizeClass, Schedule | None], None]) -> None:
        """Starts the thread.

        Args:
            publish: called with a size class and its plan, or None if the backend's own algorithm
                should run.
        """
        self._thread = threading.Thread(
            target=self._work, args=(publish,), name="gradweave-planner", daemon=True
        )
        self._thread.start()
        atexit.register(self.close)  # a search does not outlive the process

    def want(self, of: SizeClass, weight: Callable[[], Weight]) -> None:
        """Requests a plan.

        Args:
            of: the calls that the plan is for.
            weight: returns the plan's possible gain, as known at that moment.
        """
        with self._changed:
            self._wanted[of] = weight
            self._changed.notify()

    @property
    def changes(self) -> int:
        """Number of changes so far, of the network and of the cost of messages."""
        return len(self._plans) - 1

    def timed(self, running: Sequence[Running]) -> None:
        """Has plans made with more expensive messages, if the present plans' times show them.

        Args:
            running: what runs now.
        """
        if not running:
            return
        try:
            plans = self._plans[max(one.change for one in running)]
            cost = max(plans.measured_cost(one.plan, one.of, one.timed) for one in running)
        except Exception as error:  # of any kind: the plans stay as they are
            _log.warning("%s", in_one_line(f"the cost of messages is unknown: {error}"))
            return
        if cost > plans.cost:
            self._change(plans.costing(cost), running)
            stated = f"the runtime {plans.settings.runtime} states"
            _log.info("messages cost about %d times what %s; plans are made for it", cost, stated)

    def note(self, running: Sequence[Running], ratios: Ratios) -> None:
        """Reports rates of messages that have changed.

        Args:
            running: what ran when they changed.
            ratios: the rates, by ranks of the group.
        """
        with self._changed:
            self._noted = _Noted(running, ratios)
            self._changed.notify()

    def unwant(self, of: SizeClass) -> None:
        """Ends the search for a plan that is no longer needed."""
        with self._changed:
            self._wanted.pop(of, None)

    def close(self) -> None:
        """Ends the thread and any search in progress; does nothing in a fork, which has neither."""
        if os.getpid() != self._process:
            return
        with self._changed:
            self._ended = True
            self._changed.notify()
        atexit.unregister(self.close)
        if self._thread is not None:
            self._thread.join(_LEAVE_S)

    def _next(self) -> "SizeClass | _Noted | None":
        """The class to plan next, or a change to work out, or None once the planner is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._wanted or self._noted or self._ended)
            noted, self._noted = self._noted, None
            if self._ended:
                return None
            return noted or max(self._wanted, key=self._urgency)

    def _urgency(self, of: SizeClass) -> tuple[bool, int, int]:
        """The class with the greatest is planned first: after a change, calls are slow."""
        weight = self._wanted[of]()
        return weight.lately, of.change, weight.bytes

    def _given_up(self, of: SizeClass) -> str | None:
        """Reason to stop the search for a plan now, if there is one."""
        with self._changed:
            if self._ended:
                return "the group has ended"
            if self._noted is not None:
                return "the network has changed"
            if of not in self._wanted:
                return "its calls have ended"
            first = max(self._wanted, key=self._urgency)
            if self._urgency(first)[:2] > self._urgency(of)[:2]:
                return "other calls need one first"
        return None

    def _work(self, publish: Callable[[SizeClass, Schedule | None], None]) -> None:
        while (of := self._next()) is not None:
            if isinstance(of, _Noted):
                self._follow(of)
                continue
            try:
                plan = self._found(of)
            except Exception as error:  # of any kind: the group continues with the backend's own
                if self._given_up(of):
                    continue
                _say(logging.WARNING, of, error)
                plan = None
            self.unwant(of)
            publish(of, plan)

    def _found(self, of: SizeClass) -> Schedule | None:
        plans = self._plans[of.change]
        plan = plans.find(of, functools.partial(self._given_up, of))
        if plan is None or is_own(plan, "gloo"):
            return None
        if why := plans.hopeless(plan, of):
            _say(logging.INFO, of, why)
            return None
        return plan

    def _follow(self, noted: "_Noted") -> None:
        """Works out how the network has changed."""
        try:
            network = self._plans[max(one.change for one in noted.running)].network
            assert network is not None
            changed = located(network, self._flows(network, noted))
        except Exception as error:  # of any kind: the plans stay as they are
            _log.warning("%s", in_one_line(f"the network seems to have changed: {error}"))
            return
        given = self._plans[0].network
        if changed is None or given is None:
            return
        changed = nearly(given, changed)
        if (changed.bandwidth_bytes_per_s == network.bandwidth_bytes_per_s).all():
            return
        earlier = [plans for plans in self._plans if plans.network is changed]
        plans = self._plans[0].on(changed, cost=self._plans[-1].cost)
        self._change(earlier[-1] if earlier else plans, noted.running)
        _log.warning("%s", in_one_line(_described(given, changed)))

    def _change(self, plans: Plans, running: Sequence[Running]) -> None:
        """Plans with another network or other costs from now on."""
        with self._changed:
            self._plans.append(plans)
            for one in running:  # all ranks will want them after a vote
                weight = functools.partial(Weight, True, one.of.size)
                self.want(one.of._replace(change=self.changes), weight)

    def _flows(self, network: Topology, noted: "_Noted") -> list[Flow]:
        """The messages whose rates are known, with their routes in the plan of most bytes."""
        runtime = runtime_of(self._plans[0].settings.runtime)
        found: dict[tuple[int, int], Flow] = {}
        for one in sorted(noted.running, key=lambda one: -one.of.size):
            messages = one.plan or own_messages(network, runtime, one.of)
            for ends, links in routes(messages).items() if messages is not None else ():
                if ends in noted.ratios and ends not in found:
                    found[ends] = Flow(links, noted.ratios[ends])
        return list(found.values())


class _Noted(NamedTuple):
    """Rates that have changed, and what ran meanwhile."""

    running: Sequence[Running]
    ratios: Ratios


def _described(given: Topology, now: Topology) -> str:
    """A line about the bandwidths that differ."""
    before, after = given.bandwidth_bytes_per_s, now.bandwidth_bytes_per_s
    links = [
        f"{now.link_name(link)} {format_bandwidth(float(after[link]))} instead of "
        f"{format_bandwidth(float(before[link]))}"
        for link in (before != after).nonzero()[0].tolist()
    ]
    more = f" and {len(links) - _NAMED} more" if len(links) > _NAMED else ""
    if not links:
        return "the network is again as given"
    return f"the network has changed: {', '.join(links[:_NAMED])}{more}; plans are made for it"


_NAMED = 4
"""Number of links that a line names."""


def _say(level: int, of: SizeClass, why: object) -> None:
    if isinstance(why, Exception) and not isinstance(why, GradweaveError):
        why = f"{type(why).__name__}: {why}"
    what = f"{of.collective} of {counted(of.size, 'byte')}"
    line = f"no plan for {what}, which stays gloo's own: {why}"
    _log.log(level, "%s", in_one_line(line))
