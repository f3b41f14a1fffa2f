"""Speed of the learning environment under a random policy, beside a version in plain Python.

    python benchmarks/experiments/environment_speed.py

Six networks of Table 2, fixed and grown trees; workloads are drawn uniformly from the available
ones, with all trees selected. Plain Python plays one episode at a time, in two variants that
represent the mask of available workloads differently (benchmarks/peers/plain_environment.py); the
faster one counts. JAX plays `SchedulingEnvironment.step`, for the turn of either agent, under
`vmap`, with 1,024 environments in parallel, on an accelerator with 8,192 too; each goes on with its
next episode by itself, so that they stand in different rounds and at different turns, as they do
after the first episode, which is not timed.

Plain Python computes the mask at each step, since an environment has to return it. JAX keeps the
counts of available workloads on each hop, which suffice for the draw; an unused mask is not
computed.

On a CPU everything runs on one core, to which the script pins itself, and seconds are processor
time. Plain Python and JAX take turns; medians count. Compilation is timed separately. First,
episodes of plain Python are replayed in the environment: masks, rewards and rounds must agree.
"""

import functools
import os
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import jax
import jax.numpy as jnp
import numpy as np

import gradweave as gw
from benchmarks import timing
from benchmarks.experiment import Rows, grid, run
from benchmarks.peers.plain_environment import NumpyEnvironment, PlainEnvironment, RecordedStep
from gradweave.environment import SchedulingEnvironment, State, rounds
from gradweave.environment import state as states
from gradweave.environment.problem import Instance, Problem
from gradweave.environment.random_policy import draw, hashed
from gradweave.report import TABLE_2

NETWORKS = ("B3", "B5", "D4", "D6", "J10", "J20")
SEED = 0
REPEATS = 3
PLAIN_S = 0.2
"""Seconds that plain Python plays per turn, in each variant."""
LAST = -1
"""Axis of the environments in states: their tables are quick to go through so."""
ON_ACCELERATOR = jax.default_backend() != "cpu"
MANY = 1024
ENVIRONMENTS = (MANY, 8192) if ON_ACCELERATOR else (MANY,)
SHARE = 0.5
"""Probability of selecting a tree in the replay of the second variant."""
STEPS = 512
"""Steps per call."""
FORMS = {"sets": PlainEnvironment, "numpy": NumpyEnvironment}
clock = time.perf_counter if ON_ACCELERATOR else time.process_time


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds until the result of work is there, and the result."""
    return timing.timed(lambda: jax.block_until_ready(work()), clock)


@jax.jit
def replayed(problem: Problem, trees: jax.Array, workloads: jax.Array) -> tuple:
    environment = SchedulingEnvironment()

    def step(state: State, action: tuple[jax.Array, jax.Array]) -> tuple[State, tuple]:
        after = environment.step(problem, state, *action)
        mask = environment.workload_mask(problem, after.state)
        return after.state, (after.tree_reward, after.workload_reward, mask)

    state, outputs = jax.lax.scan(step, environment.reset(problem), (trees, workloads))
    return rounds(state), state.done, *outputs


def agree(instance: Instance, plain: PlainEnvironment, share: float) -> None:
    """Asserts that the environment reproduces an episode of plain Python."""
    episode: list[RecordedStep] = []
    plain.random_episode(random.Random(SEED), share, episode)
    problem = Problem.of(instance)
    # Padded with selections after the end, so that few lengths are compiled.
    padding = -len(episode) % 2048
    trees = np.array([step.trees for step in episode] + [[False] * plain.pieces] * padding)
    workloads = np.array([step.workload for step in episode] + [-1] * padding)
    outputs = replayed(problem, jnp.asarray(trees), jnp.asarray(workloads))
    num_rounds, done, tree_reward, workload_reward, mask = (np.asarray(x) for x in outputs)
    steps = range(len(episode))
    assert done
    assert num_rounds == plain.round
    assert np.allclose(
        tree_reward[: len(episode)], [step.tree_reward for step in episode], atol=1e-5
    )
    assert np.allclose(
        workload_reward[: len(episode)], [x.workload_reward for x in episode], atol=1e-5
    )
    assert all(np.flatnonzero(mask[i]).tolist() == episode[i].available for i in steps)


def plain_seconds(plain: PlainEnvironment, rng: random.Random) -> float:
    """Seconds per decision."""
    steps, begin = 0, time.process_time()
    while time.process_time() - begin < PLAIN_S:
        steps += plain.random_episode(rng)
    return (time.process_time() - begin) / steps


def drawn(problem: Problem, state: State, seed: jax.Array) -> tuple:
    """A random hop, a tree, and whether there is one, from the seed and the round's sends."""
    return draw(problem, state, hashed(seed ^ hashed(state.sent.astype(jnp.uint32))))


def by_steps(problem: Problem, many: State, seeds: jax.Array) -> tuple[State, jax.Array]:
    """Steps of many environments, with one episode after the other; and the workloads sent."""
    environment = SchedulingEnvironment(auto_reset=True)
    everything = jnp.ones(problem.root.shape, bool)

    def step(state: State, seed: jax.Array) -> tuple[State, jax.Array]:
        hop, tree, _ = drawn(problem, state, seed)
        workload = hop * problem.root.shape[0] + tree
        made = environment.step(problem, state, everything, workload)
        return made.state, made.workload_reward > 0

    def of_all(carry: tuple, number: jax.Array) -> tuple[tuple, None]:
        many, sent = carry
        many, more = jax.vmap(step, (LAST, 0), (LAST, 0))(many, seeds ^ hashed(number))
        return (many, sent + more), None

    sent = jnp.zeros(seeds.shape, jnp.int32)
    numbers = jnp.arange(STEPS, dtype=jnp.uint32)
    (many, sent), _ = jax.lax.scan(of_all, (many, sent), numbers)
    return many, sent.sum()


PLAYED: dict[str, tuple[Callable[..., Any], int]] = {
    f"step {many}": (by_steps, many) for many in ENVIRONMENTS
}
"""What JAX plays, and how many environments."""


def seeds_of(number: int, many: int) -> jax.Array:
    return jax.random.bits(jax.random.fold_in(jax.random.key(SEED), number), (many,), jnp.uint32)


def measure(label: str, trees: Any) -> dict[str, Any]:
    case = next(case for case in TABLE_2 if case.label == label)
    instance = Instance(gw.topology.from_spec(case.spec), case.stages, trees)
    problem = Problem.of(instance)
    sends = int(problem.pending.sum())
    plain = {name: form(instance) for name, form in FORMS.items()}
    for form, share in zip(plain.values(), (1.0, SHARE), strict=True):
        agree(instance, form, share)
    programs, compile_s, now = {}, {}, {}
    for name, (play, many) in PLAYED.items():
        first = jax.tree.map(
            lambda leaf, many=many: jnp.broadcast_to(leaf[..., None], (*leaf.shape, many)),
            states.reset(problem),
        )
        lowered = jax.jit(play).lower(problem, first, seeds_of(0, many))
        compile_s[name], programs[name] = timed(lowered.compile)
        now[name] = first
        sent = 0
        while sent < sends * many:  # episodes end, and the next ones begin
            now[name], more = programs[name](problem, now[name], seeds_of(sent, many))
            sent += int(more)
    rng = random.Random(SEED)
    decision_s: dict[str, list[float]] = {name: [] for name in (*FORMS, *programs)}
    for repeat in range(REPEATS + 1):
        for name, form in plain.items():
            decision_s[name].append(plain_seconds(form, rng))
        for name, program in programs.items():
            seeds = seeds_of(2**31 + repeat, PLAYED[name][1])
            seconds, (now[name], sent) = timed(
                functools.partial(program, problem, now[name], seeds)
            )
            decision_s[name].append(seconds / int(sent))
    # The first of each warms up caches.
    decision = {name: statistics.median(s[1:]) for name, s in decision_s.items()}
    base = min(FORMS, key=lambda name: decision[name])
    return {
        "network": case.spec,
        "collective": instance.collective,
        "decisions_an_episode": sends,
        "state_bytes": state_bytes(instance),
        "plain_form": base,
        "plain_decision_us": {name: 1e6 * decision[name] for name in FORMS},
        "decisions_per_s": {name: 1 / decision[name] for name in programs},
        "compile_s": compile_s,
        "speedup": {name: decision[base] / decision[name] for name in programs},
    }


def state_bytes(instance: Instance) -> int:
    """Bytes of an environment's state."""
    state = jax.eval_shape(states.reset, Problem.of(instance))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))


if __name__ == "__main__":
    run(
        __doc__,
        Rows(grid(label=NETWORKS, trees=("fixed", "grown")), measure),
        libraries=("jax", "jaxlib"),
        backend=jax.default_backend(),
        seeds=[SEED],
        repeats=REPEATS,
    )
