"""What the policies look at: once a round, and again before each workload.

All of it is counts and ratios of a neighbourhood, so that nothing depends on a network's size or on
how its servers are numbered. The numbers of a round go through the message passing of `networks`;
those of a workload change with every workload that is sent, and are cheap.

The order of the numbers, their constants and who else computes them: see
`schedulers.learned.feature_table`.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from gradweave.environment.bits import packed, unpacked
from gradweave.environment.problem import Problem
from gradweave.environment.state import State, ready, room, waiting
from gradweave.schedulers.learned import feature_table as table


class Graph(eqx.Module):
    """A problem's hops as matrices between servers and links, one for each stage."""

    into: Float[Array, "2 N N"]
    """Hops into a server (row) from a server (column)."""
    links_in: Float[Array, "2 N L"]
    """Hops into a server over a link."""
    links_out: Float[Array, "2 N L"]
    """Hops out of a server over a link."""
    length: Float[Array, " H"]
    """Links of each hop's route."""

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


class Round(eqx.Module):
    """What does not change within a round."""

    server: Float[Array, "N 6"]
    """Transfers to come over those that fit the rounds left; slack; shares of trees held and
    wanted; ports; share of held trees that a neighbour wants."""
    link: Float[Array, "L 3"]
    """Demand over what fits the rounds left; workloads ready over capacity, logarithm; whether it
    is a link that hops use."""
    tree: Float[Array, "Q 5"]
    """Shares sent, ready and to come; selected in the round before; rounds that its longest chain
    takes over the rounds left."""
    whole: Float[Array, " 5"]
    """Grown or fixed; share of the bound's rounds left; share of transfers to come; whether
    transfers merge into their receivers; the logarithm of the servers' number."""
    holds: Bool[Array, "N Q"]
    """Trees of this stage for which a server is ready to send."""
    lacks: Bool[Array, "N Q"]
    """Trees of this stage for which a server waits."""
    stage: Int[Array, ""]
    """That is under way: which of the matrices of `Graph` count."""
    candidates: Bool[Array, " Q"]
    """Trees with a workload that is ready."""
    rounds_left: Float[Array, ""]
    """Rounds of this stage until its bound, at least 1."""
    link_slack: Float[Array, " H"]
    """Transfers that the tightest link of a route can spare until then."""
    chain: Float[Array, " H"]
    """Rounds of the longest chain that a ready workload of the hop begins."""
    to_come: Float[Array, " N"]
    """Transfers into each server that are still to come, at the round's start."""


def in_stage(problem: Problem, state: State) -> Bool[Array, " Q"]:
    """The trees of the stage that is under way."""
    return jnp.where(problem.barrier, problem.stage == state.stage, problem.stage < 2)


def of_round(problem: Problem, graph: Graph, state: State) -> Round:
    """The features at the start of a round.

    Args:
        problem: the problem.
        graph: its matrices.
        state: at the turn of flow-tree selection.
    """
    now = _now(problem, graph, state)
    link, link_slack = _links(problem, now, state)
    intake = problem.intake[:, None]
    heights = jnp.where(now.workloads, problem.height[now.cell], 0)
    return Round(
        server=jnp.where(intake > 0, _servers(problem, now), 0.0),
        link=link,
        tree=jnp.where(now.exists[:, None], _trees(problem, now, state), 0.0),
        whole=_whole(problem, now, state),
        holds=now.holds,
        lacks=now.lacks,
        stage=state.stage,
        candidates=now.workloads.any(0),
        rounds_left=now.rounds_left,
        link_slack=link_slack,
        chain=heights.max(1).astype(jnp.float32),
        to_come=now.to_come,
    )


class _Now(NamedTuple):
    """What the features of a round share."""

    into: Float[Array, "N N"]
    links_in: Float[Array, "N L"]
    links_out: Float[Array, "N L"]
    """Those of `Graph` in this stage."""
    bound: Int[Array, ""]
    """Rounds."""
    rounds_left: Float[Array, ""]
    exists: Bool[Array, " Q"]
    """Trees of this stage that have transfers."""
    holds: Bool[Array, "N Q"]
    lacks: Bool[Array, "N Q"]
    to_come: Float[Array, " N"]
    workloads: Bool[Array, "H Q"]
    """Ready on each hop."""
    cell: tuple[Int[Array, "H Q"], Int[Array, " Q"]]
    """Where matrices [N, Q] have the workload of a hop and a tree."""


def _now(problem: Problem, graph: Graph, state: State) -> _Now:
    trees = in_stage(problem, state)
    into, links_in, links_out = (
        matrix[state.stage] for matrix in (graph.into, graph.links_in, graph.links_out)
    )
    bound = jnp.where(problem.barrier, problem.bound[state.stage], problem.bound.sum())
    spent = state.round - jnp.where(problem.barrier, state.stage_start, 0)
    exists = problem.pending.any(0) & trees
    still = waiting(problem, state)
    wait = jnp.where(exists, still, 0).astype(jnp.float32)
    holds, lacks = exists & (still == 0), exists & (still > 0)
    holds &= (problem.intake > 0)[:, None]
    by_sender = problem.by_sender
    server = jnp.where(by_sender, problem.sender[:, None], problem.receiver[:, None])
    return _Now(
        into=into,
        links_in=links_in,
        links_out=links_out,
        bound=bound,
        rounds_left=jnp.maximum(bound - spent, 1).astype(jnp.float32),
        exists=exists,
        holds=holds,
        lacks=lacks,
        to_come=wait.sum(1),
        workloads=unpacked(ready(problem, state, packed(exists)), exists.shape[0]),
        cell=(server, jnp.arange(by_sender.shape[0])),
    )


def _servers(problem: Problem, now: _Now) -> Float[Array, "N 6"]:
    """`Round.server`, of padding as well."""
    number = jnp.maximum(now.exists.sum(), 1).astype(jnp.float32)
    intake = problem.intake.astype(jnp.float32)
    can_take = now.rounds_left * jnp.maximum(intake, 1.0)
    neighbours_lack = now.into.T @ now.lacks.astype(jnp.float32) > 0
    return jnp.stack(
        [
            jnp.minimum(now.to_come / can_take, table.HIGHEST_LOAD),
            _clipped(now.rounds_left * intake - now.to_come),
            now.holds.sum(1) / number,
            now.lacks.sum(1) / number,
            jnp.log1p(intake) / 2.0,
            (now.holds & neighbours_lack).sum(1) / jnp.maximum(now.holds.sum(1), 1),
        ],
        1,
    )


def _links(
    problem: Problem, now: _Now, state: State
) -> tuple[Float[Array, "L 3"], Float[Array, " H"]]:
    """`Round.link` and `Round.link_slack`."""
    share = now.to_come / jnp.maximum(now.into.sum(1), 1.0)
    left = problem.allowed & now.exists & state.pending[now.cell]
    there = (problem.allowed & now.exists).any(1)
    wanted = jnp.where(problem.grown, share[problem.receiver] * there, left.sum(1))
    count = now.workloads.sum(1).astype(jnp.float32)
    crosses = problem.crosses.astype(jnp.float32)
    capacity = problem.capacity.astype(jnp.float32)
    demand, contenders = (crosses @ jnp.stack([wanted, count], 1)).T
    used = now.links_in.sum(0) > 0
    fits = now.rounds_left * jnp.maximum(capacity, 1.0)
    spare = jnp.where(used, now.rounds_left * capacity - demand, table.PLENTY)
    link = jnp.stack(
        [
            jnp.where(used, jnp.minimum(demand / fits, table.HIGHEST_LOAD), 0.0),
            jnp.where(used, jnp.log1p(contenders / jnp.maximum(capacity, 1.0)) / 4.0, 0.0),
            used.astype(jnp.float32),
        ],
        1,
    )
    return link, jnp.append(spare[:-1], table.PLENTY)[problem.hop_links].min(1)


def _trees(problem: Problem, now: _Now, state: State) -> Float[Array, "Q 5"]:
    """`Round.tree`, of padding as well."""
    total = jnp.maximum(problem.pending.sum(0), 1).astype(jnp.float32)
    remaining = jnp.where(now.exists, state.pending.sum(0) / total, 0.0)
    cells = jnp.zeros(problem.pending.shape, bool).at[now.cell].max(now.workloads)
    tallest = jnp.where(state.pending & now.exists, problem.height, 0).max(0)
    return jnp.stack(
        [
            jnp.where(now.exists, 1.0 - remaining, 0.0),
            cells.sum(0) / total,
            remaining,
            state.selected_before.astype(jnp.float32),
            jnp.minimum(tallest / now.rounds_left, table.HIGHEST_LOAD),
        ],
        1,
    )


def _whole(problem: Problem, now: _Now, state: State) -> Float[Array, " 5"]:
    """`Round.whole`."""
    servers = jnp.maximum((problem.intake > 0).sum(), 1).astype(jnp.float32)
    return jnp.stack(
        [
            problem.grown.astype(jnp.float32),
            jnp.minimum(now.rounds_left / jnp.maximum(now.bound, 1), 1.0),
            jnp.where(now.exists, state.pending.sum(0), 0).sum()
            / jnp.maximum(jnp.where(now.exists, problem.pending.sum(0), 0).sum(), 1),
            (problem.by_sender & now.exists).any().astype(jnp.float32),
            jnp.log(servers) / 4.0,
        ]
    )


def _clipped(slack: Float[Array, " ..."]) -> Float[Array, " ..."]:
    return jnp.clip(slack, table.LOWEST, table.HIGHEST) / table.UNIT


class Loads(eqx.Module):
    """Transfers into each server, which change with each workload of a round."""

    to_come: Float[Array, " N"]
    """Neither made nor on the way."""
    taken: Float[Array, " N"]
    """On the way in this round."""

    @staticmethod
    def start(features: Round) -> "Loads":
        """At the round's start."""
        return Loads(features.to_come, jnp.zeros_like(features.to_come))

    def sent(self, receiver: Int[Array, ""], can: Bool[Array, ""]) -> "Loads":
        """After a workload."""
        one = can.astype(jnp.float32)
        return Loads(self.to_come.at[receiver].add(-one), self.taken.at[receiver].add(one))


class Moment(eqx.Module):
    """What the features of hops are made of that changes from one draw of a round to the next."""

    count: Float[Array, " H"]
    """Workloads that could be sent over each hop."""
    ratio: Float[Array, " L"]
    """Hops with such workloads for each transfer that a link can still carry."""
    loads: Loads

    @staticmethod
    def of(problem: Problem, state: State, loads: Loads) -> "Moment":
        """Before a draw."""
        fits = (state.count > 0).astype(jnp.float32)
        contenders = problem.crosses.astype(jnp.float32) @ fits
        ratio = contenders / jnp.maximum(room(problem, state), 1)
        return Moment(state.count.astype(jnp.float32), ratio, loads)


def of_hops(
    problem: Problem, graph: Graph, features: Round, moment: Moment
) -> tuple[Float[Array, "12 H"], Bool[Array, " H"]]:
    """Features of each hop before a workload is sent, and which hops can be used."""
    fits, ratio, loads = moment.count > 0, moment.ratio, moment.loads
    crosses = problem.crosses.astype(jnp.float32)
    slack, load, taken = _of_receivers(problem, features, loads)
    chain = jnp.where(problem.grown, 0.0, _clipped(features.rounds_left - features.chain))
    numbers = {
        table.SLACK: slack[problem.receiver],
        table.NO_SLACK: (slack <= 0).astype(jnp.float32)[problem.receiver],
        table.LINK_SLACK: _clipped(features.link_slack),
        table.NO_LINK_SLACK: (features.link_slack <= table.ROUNDING).astype(jnp.float32),
        table.CONTENTION: _log(ratio @ crosses),
        table.CONTENTION_AT_RECEIVER: _log(ratio)[problem.receiver_link],
        table.CONTENTION_AT_SENDER: _log(ratio)[problem.sender_link],
        table.READY: _log(moment.count),
        table.TAKEN: taken[problem.receiver],
        table.LOAD: load[problem.receiver],
        table.LENGTH: graph.length / 2.0 - 1.0,
        table.CHAIN_SLACK: chain,
    }
    return jnp.where(fits, _in_order(numbers), 0.0), fits


def _in_order(numbers: dict[int, Array]) -> Array:
    """One row for each feature, by its place in the table: rows are quick to put together."""
    return jnp.stack([numbers[place] for place in range(len(numbers))])


def _of_receivers(problem: Problem, features: Round, loads: Loads) -> tuple[Array, Array, Array]:
    intake = problem.intake.astype(jnp.float32)
    can_take = features.rounds_left * jnp.maximum(intake, 1.0)
    return (
        _clipped(features.rounds_left * intake - loads.to_come),
        jnp.minimum(loads.to_come / can_take, table.HIGHEST_LOAD),
        loads.taken / jnp.maximum(intake, 1.0),
    )


def _log(number: Float[Array, " ..."]) -> Float[Array, " ..."]:
    return jnp.log(jnp.maximum(number, table.LEAST))


def of_pieces(
    problem: Problem, graph: Graph, features: Round, state: State, hop: Int[Array, ""]
) -> tuple[Float[Array, "7 Q"], Bool[Array, " Q"]]:
    """Features of each tree on one hop, and which trees have a ready workload there."""
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

    chain = jnp.where(problem.grown, 0.0, _clipped(features.rounds_left - height))
    numbers = {
        table.NEAR: share(near, degree_in),
        table.NEAR_LOGARITHM: if_grown(jnp.log(jnp.maximum(near, 1.0))),
        table.HELD: share(servers - lacking[3], servers),
        table.LACK_OF_RECEIVER: share(lacking[1], jnp.maximum(from_receiver.sum(), 1.0)),
        table.LACK_OF_SENDER: share(lacking[2], jnp.maximum(from_sender.sum(), 1.0)),
        table.PIECE_CHAIN_SLACK: chain,
        table.AWAITED: 1.0 / jnp.maximum(awaited, 1.0),
    }
    can = problem.allowed[hop] & holds & unsent & state.selected & in_stage(problem, state)
    return jnp.where(can, _in_order(numbers), 0.0), can
