"""What returns mean: random play, simple policies written by hand, and the most there is to earn.

    python benchmarks/experiments/marl_lines.py

switch_riddle and coin_game are computed over all that can happen: every sequence of agents in the
room, and dynamic programming over all states of a game of coins. The policy of simple_spread is
played, and so is random play there and in overcooked; the most of overcooked is a bound.
"""

import itertools
import json
import sys
from collections.abc import Callable
from fractions import Fraction
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
import numpy as np
from ortools.sat.python import cp_model
from record import record, versions

from gradweave.marl.evaluation import Act, play, random_action
from gradweave.marl.games.environment import View
from gradweave.marl.games.environments import make

EPISODES, PARTS, SEED = 1024, 16, 0
AGENTS, DAYS = 3, 6
NOTHING, SWITCH, TELL = range(3)
Visits = tuple[tuple[int, int], ...]
Riddle = Callable[[Visits], int]
"""From an agent's visits so far, as (day, light), the last one now, to its action."""


def riddle_return(policy: Riddle) -> Fraction:
    """Of agents that all follow one policy: the mean over all sequences of who is in the room."""
    total = 0
    for rooms in itertools.product(range(AGENTS), repeat=DAYS):
        light, visits = 0, {agent: () for agent in range(AGENTS)}
        for day, agent in enumerate(rooms):
            visits[agent] = (*visits[agent], (day, light))
            action = policy(visits[agent])
            if action == TELL:
                total += 1 if all(visits.values()) else -1
                break
            light ^= action == SWITCH
    return Fraction(total, AGENTS**DAYS)


def last_day(visits: Visits) -> int:
    """Tells on the last day, and does nothing before."""
    return TELL if visits[-1][0] == DAYS - 1 else NOTHING


def counting(visits: Visits) -> int:
    """The light is on while one agent has been in the room, and off again once two have."""
    day, light = visits[-1]
    if day == 0:
        return SWITCH
    if len(visits) > 1:
        return NOTHING
    return SWITCH if light else TELL


def random_riddle() -> Fraction:
    """Of agents that take every action alike."""
    total, going = Fraction(0), Fraction(1)
    for day in range(1, DAYS + 1):
        told = going / 3
        total += told * (2 * all_have_been(day) - 1)
        going -= told
    return total


def all_have_been(days: int) -> Fraction:
    """How likely that is after so many days; after all of them, what knowing agents earn."""
    sequences = itertools.product(range(AGENTS), repeat=days)
    return Fraction(sum(len(set(rooms)) == AGENTS for rooms in sequences), AGENTS**days)


def best_silent() -> Riddle:
    """The best policy for all agents of those that never touch the switch.

    Found and proved by a solver: after which of its own visits an agent should tell. Where the
    others had too few days to be in the room, telling can only lose, and is left out.
    """
    model = cp_model.CpModel()
    tells: dict[tuple[int, ...], Any] = {}
    earned = []

    def grow(before: tuple[int, ...], going: Any) -> None:
        for agent in range(AGENTS):
            rooms = (*before, agent)
            days = tuple(day for day, who in enumerate(rooms) if who == agent)
            on = going
            if len(rooms) - len(days) >= AGENTS - 1:
                tell = tells.setdefault(days, model.new_bool_var(f"tell {days}"))
                told, on = model.new_bool_var(""), model.new_bool_var("")
                model.add_implication(told, tell)
                model.add_implication(on, tell.negated())
                model.add(told + on == going)
                worth = 1 if len(set(rooms)) == AGENTS else -1
                earned.append(worth * AGENTS ** (DAYS - len(rooms)) * told)
            if len(rooms) < DAYS:
                grow(rooms, on)

    grow((), model.new_constant(1))
    model.maximize(sum(earned))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers, solver.parameters.random_seed = 1, SEED
    assert solver.solve(model) == cp_model.OPTIMAL
    found = {days for days, tell in tells.items() if solver.value(tell)}
    return lambda visits: TELL if tuple(day for day, _ in visits) in found else NOTHING


MOVES = np.array([[0, 1], [0, -1], [1, 0], [-1, 0], [0, 0]])
CELLS = np.array(list(itertools.product(range(3), repeat=2)))
MOVED = (CELLS[:, None] + MOVES) % 3 @ np.array([3, 1])
"""[cell, move] the cell after it; the field is a torus."""
GAMES, STEPS = 10, 9
"""Of an episode; a game's tenth step earns nothing."""


def coins(choose: Callable[[np.ndarray], np.ndarray]) -> float:
    """Return of both agents together in an episode of coin_game with shared rewards.

    Args:
        choose: from what each pair of moves earns, [red, blue, red coin, blue coin, move of red,
            move of blue], to what the pair that is taken earns: without the last two axes.
    """
    red, blue, red_coin, blue_coin = np.ogrid[:9, :9, :9, :9]
    red, blue, red_coin, blue_coin = (x[..., None, None] for x in (red, blue, red_coin, blue_coin))
    to_red = MOVED[red, np.arange(5)[:, None]]
    to_blue = MOVED[blue, np.arange(5)]
    own_red, own_blue = to_red == red_coin, to_blue == blue_coin
    taken_red, taken_blue = to_blue == red_coin, to_red == blue_coin
    # One's own coin is worth 1; the other's 1 to one and -2 to the other.
    now = own_red.astype(float) + own_blue - taken_red - taken_blue
    gone_red, gone_blue = own_red | taken_red, own_blue | taken_blue
    value = np.zeros((9, 9, 9, 9))
    for _ in range(STEPS):
        after = np.where(
            gone_red,
            np.where(
                gone_blue,
                value.mean((2, 3))[to_red, to_blue],
                value.mean(2)[to_red, to_blue, blue_coin],
            ),
            np.where(
                gone_blue,
                value.mean(3)[to_red, to_blue, red_coin],
                value[to_red, to_blue, red_coin, blue_coin],
            ),
        )
        value = choose(now + after)
    return GAMES * float(value.mean())


def own_coin(earned: np.ndarray) -> np.ndarray:
    """Each takes the shortest way to its own coin, whatever lies on it."""
    away = np.abs(CELLS[:, None] - CELLS)
    far = np.minimum(away, 3 - away).sum(-1)
    move = far[MOVED].argmin(1)  # [cell, coin]
    red, blue, red_coin, blue_coin = np.ogrid[:9, :9, :9, :9]
    return earned[red, blue, red_coin, blue_coin, move[red, red_coin], move[blue, blue_coin]]


def assigned(memory: None, view: View, keys: jax.Array) -> tuple[None, jax.Array]:
    """simple_spread: each flies to a landmark of its own, so that the ways add up to the least.

    Flies as the step is computed: a tenth of the speed is added to the place, then the speed is
    three quarters of what it was, and half a unit more where there is thrust.
    """
    seen = view.observation
    speed, landmarks = seen[..., :2], seen[..., 4:10]
    landmarks = landmarks.reshape(*seen.shape[:-1], 3, 2)  # [B, agent, landmark, 2] from the agent
    far = jnp.linalg.norm(landmarks, axis=-1)
    orders = jnp.array(list(itertools.permutations(range(3))))
    cost = far[:, jnp.arange(3), orders].sum(-1)  # [B, order]
    mine = orders[cost.argmin(-1)]
    target = jnp.take_along_axis(landmarks, mine[..., None, None], 2)[..., 0, :]
    thrust = jnp.array([[0.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [0.0, -1.0], [0.0, 1.0]])
    after = 0.75 * speed[..., None, :] + 0.5 * thrust  # [B, agent, action, 2]
    way = 0.1 * speed[..., None, :] + 0.4 * after  # until it has come to rest
    return None, jnp.linalg.norm(target[..., None, :] - way, axis=-1).argmin(-1)


def played(env: str, act: Act | None = None) -> float:
    """Mean return over agents of a policy, or of random play."""
    environment = make(env)

    def at_random(memory: None, view: View, keys: jax.Array) -> tuple[None, jax.Array]:
        return memory, random_action(environment, view, keys)

    keys = jax.random.split(jax.random.key(SEED), EPISODES)
    parts = [keys[i::PARTS] for i in range(PARTS)]
    run = jax.jit(lambda keys: play(environment, act or at_random, None, keys)[0])
    return float(np.concatenate([run(part) for part in parts]).mean())


def soups() -> float:
    """A bound on overcooked's cramped_room: it has one pot.

    Three onions go in, one in a step; 20 steps later a soup can be taken out. So soups are taken
    out at least 23 steps apart, the first one after 23 steps, and each is delivered a step later.
    """
    limit, onions, cooking = 400, 3, 20
    return 20.0 * ((limit - 1) // (onions + cooking))


def lines() -> list[dict[str, Any]]:
    """All lines, from random play up."""

    def line(env: str, what: str, value: float | Fraction, how: str) -> dict[str, Any]:
        row = {"env": env, "what": what, "return": float(value), "how": how}
        if isinstance(value, Fraction):
            row["exactly"] = str(value)
        print(json.dumps(row), flush=True)
        return row

    riddle, coin = "switch_riddle", "coin_game:shared_rewards=true"
    spread, kitchen = "MPE_simple_spread_v3", "overcooked"
    exact = "exact"
    simulated = f"mean of {EPISODES:,} episodes"
    return [
        line(riddle, "random", random_riddle(), exact),
        line(riddle, "tells on the last day", riddle_return(last_day), exact),
        line(riddle, "never touches the switch, at best", riddle_return(best_silent()), exact),
        line(riddle, "counts by the light", riddle_return(counting), exact),
        line(riddle, "knows all", all_have_been(DAYS), exact),
        line(coin, "random", round(coins(lambda earned: earned.mean((-2, -1))), 12), exact),
        line(coin, "each to its own coin", coins(own_coin), exact),
        line(coin, "the best", coins(lambda earned: earned.max((-2, -1))), exact),
        line(spread, "random", played(spread), simulated),
        line(spread, "each to a landmark of its own", played(spread, assigned), simulated),
        line(kitchen, "random", played(kitchen), simulated),
        line(kitchen, "one pot allows at most", soups(), "bound"),
    ]


def main() -> None:
    libraries = {name: version(name) for name in ("jax", "jaxmarl")}
    record(
        "marl_lines",
        "python benchmarks/experiments/marl_lines.py",
        versions=versions() | libraries,
        seeds=[SEED],
        rows=lines(),
    )


if __name__ == "__main__":
    main()
