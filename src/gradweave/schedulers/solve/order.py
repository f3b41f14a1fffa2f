"""Which strategies are tried by default, and which first."""

from collections.abc import Sequence

from gradweave.bounds import Bound
from gradweave.schedule.schedule import Collective
from gradweave.schedulers.exact.exact import Exact
from gradweave.schedulers.learned.learned import Learned
from gradweave.schedulers.scheduler import Scheduler
from gradweave.schedulers.solve.tuning import TUNING
from gradweave.schedulers.textbook.ring import Ring
from gradweave.schedulers.trees.grown import Grown
from gradweave.schedulers.trees.merged import Merged
from gradweave.schedulers.trees.symmetric import Symmetric
from gradweave.topology.symmetry import has_family_symmetry
from gradweave.topology.topology import Topology

DEFAULT: tuple[Scheduler, ...] = (
    Grown(restarts=4),
    Symmetric(),
    Ring(forwarding=False),
    Grown(),
    Learned(),
    # On some leaf–spine networks the policies find what the rule misses: 24 rounds in place of 26
    # on 36 servers at 3:1.
    Learned(policy="trained"),
    Merged(),
    Exact(effort=1.5, open_questions=1),
    # At last, where a bound is not met: on some leaf–spine networks, rounds that were drawn are
    # better left as they are (7 rounds a stage, 8 with repairs, on 3 leaves of 7 servers).
    Learned(repair=False),
)
"""What `solve` tries where nothing else is asked for. Its order is that of `in_order`."""


def in_order(
    schedulers: Sequence[Scheduler], topology: Topology, collective: Collective, bound: Bound
) -> list[Scheduler]:
    """The strategies in the order to try them: repairs, promising rings, then as they stand.

    A ring is promising where it can meet the bound, each step in one round: it never hands a link
    from one pair of servers to another, so of schedules with equally few rounds it is the one whose
    time real networks hold best (docs/design/execution.md). On large networks, and on families
    whose symmetry is known, trees mapped by a symmetry come before grown ones: the former cost as
    much as one tree, the latter as much as all. On few servers the exact search comes before the
    learned rule.

    Args:
        schedulers: the strategies.
        topology: the network.
        collective: a stage, or both.
        bound: on its rounds.
    """
    stages = 2 if collective == "all_reduce" else 1
    ring_may_do = bound.rounds >= stages * (topology.num_servers - 1)
    proving = any(one.traits.proves for one in schedulers)
    proofs_first = proving and topology.num_servers <= TUNING.few_servers
    many = topology.num_servers > TUNING.quickly_grown_servers
    symmetric_first = many or has_family_symmetry(topology)

    def place(one: Scheduler) -> int:
        if one.traits.repairs:
            return 0
        if ring_may_do and one.steps_fit_rounds(topology):
            return 1
        if symmetric_first and one.traits.by_symmetry:
            return 2
        return 4 if proofs_first and one.traits.after_proofs else 3

    return sorted(schedulers, key=place)
