"""Steps of games whose episodes begin only where one ended, and of games that begin in each step.

    taskset -c 0 python benchmarks/experiments/game_starts.py

`MultiAgentEnv.step`, JaxMARL's and Gradweave's of one game, draws a new episode in each step, and
throws it away where none ended. `Environment.steps` plays many games and draws episodes for those
that ended. Both under `jax.vmap` over seeds, as learners side by side play them, by random actions,
on one core; steps of all games a second of processor time, after compiling. They take turns, and
the median counts.
"""

import statistics
import time
from typing import Any

import jax

from benchmarks.experiment import Rows, grid, run
from gradweave.marl.evaluation import random_action
from gradweave.marl.games.environments import make
from gradweave.processes.jax_start import start_jax

GAMES = (
    *("MPE_simple_spread_v3", "overcooked", "coin_game", "switch_riddle"),
    *("HeuristicEnemySMAX:scenario=3m", "hanabi", "jaxnav", "storm"),
)
SEEDS, SIDE_BY_SIDE, STEPS, TURNS = 3, 64, 100, 3


def random_play(environment: Any, games: int, steps: int, step: Any = None) -> Any:
    """A function of a key: [T, …] rewards and ends of games side by side, by random actions.

    Args:
        environment: of all games.
        games: side by side.
        steps: T, of each.
        step: of all games; without one `Environment.steps`.
    """
    step = step or environment.steps

    def on(carry: Any, key: Any) -> Any:
        keys = jax.random.split(key, games)
        states, views = carry
        action = random_action(environment, views, keys)
        states, views, outcome = step(keys, states, action)
        return (states, views), (outcome.reward, outcome.done)

    def play(key: Any) -> Any:
        begun = jax.vmap(environment.reset)(jax.random.split(key, games))
        return jax.lax.scan(on, begun, jax.random.split(key, steps))[1]

    return play


def measured(game: str) -> dict[str, Any]:
    """One game."""
    environment = make(game)

    def played(step: Any) -> Any:
        one = random_play(environment, SIDE_BY_SIDE, STEPS, step)
        compiled = jax.jit(jax.vmap(one))
        jax.block_until_ready(compiled(jax.random.split(jax.random.key(0), SEEDS)))
        return compiled

    ways = {"always": played(jax.vmap(environment.step)), "ended": played(environment.steps)}
    took: dict[str, list[float]] = {name: [] for name in ways}
    ended = 0
    for turn in range(TURNS):
        keys = jax.random.split(jax.random.key(1 + turn), SEEDS)
        for name, way in ways.items():
            before = time.process_time()
            _, done = jax.block_until_ready(way(keys))
            took[name].append(time.process_time() - before)
            ended = int(done.sum())
    number = SEEDS * SIDE_BY_SIDE * STEPS
    rates = {name: number / statistics.median(each) for name, each in took.items()}
    return {
        "steps_per_cpu_s": rates,
        "times": rates["ended"] / rates["always"],
        "ended": ended / number,
    }


if __name__ == "__main__":
    start_jax(1)
    run(
        __doc__,
        Rows(grid(game=GAMES), measured),
        libraries=("jax", "jaxmarl"),
        seeds=SEEDS,
        games=SIDE_BY_SIDE,
    )
