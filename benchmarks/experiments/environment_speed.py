"""Speed of the learning environment under a random policy, beside a version in plain Python.

    python benchmarks/experiments/environment_speed.py

Six networks of Table 2, fixed and grown trees; workloads are drawn uniformly from the available
ones, with all trees selected unless stated otherwise. Plain Python plays one episode at a time, in
two variants that represent the mask of available workloads differently
(benchmarks/peers/plain_environment.py); the faster one counts. JAX plays

- `rollouts`: `gradweave.environment.rollouts`, written for this policy, with 1, 64 and 1,024
  environments in parallel, on an accelerator with 8,192 too;
- `rounds`: the functions that learning is built on, `select`, `draw`, `send` and `end_round`, with
  rounds as an outer loop and sends as an inner one, on 1,024 environments;
- `step`: `SchedulingEnvironment.step`, for the turn of either agent, on 1,024 environments.

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
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
import numpy as np
import timing
from peers.plain_environment import NumpyEnvironment, PlainEnvironment, RecordedStep
from record import RESULTS, record

import gradweave as gw
from gradweave.environment import Instance, Problem, SchedulingEnvironment, State, rounds
from gradweave.environment import state as states
from gradweave.environment.flow_tree_selection import select
from gradweave.environment.random_policy import draw, hashed
from gradweave.environment.rollouts import Rollouts
from gradweave.environment.state import any_available, end_round
from gradweave.environment.workload_scheduling import send
from gradweave.report import TABLE_2

NETWORKS = ("B3", "B5", "D4", "D6", "J10", "J20")
SEED = 0
REPEATS = 5
PLAIN_S = 0.2
"""Seconds that plain Python plays per turn, in each variant."""
ON_ACCELERATOR = jax.default_backend() != "cpu"
ENVIRONMENTS = (1, 64, 1024, 8192) if ON_ACCELERATOR else (1, 64, 1024)
MANY = 1024
EPISODES = {1: 64, 64: 8, 1024: 2, 8192: 2}
"""Episodes of each environment per call."""
SHARE = 0.5
"""Probability of selecting a tree, where selection is random."""
ROUNDS, STEPS = 4, 24
"""Rounds and steps per call, from the first."""
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
    padding = -len(episode) % 512
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


def plain_seconds(plain: PlainEnvironment, rng: random.Random) -> tuple[float, float]:
    """Seconds per decision and per round."""
    steps = num_rounds = 0
    begin = time.process_time()
    while time.process_time() - begin < PLAIN_S:
        steps += plain.random_episode(rng)
        num_rounds += plain.round
    seconds = time.process_time() - begin
    return seconds / steps, seconds / num_rounds


def drawn(problem: Problem, state: State, seed: jax.Array) -> tuple:
    """A random hop, a tree, and whether there is one, from the seed and the round's sends."""
    return draw(problem, state, hashed(seed ^ hashed(state.sent.astype(jnp.uint32))))


def by_rounds(problem: Problem, many: State, key: jax.Array) -> jax.Array:
    """Plays the first `ROUNDS` rounds of many environments; returns the workloads sent."""
    everything = jnp.ones(problem.root.shape, bool)

    def send_one(state: State, seed: jax.Array) -> State:
        return send(problem, state, *drawn(problem, state, seed))

    def play_round(many: State, seeds: jax.Array) -> tuple[State, None]:
        many = jax.vmap(lambda state: select(problem, state, everything))(many)
        many = jax.lax.while_loop(
            lambda many: jax.vmap(any_available)(many).any(),
            lambda many: jax.vmap(send_one)(many, seeds),
            many,
        )
        return jax.vmap(lambda state: end_round(problem, state))(many), None

    seeds = jax.random.bits(key, (ROUNDS, MANY), jnp.uint32)
    last, _ = jax.lax.scan(play_round, many, seeds)
    return many.pending.sum() - last.pending.sum()


def by_steps(problem: Problem, many: State, key: jax.Array) -> jax.Array:
    """Plays the first `STEPS` steps of many environments; returns the workloads sent."""
    environment, everything = SchedulingEnvironment(), jnp.ones(problem.root.shape, bool)

    def step(state: State, seed: jax.Array) -> State:
        hop, tree, _ = drawn(problem, state, seed)
        workload = hop * problem.root.shape[0] + tree
        return environment.step(problem, state, everything, workload).state

    seeds = jax.random.bits(key, (STEPS, MANY), jnp.uint32)
    last, _ = jax.lax.scan(lambda many, seeds: (jax.vmap(step)(many, seeds), None), many, seeds)
    return many.pending.sum() - last.pending.sum()


KEY = jax.random.key(SEED)
BY_STATE = {"rounds": by_rounds, "step": by_steps}
ROLLOUTS = [(f"rollouts {many}", many, 1.0) for many in ENVIRONMENTS]
ROLLOUTS.append(("rollouts, random trees", MANY, SHARE))


def measure(label: str, spec: str, instance: Instance) -> dict[str, Any]:
    problem = Problem.of(instance)
    sends = int(problem.pending.sum())
    plain = {name: form(instance) for name, form in FORMS.items()}
    for form, share in zip(plain.values(), (1.0, SHARE), strict=True):
        agree(instance, form, share)
    state = states.reset(problem)
    first = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (MANY, *leaf.shape)), state)
    lowered = {name: jax.jit(f).lower(problem, first, KEY) for name, f in BY_STATE.items()}
    for name, many, share in ROLLOUTS:
        lowered[name] = Rollouts(problem, many, episodes=EPISODES[many], share=share).play.lower(
            KEY
        )
    programs, compile_s = {}, {}
    for name, program in lowered.items():
        compile_s[name], programs[name] = timed(program.compile)
    rng = random.Random(SEED)
    decision_s: dict[str, list[float]] = {name: [] for name in (*FORMS, *programs)}
    round_s: dict[str, list[float]] = {name: [] for name in (*FORMS, *(x for x, *_ in ROLLOUTS))}
    for key in jax.random.split(KEY, REPEATS + 1):
        for name, form in plain.items():
            decision, a_round = plain_seconds(form, rng)
            decision_s[name].append(decision)
            round_s[name].append(a_round)
        for name, program in programs.items():
            arguments = (problem, first, key) if name in BY_STATE else (key,)
            seconds, output = timed(functools.partial(program, *arguments))
            if name in BY_STATE:
                decision_s[name].append(seconds / int(output))
            else:
                decision_s[name].append(seconds / (sends * output.rounds.size))
                round_s[name].append(seconds / int(output.rounds.sum()))
    # The first of each warms up caches.
    decision = {name: statistics.median(s[1:]) for name, s in decision_s.items()}
    a_round = {name: statistics.median(s[1:]) for name, s in round_s.items()}
    base = min(FORMS, key=lambda name: decision[name])
    return {
        "label": label,
        "network": spec,
        "trees": instance.trees,
        "collective": instance.collective,
        "decisions_an_episode": sends,
        "plain_form": base,
        "plain_decision_us": {name: 1e6 * decision[name] for name in FORMS},
        "plain_rounds_per_s": 1 / a_round[base],
        "decisions_per_s": {name: 1 / decision[name] for name in programs},
        "rounds_per_s": {name: 1 / a_round[name] for name, *_ in ROLLOUTS},
        "compile_s": compile_s,
        "speedup": {name: decision[base] / decision[name] for name in programs},
    }


def memory(instance: Instance) -> dict[str, Any]:
    """Bytes of many environments: of their states, and the programs' total."""
    problem, environment = Problem.of(instance), SchedulingEnvironment()

    def total(compiled: Any) -> int:
        needs = compiled.memory_analysis()
        return int(
            needs.argument_size_in_bytes
            + needs.output_size_in_bytes
            + needs.temp_size_in_bytes
            - needs.alias_size_in_bytes
        )

    state = jax.eval_shape(environment.reset, problem)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((MANY, *leaf.shape), leaf.dtype), state)
    trees = jax.ShapeDtypeStruct((MANY, *problem.root.shape), bool)
    workload = jax.ShapeDtypeStruct((MANY,), jnp.int32)
    step = jax.jit(jax.vmap(environment.step, in_axes=(None, 0, 0, 0)), donate_argnums=1)
    rollouts = Rollouts(problem, MANY, episodes=EPISODES[MANY]).play.lower(KEY)
    return {
        "trees": instance.trees,
        "environments": MANY,
        "state_bytes": sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes)),
        "step_bytes": total(step.lower(problem, shapes, trees, workload).compile()),
        "rollouts_bytes": total(rollouts.compile()),
    }


def draw_figure(rows: list[dict[str, Any]]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), dpi=160, layout="constrained")
    left, right = figure.subplots(1, 2)
    colours = dict(zip(NETWORKS, ("#1b6ca8", "#0b3c5d", "#0b6e4f", "#063d2c", "#e09f3e", "#9e2a2b"),
                       strict=True))  # fmt: skip
    for row in rows:
        grown = row["trees"] == "grown"
        line = [row["decisions_per_s"][f"rollouts {many}"] for many in ENVIRONMENTS]
        style = {
            "color": colours[row["label"]],
            "ls": "-" if grown else "--",
            "marker": "o",
            "ms": 4,
        }
        left.loglog(ENVIRONMENTS, line, label=row["label"] if grown else None, **style)
    plain = [1e6 / row["plain_decision_us"][row["plain_form"]] for row in rows]
    left.axhspan(min(plain), max(plain), color="#8a8d91", alpha=0.3, lw=0)
    left.text(1, max(plain) * 1.15, "plain Python, one environment", fontsize=8, color="#555555")
    left.set_xticks(ENVIRONMENTS, [f"{many:,}" for many in ENVIRONMENTS])
    left.set_xticks([], minor=True)
    left.set_xlabel("environments in parallel")
    left.set_ylabel("workload decisions per second")
    left.legend(frameon=False, fontsize=8, title="grown –, fixed - -", title_fontsize=8)
    for offset, trees in ((-0.2, "fixed"), (0.2, "grown")):
        of = {
            row["label"]: row["speedup"][f"rollouts {MANY}"]
            for row in rows
            if row["trees"] == trees
        }
        places = [place + offset for place in range(len(NETWORKS))]
        bars = right.bar(places, [of[label] for label in NETWORKS], 0.38, label=f"{trees} trees",
                         color={"fixed": "#8fb8de", "grown": "#1b6ca8"}[trees])  # fmt: skip
        right.bar_label(bars, fmt="%.0f", fontsize=7)
    right.axhline(100, color="#c8553d", lw=1, ls="--")
    right.set_xticks(range(len(NETWORKS)), NETWORKS)
    right.set_ylabel(f"times plain Python, {MANY:,} environments")
    right.legend(frameon=False, fontsize=8)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(RESULTS / "environment_speed.png")


def main() -> None:
    begin = time.perf_counter()
    cases = {case.label: case for case in TABLE_2}
    rows = []
    for label in NETWORKS:
        network = gw.topology.from_spec(cases[label].spec)
        for trees in ("fixed", "grown"):
            instance = Instance(network, cases[label].stages, trees)
            rows.append(measure(label, cases[label].spec, instance))
            shown = ", ".join(f"{name}: ×{x:.3g}" for name, x in rows[-1]["speedup"].items())
            print(f"{time.perf_counter() - begin:4.0f} s  {label} {trees}  {shown}", flush=True)
    b5 = gw.topology.from_spec(cases["B5"].spec)
    record(
        "environment_speed",
        libraries=("jax", "jaxlib"),
        backend=jax.default_backend(),
        seeds=[SEED],
        repeats=REPEATS,
        share=SHARE,
        memory=[memory(Instance(b5, cases["B5"].stages, trees)) for trees in ("fixed", "grown")],
        rows=rows,
    )
    draw_figure(rows)


if __name__ == "__main__":
    main()
