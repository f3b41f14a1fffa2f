"""The comparison of candidates by the best schedule found for each."""

import dataclasses
from collections.abc import Callable

from gradweave.common.clock import now
from gradweave.common.stop import Interrupt
from gradweave.design.bound import EveryNetwork, every_network
from gradweave.design.candidates import Candidate, candidates
from gradweave.schedulers.solving.solution import Solution
from gradweave.schedulers.solving.solve import solve
from gradweave.topology.topology import Link
from gradweave.topology.units import as_size

TIME_LIMIT_S = 60.0
"""Default time for all searches together."""


@dataclasses.dataclass(frozen=True)
class Proposal:
    """A network, the best all-reduce found for it and its lower bound."""

    candidate: Candidate
    solution: Solution

    @property
    def seconds(self) -> float:
        """Predicted time of the schedule, without barriers."""
        assert self.solution.timing is not None
        return self.solution.timing.seconds

    @property
    def bound_s(self) -> float:
        """No schedule on this network is faster, under the conditions of its bound."""
        assert self.solution.timing is not None
        return self.solution.timing.bound.seconds


@dataclasses.dataclass(frozen=True)
class Design:
    """Networks of N servers with at most d links each, the fastest first."""

    servers: int
    degree: int
    gradient_bytes: float
    link: Link
    proposals: tuple[Proposal, ...]
    bound: EveryNetwork
    """For every network of that many servers and links."""
    unsolved: tuple[Candidate, ...] = ()
    """Candidates for which no search was left when it was interrupted."""

    @property
    def torus(self) -> Proposal | None:
        """The fastest torus or ring, the simplest alternative."""
        simple = (one for one in self.proposals if one.candidate.family in ("torus", "ring"))
        return next(simple, None)


def design(
    servers: int,
    degree: int,
    gradient_bytes: float | str,
    *,
    link: Link | None = None,
    seed: int = 0,
    time_limit: float | None = TIME_LIMIT_S,
    interrupt: Interrupt | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Design:
    """Compares networks of servers by the time of an all-reduce.

    Servers are linked directly. Candidates are those of `candidates`; each gets an equal share of
    the time that is left, and is ranked by the best schedule that `solve` finds for it. Networks
    outside these families may be better: `Design.bound` says by how much at most. If no search
    ends for lack of time (`Solution.stopped`), the answer depends on the seed alone.

    Args:
        servers: N, 2 to 256.
        degree: d, most links of a server.
        gradient_bytes: size of the whole gradient, such as ``"25MB"``.
        link: properties of each link, per direction; `Link()` if not given.
        seed: the only source of random choices.
        time_limit: seconds for all searches together; without, each ends by itself.
        interrupt: ends the search; the result is what was compared by then.
        progress: called with a line about each step before it starts.

    Raises:
        OptionError: naming the parameter.
        KeyboardInterrupt: if `interrupt` ended the search before there was a schedule.

    >>> best = design(8, 3, "1MB", time_limit=None).proposals[0]
    >>> best.candidate.diameter, best.candidate.degree
    (2, 3)
    """
    link, size = link or Link(), as_size(gradient_bytes)
    started = now()
    progress("making networks")
    found = candidates(servers, degree, link=link, seed=seed)
    proposals: list[Proposal] = []
    for number, candidate in enumerate(found):
        if interrupt is not None and interrupt.flag[0] and proposals:
            break
        progress(f"network {number + 1} of {len(found)}, {candidate.network.name}")
        left = None
        if time_limit is not None:
            left = max(time_limit - (now() - started), 0.1) / (len(found) - number)
        solution = solve(
            candidate.network,
            objective="seconds",
            gradient_bytes=size,
            seed=seed,
            time_limit=left,
            interrupt=interrupt,
        )
        proposals.append(Proposal(candidate, solution))
    # Equal times are in order of the families, the simplest first: the sort is stable.
    return Design(
        servers,
        degree,
        size,
        link,
        tuple(sorted(proposals, key=lambda one: float(f"{one.seconds:.9g}"))),
        every_network(servers, degree, size, link),
        tuple(found[len(proposals) :]),
    )
