"""The inputs of the policies, counted in JAX: once per round, and again before each workload.

`learning.episodes.features` turns the counts into features, as in decoding. The features of a
round go through the message passing of `networks`; those of a workload change with every workload
sent, and are cheap.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from gradweave.environment.bits import packed, unpacked
from gradweave.environment.problem import Problem
from gradweave.environment.state import State, ready, room, waiting
from gradweave.learning.episodes import features as table
from gradweave.learning.episodes.features import Round


class Graph(eqx.Module):
    """A problem's hops as matrices between servers and links, one per stage."""

    into: Float[Array, "2 N N"]
    """Hops into a server (row) from a server (column)."""
    links_in: Float[Array, "2 N L"]
    """Hops into a server over a link."""
    links_out: Float[Array, "2 N L"]
    """Hops out of a server over a link."""
    length: Float[Array, " H"]
    """Number of links on each hop's route."""

    @staticmethod
    def of(problem: Problem) -> "Graph":
        """The matrices of a problem."""
        servers = problem.waiting.shape[0]
        crosses = problem.crosses.astype(jnp.float32)
        sends = jax.nn.one_hot(problem.sender, servers, axis=0)
        receives = jax.nn.one_hot(problem.receiver, servers, axis=0)

        def of_stage(stage: int) -> tuple[Array, Array, Array]:
            trees = jnp.where(problem.barrier, problem.stage == stage, problem.stage < 2)
            there = (problem.allowed & trees).any(1).astype(jnp.float32)
            return (
                (receives * there) @ sends.T,
                (receives * there) @ crosses.T,
                (sends * there) @ crosses.T,
            )

        first, second = of_stage(0), of_stage(1)
        into, links_in, links_out = (jnp.stack(pair) for pair in zip(first, second, strict=True))
        return Graph(into, links_in, links_out, crosses.sum(0))


def in_stage(problem: Problem, state: State) -> Bool[Array, " Q"]:
    """The trees of the current stage."""
    return jnp.where(problem.barrier, problem.stage == state.stage, problem.stage < 2)


def of_round(problem: Problem, graph: Graph, state: State) -> Round:
    """The features at the start of a round.

    Args:
        problem: the problem.
        graph: its matrices.
        state: the state at the turn of flow-tree selection.
    """
    trees = in_stage(problem, state)
    into, links_in = graph.into[state.stage], graph.links_in[state.stage]
    bound = jnp.where(problem.barrier, problem.bound[state.stage], problem.bound.sum())
    spent = state.round - jnp.where(problem.barrier, state.stage_start, 0)
    there, still = problem.pending.any(0) & trees, waiting(problem, state)
    wait = jnp.where(there, still, 0).astype(jnp.float32)
    real = problem.intake > 0
    holds, lacks = there & (still == 0) & real[:, None], there & (still > 0)
    lacking = into.T @ lacks.astype(jnp.float32) > 0
    to_come, pending = wait.sum(1), state.pending
    workloads = unpacked(ready(problem, state, packed(there)), there.shape[0])
    by_sender = problem.by_sender
    server = jnp.where(by_sender, problem.sender[:, None], problem.receiver[:, None])
    cell = server, jnp.arange(by_sender.shape[0])
    of_hops = problem.allowed & there
    left = (of_hops & pending[cell]).sum(1)
    grown_left = (to_come / jnp.maximum(into.sum(1), 1.0))[problem.receiver] * of_hops.any(1)
    on_hops = jnp.where(problem.grown, grown_left, left), workloads.sum(1).astype(jnp.float32)
    demand, contenders = (problem.crosses.astype(jnp.float32) @ jnp.stack(on_hops, 1)).T
    cells = jnp.zeros(pending.shape, bool).at[cell].max(workloads)
    counts = table.Counts(
        rounds_left=jnp.maximum(bound - spent, 1).astype(jnp.float32),
        bound=bound,
        grown=problem.grown,
        servers=jnp.maximum(real.sum(), 1),
        to_come=to_come,
        intake=problem.intake,
        holds=holds.sum(1),
        lacks=lacks.sum(1),
        wanted=(holds & lacking).sum(1),
        demand=demand,
        contenders=contenders,
        capacity=problem.capacity,
        used=links_in.sum(0) > 0,
        there=there,
        by_sender=by_sender,
        unsent=pending.sum(0),
        ready=cells.sum(0),
        total=problem.pending.sum(0),
        tallest=jnp.where(pending & there, problem.height, 0).max(0),
        selected_before=state.selected_before,
    )
    of_servers, *features, slack = table.of_round(jnp, counts)
    return Round(
        jnp.where(real[:, None], of_servers, 0.0),
        *features,
        holds=holds,
        lacks=lacks,
        stage=state.stage,
        candidates=workloads.any(0),
        rounds_left=counts.rounds_left,
        link_slack=jnp.append(slack[:-1], table.PLENTY)[problem.hop_links].min(1),
        chain=jnp.where(workloads, problem.height[cell], 0).max(1).astype(jnp.float32),
        to_come=to_come,
    )


class Loads(eqx.Module):
    """Transfers into each server, which change with each workload of a round."""

    to_come: Float[Array, " N"]
    """Number of transfers neither made nor in progress."""
    taken: Float[Array, " N"]
    """Number of transfers in progress in this round."""

    @staticmethod
    def start(features: Round) -> "Loads":
        """The loads at the start of a round."""
        return Loads(features.to_come, jnp.zeros_like(features.to_come))

    def sent(self, receiver: Int[Array, ""], can: Bool[Array, ""]) -> "Loads":
        """The loads after a workload."""
        one = can.astype(jnp.float32)
        return Loads(self.to_come.at[receiver].add(-one), self.taken.at[receiver].add(one))


class Moment(eqx.Module):
    """Inputs of the features of hops that change from one draw of a round to the next."""

    count: Float[Array, " H"]
    """Number of workloads that could be sent over each hop."""
    ratio: Float[Array, " L"]
    """Number of hops with such workloads, per transfer that a link can still carry."""
    loads: Loads

    @staticmethod
    def of(problem: Problem, state: State, loads: Loads) -> "Moment":
        """The inputs before a draw."""
        fits = (state.count > 0).astype(jnp.float32)
        contenders = problem.crosses.astype(jnp.float32) @ fits
        ratio = contenders / jnp.maximum(room(problem, state), 1)
        return Moment(state.count.astype(jnp.float32), ratio, loads)


def of_hops(
    problem: Problem, graph: Graph, features: Round, moment: Moment
) -> tuple[Float[Array, "12 H"], Bool[Array, " H"]]:
    """Features of each hop before a workload is sent, and whether the hop can be used."""
    fits, ratio, loads = moment.count > 0, moment.ratio, moment.loads
    crosses, rounds_left = problem.crosses.astype(jnp.float32), features.rounds_left
    of_receivers = table.receiver_features(
        jnp, loads.to_come, loads.taken, problem.intake, rounds_left
    )
    slack, no_slack, taken, load = (x[problem.receiver] for x in of_receivers)
    of_route = table.route_features(jnp, features.link_slack, graph.length)
    link_slack, no_link_slack, length = of_route
    chain = table.clipped(jnp, rounds_left - features.chain)
    contention = table.logarithm(jnp, ratio)
    numbers = {
        table.SLACK: slack,
        table.NO_SLACK: no_slack,
        table.LINK_SLACK: link_slack,
        table.NO_LINK_SLACK: no_link_slack,
        table.CONTENTION: table.logarithm(jnp, ratio @ crosses),
        table.CONTENTION_AT_RECEIVER: contention[problem.receiver_link],
        table.CONTENTION_AT_SENDER: contention[problem.sender_link],
        table.READY: table.logarithm(jnp, moment.count),
        table.TAKEN: taken,
        table.LOAD: load,
        table.LENGTH: length,
        table.CHAIN_SLACK: jnp.where(problem.grown, 0.0, chain),
    }
    return jnp.where(fits, _in_order(numbers), 0.0), fits


def _in_order(numbers: dict[int, Array]) -> Array:
    """One row per feature, in the order of the table; rows are fast to concatenate."""
    return jnp.stack([numbers[place] for place in range(len(numbers))])


def of_pieces(
    problem: Problem, graph: Graph, features: Round, state: State, hop: Int[Array, ""]
) -> tuple[Float[Array, "7 Q"], Bool[Array, " Q"]]:
    """Features of each tree on one hop, and whether the tree has a ready workload there."""
    sender, receiver = problem.sender[hop], problem.receiver[hop]
    pending = state.pending
    lacks = (pending & in_stage(problem, state)).astype(jnp.float32)
    into, stage = graph.into, features.stage
    into_receiver = into[stage, receiver]
    from_receiver, from_sender = into[stage, :, receiver], into[stage, :, sender]
    degree_in = jnp.maximum(into_receiver.sum(), 1.0)
    counts = jnp.stack([into_receiver, from_receiver, from_sender, jnp.ones_like(into_receiver)])
    counts = jnp.where(problem.intake > 0, counts, 0.0)
    lacking = counts @ lacks
    near = into_receiver.sum() - lacking[0]
    servers = jnp.maximum((problem.intake > 0).sum(), 1)
    by_sender = problem.by_sender
    height = jnp.where(by_sender, problem.height[sender], problem.height[receiver])
    unsent = jnp.where(by_sender, pending[sender], pending[receiver])
    holds = unpacked(state.holds[sender], by_sender.shape[0])
    complete = unpacked(state.complete[receiver], by_sender.shape[0])
    pieces = jnp.where(complete, 0, problem.waiting[receiver] - state.received[receiver])
    awaited = pieces.astype(jnp.float32)

    def if_grown(number: Array) -> Array:
        return jnp.where(problem.grown, number, 0.0)

    def share(number: Array, of: Array) -> Array:
        return if_grown(table.SHARE * number / of)

    chain = table.clipped(jnp, features.rounds_left - height)
    numbers = {
        table.NEAR: share(near, degree_in),
        table.NEAR_LOGARITHM: if_grown(jnp.log(jnp.maximum(near, 1.0))),
        table.HELD: share(servers - lacking[3], servers),
        table.LACK_OF_RECEIVER: share(lacking[1], jnp.maximum(from_receiver.sum(), 1.0)),
        table.LACK_OF_SENDER: share(lacking[2], jnp.maximum(from_sender.sum(), 1.0)),
        table.PIECE_CHAIN_SLACK: jnp.where(problem.grown, 0.0, chain),
        table.AWAITED: 1.0 / jnp.maximum(awaited, 1.0),
    }
    can = problem.allowed[hop] & holds & unsent & state.selected & in_stage(problem, state)
    return jnp.where(can, _in_order(numbers), 0.0), can
