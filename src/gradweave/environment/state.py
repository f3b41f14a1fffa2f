"""The state of an episode, and what both agents' steps do to it."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, UInt32

from gradweave.environment.problem import NEVER, Problem

FLOW_TREE_SELECTION = 0
"""Turn of the agent that selects trees, once a round."""
WORKLOAD_SCHEDULING = 1
"""Turn of the agent that sends workloads, one a step."""
WORD = 32
"""Trees in a word."""


class State(eqx.Module):
    """An episode in the middle. Loads and counts are of the current round."""

    round: Int[Array, ""]
    stage: Int[Array, ""]
    """The first stage with transfers left; stages behind a barrier are closed."""
    stage_start: Int[Array, ""]
    """Round in which the stage began."""
    turn: Int[Array, ""]
    """Whose turn it is: `FLOW_TREE_SELECTION` or `WORKLOAD_SCHEDULING`."""
    waiting: Int[Array, "N Q"]
    """Transfers that each server still waits for before it can send."""
    pending: Bool[Array, "N Q"]
    """Transfers not sent yet; see `Problem.by_sender`."""
    arriving: Int[Array, "N Q"]
    """Transfers that are on the way in this round."""
    room: Int[Array, " L"]
    """Transfers that each link direction can still carry in this round."""
    blocked: Bool[Array, " H"]
    """Whether a hop's route has a link without room."""
    count: Int[Array, " H"]
    """Workloads of the selected trees that are ready on each hop, whether or not it is blocked."""
    selected: Bool[Array, " Q"]
    """Trees selected in this round."""
    selected_before: Bool[Array, " Q"]
    """Trees selected in the round before: the agent's last action."""
    sent: Int[Array, ""]
    """Transfers of this round so far."""
    sent_before: Int[Array, ""]
    """Transfers of the round before."""
    sent_round: Int[Array, "N Q"]
    """Round of each transfer; `NEVER` while it waits."""
    sent_hop: Int[Array, "N Q"]
    """Hop of each transfer; `NEVER` while it waits."""

    @property
    def done(self) -> Bool[Array, ""]:
        """Whether every transfer is sent, and the round of the last one has ended."""
        return ~self.pending.any((-2, -1)) & (self.turn == FLOW_TREE_SELECTION)


def reset(problem: Problem) -> State:
    """The state before the first round, at the turn of flow-tree selection."""
    never = jnp.full(problem.waiting.shape, NEVER, jnp.int16)
    wide = problem.sender.shape[0] > jnp.iinfo(jnp.int16).max
    zero = jnp.zeros((), jnp.int32)
    trees = jnp.zeros(problem.root.shape, bool)
    return State(
        round=zero,
        stage=zero,
        stage_start=zero,
        turn=jnp.full((), FLOW_TREE_SELECTION, jnp.int32),
        waiting=problem.waiting.astype(jnp.int16),
        pending=problem.pending,
        arriving=jnp.zeros(problem.waiting.shape, jnp.int16),
        room=problem.capacity,
        blocked=jnp.zeros(problem.sender.shape, bool),
        count=jnp.zeros(problem.sender.shape, jnp.int32),
        selected=trees,
        selected_before=trees,
        sent=zero,
        sent_before=zero,
        sent_round=never,
        sent_hop=never.astype(jnp.int32) if wide else never,
    )


def open_trees(problem: Problem, state: State) -> Bool[Array, " Q"]:
    """Trees with transfers left that no barrier holds back."""
    reached = ~problem.barrier | (problem.stage <= state.stage)
    return reached & state.pending.any(-2)


def ready(problem: Problem, state: State, trees: Bool[Array, " Q"]) -> Bool[Array, "H Q"]:
    """Workloads of some trees that are not sent and wait for nothing; links may lack room.

    Args:
        problem: the problem.
        state: the episode.
        trees: whose workloads are asked for.
    """
    can_send = (state.waiting == 0)[problem.sender]
    pending = jnp.where(
        problem.by_sender, state.pending[problem.sender], state.pending[problem.receiver]
    )
    return problem.allowed & can_send & pending & trees & open_trees(problem, state)


def ready_words(problem: Problem, state: State, trees: Bool[Array, " Q"]) -> UInt32[Array, "H W"]:
    """`ready`, with 32 trees in a word: a hop's are looked up together, and counted together.

    Args:
        problem: the problem.
        state: the episode.
        trees: whose workloads are asked for.
    """
    can_send, pending = packed(state.waiting == 0), packed(state.pending)
    by_sender = packed(problem.by_sender)
    unsent = (pending[problem.sender] & by_sender) | (pending[problem.receiver] & ~by_sender)
    asked = packed(trees & open_trees(problem, state))
    return packed(problem.allowed) & can_send[problem.sender] & unsent & asked


def packed(table: Bool[Array, "... Q"]) -> UInt32[Array, "... W"]:
    """Truth values as bits, those of `WORD` trees in a word.

    >>> import jax.numpy as jnp
    >>> packed(jnp.arange(40) % 20 == 0).tolist()
    [1048577, 0]
    """
    words = -(-table.shape[-1] // WORD)
    spare = [(0, 0)] * (table.ndim - 1) + [(0, WORD * words - table.shape[-1])]
    bits = jnp.pad(table, spare).reshape(*table.shape[:-1], words, WORD).astype(jnp.uint32)
    return (bits << jnp.arange(WORD, dtype=jnp.uint32)).sum(-1, dtype=jnp.uint32)


def available(problem: Problem, state: State) -> Bool[Array, "H Q"]:
    """The workloads that can be sent now: selected, ready, and with room on their links."""
    return ready(problem, state, state.selected) & ~state.blocked[:, None]


def any_available(state: State) -> Bool[Array, ""]:
    """Whether a workload can be sent now."""
    return ((state.count > 0) & ~state.blocked).any()


def end_round(problem: Problem, state: State) -> State:
    """What was on the way has arrived; links are free; flow-tree selection is next."""
    waiting = state.waiting - state.arriving
    # A root's copies wait for the reduces into it, which are in another tree's column.
    columns = jnp.arange(problem.root.shape[0])
    at_root = jnp.where(problem.then >= 0, state.arriving[problem.root, columns], 0)
    waiting = waiting.at[problem.root, problem.then].add(-at_root, mode="drop")
    left = state.pending.any(-2)
    stage = jnp.where(left, problem.stage, 2).min()
    moved = (stage > state.stage) & left.any()
    following = state.round + 1
    return State(
        round=following,
        stage=jnp.where(moved, stage, state.stage),
        stage_start=jnp.where(moved, following, state.stage_start),
        turn=jnp.full((), FLOW_TREE_SELECTION, jnp.int32),
        waiting=waiting,
        pending=state.pending,
        arriving=jnp.zeros_like(state.arriving),
        room=problem.capacity,
        blocked=jnp.zeros_like(state.blocked),
        count=jnp.zeros_like(state.count),
        selected=jnp.zeros_like(state.selected),
        selected_before=state.selected,
        sent=jnp.zeros_like(state.sent),
        sent_before=state.sent,
        sent_round=state.sent_round,
        sent_hop=state.sent_hop,
    )


def where(condition: Bool[Array, ""], one: State, other: State) -> State:
    """One of two states."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), one, other)
