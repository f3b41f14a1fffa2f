"""The strategies that `solve` tries by default, and their order."""

from collections.abc import Sequence

from gradweave.bounds import Bound
from gradweave.schedulers.exact.exact import Exact
from gradweave.schedulers.learned.learned import Learned
from gradweave.schedulers.scheduler import Scheduler, Strategy
from gradweave.schedulers.solving.tuning import TUNING
from gradweave.schedulers.textbook.ring import Ring
from gradweave.schedulers.trees.grown import Grown
from gradweave.schedulers.trees.symmetric import Symmetric
from gradweave.schedules.schedule import Collective
from gradweave.topology.symmetry import has_family_symmetry
from gradweave.topology.topology import Topology

DEFAULT: tuple[Scheduler, ...] = (
    Grown(restarts=4),
    Symmetric(),
    Ring(forwarding=False),
    Grown(),
    Learned(),
    # On some leaf–spine networks the policies beat the rule: 24 rounds instead of 26 on 36 servers
    # at 3:1.
    Learned(policy="trained"),
    Exact(effort=1.5, open_questions=1),
    # Last, if the bound is not met: on some leaf–spine networks the drawn rounds are better without
    # repairs (7 rounds per stage, 8 with repairs, on 3 leaves of 7 servers).
    Learned(repair=False),
)
"""The strategies that `solve` tries by default; `in_order` sorts them."""


def in_order(
    schedulers: Sequence[Strategy], topology: Topology, collective: Collective, bound: Bound
) -> list[Strategy]:
    """The strategies in the order to try them: repairs, promising rings, then in the order given.

    A ring is promising if it can meet the bound with each step in one round. Such a ring never
    hands a link from one pair of servers to another, so among schedules with equally few rounds its
    predicted time is the most reliable on real networks (docs/design/execution.md). On large
    networks, and on families with known symmetry, trees mapped by a symmetry come before grown
    trees: they cost as much as one tree, whereas growing costs as much as all trees. On few servers
    the exact search comes before the learned rule.

    Args:
        schedulers: the strategies.
        topology: the network.
        collective: a stage, or both.
        bound: lower bound on rounds.
    """
    stages = 2 if collective == "all_reduce" else 1
    ring_may_do = bound.rounds >= stages * (topology.num_servers - 1)
    proving = any(one.traits.proves for one in schedulers)
    proofs_first = proving and topology.num_servers <= TUNING.few_servers
    many = topology.num_servers > TUNING.quickly_grown_servers
    symmetric_first = many or has_family_symmetry(topology)

    def place(one: Strategy) -> int:
        if one.traits.repairs:
            return 0
        if ring_may_do and one.steps_fit_rounds(topology):
            return 1
        if symmetric_first and one.traits.by_symmetry:
            return 2
        return 4 if proofs_first and one.traits.after_proofs else 3

    return sorted(schedulers, key=place)
