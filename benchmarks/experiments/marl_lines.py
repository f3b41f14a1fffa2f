"""Reference returns: random play, simple policies written by hand, and optima or upper bounds.

    python benchmarks/experiments/marl_lines.py

switch_riddle and coin_game are computed exactly: over every sequence of agents in the room, and by
dynamic programming over all states. The policy of simple_spread, and random play there and in
overcooked, are simulated; for overcooked the best return is an upper bound.
"""

import itertools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ortools.sat.python import cp_model

from benchmarks.experiment import Rows, run
from gradweave.marl.evaluation import Act, play, random_action
from gradweave.marl.games.environment import View
from gradweave.marl.games.environments import make

EPISODES, PARTS, SEED = 1024, 16, 0
AGENTS, DAYS = 3, 6
NOTHING, SWITCH, TELL = range(3)
Visits = tuple[tuple[int, int], ...]
Riddle = Callable[[Visits], int]
"""From an agent's visits so far, as (day, light), the present one last, to its action."""


def riddle_return(policy: Riddle) -> Fraction:
    """Mean return over all sequences of agents in the room, all following one policy."""
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
    """The light is on after one agent has been in the room, and off again after two."""
    day, light = visits[-1]
    if day == 0:
        return SWITCH
    if len(visits) > 1:
        return NOTHING
    return SWITCH if light else TELL


def random_riddle() -> Fraction:
    """Mean return of uniformly random actions."""
    total, ongoing = Fraction(0), Fraction(1)
    for day in range(1, DAYS + 1):
        telling = ongoing / 3
        total += telling * (2 * all_have_been(day) - 1)
        ongoing -= telling
    return total


def all_have_been(days: int) -> Fraction:
    """Probability that all have visited after some days; after all days, the optimal return."""
    sequences = itertools.product(range(AGENTS), repeat=days)
    return Fraction(sum(len(set(rooms)) == AGENTS for rooms in sequences), AGENTS**days)


def best_silent() -> Riddle:
    """The best common policy of those that never touch the switch.

    Found and proved by a solver: after which of its own visits an agent should tell. Telling before
    the others have had enough days to visit can only lose, and is excluded.
    """
    model = cp_model.CpModel()
    tells: dict[tuple[int, ...], Any] = {}
    terms = []

    def grow(before: tuple[int, ...], ongoing: Any) -> None:
        for agent in range(AGENTS):
            rooms = (*before, agent)
            days = tuple(day for day, who in enumerate(rooms) if who == agent)
            on = ongoing
            if len(rooms) - len(days) >= AGENTS - 1:
                tell = tells.setdefault(days, model.new_bool_var(f"tell {days}"))
                telling, on = model.new_bool_var(""), model.new_bool_var("")
                model.add_implication(telling, tell)
                model.add_implication(on, tell.negated())
                model.add(telling + on == ongoing)
                worth = 1 if len(set(rooms)) == AGENTS else -1
                terms.append(worth * AGENTS ** (DAYS - len(rooms)) * telling)
            if len(rooms) < DAYS:
                grow(rooms, on)

    grow((), model.new_constant(1))
    model.maximize(sum(terms))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers, solver.parameters.random_seed = 1, SEED
    assert solver.solve(model) == cp_model.OPTIMAL
    chosen = {days for days, tell in tells.items() if solver.value(tell)}
    return lambda visits: TELL if tuple(day for day, _ in visits) in chosen else NOTHING


MOVES = np.array([[0, 1], [0, -1], [1, 0], [-1, 0], [0, 0]])
CELLS = np.array(list(itertools.product(range(3), repeat=2)))
MOVED = (CELLS[:, None] + MOVES) % 3 @ np.array([3, 1])
"""[cell, move] the next cell; the grid is a torus."""
GAMES, STEPS = 10, 9
"""Of an episode; the tenth step of a game earns nothing."""


def coins(choose: Callable[[np.ndarray], np.ndarray]) -> float:
    """Return of both agents together in an episode of coin_game with shared rewards.

    Args:
        choose: from the value of each pair of moves, [red, blue, red coin, blue coin, move of red,
            move of blue], to that of the chosen pair, without the last two axes.
    """
    red, blue, red_coin, blue_coin = np.ogrid[:9, :9, :9, :9]
    red, blue, red_coin, blue_coin = (x[..., None, None] for x in (red, blue, red_coin, blue_coin))
    to_red = MOVED[red, np.arange(5)[:, None]]
    to_blue = MOVED[blue, np.arange(5)]
    own_red, own_blue = to_red == red_coin, to_blue == blue_coin
    taken_red, taken_blue = to_blue == red_coin, to_red == blue_coin
    # A coin is worth 1 to its taker; if it is of the other's colour, -2 to the other.
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


def own_coin(values: np.ndarray) -> np.ndarray:
    """Each takes the shortest path to its own coin, whatever lies on it."""
    away = np.abs(CELLS[:, None] - CELLS)
    far = np.minimum(away, 3 - away).sum(-1)
    move = far[MOVED].argmin(1)  # [cell, coin]
    red, blue, red_coin, blue_coin = np.ogrid[:9, :9, :9, :9]
    return values[red, blue, red_coin, blue_coin, move[red, red_coin], move[blue, blue_coin]]


def assigned(memory: None, view: View, keys: jax.Array) -> tuple[None, jax.Array]:
    """simple_spread: each flies to a landmark of its own, in the shortest assignment.

    Follows the game's dynamics: a tenth of the velocity is added to the position, then the velocity
    is reduced to three quarters, plus half a unit of thrust.
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
    stop = 0.1 * speed[..., None, :] + 0.4 * after  # displacement until at rest
    return None, jnp.linalg.norm(target[..., None, :] - stop, axis=-1).argmin(-1)


def played(env: str, act: Act | None = None) -> float:
    """Mean return of a policy over agents, or of random play."""
    environment = make(env)

    def at_random(memory: None, view: View, keys: jax.Array) -> tuple[None, jax.Array]:
        return memory, random_action(environment, view, keys)

    keys = jax.random.split(jax.random.key(SEED), EPISODES)
    parts = [keys[i::PARTS] for i in range(PARTS)]
    run = jax.jit(lambda keys: play(environment, act or at_random, None, keys)[0])
    return float(np.concatenate([run(part) for part in parts]).mean())


def soups() -> float:
    """An upper bound for overcooked's cramped_room, which has one pot.

    Three onions go in, one per step; 20 steps later the soup can be taken out. Soups are therefore
    at least 23 steps apart, the first after 23 steps, and each is delivered a step later.
    """
    limit, onions, cooking = 400, 3, 20
    return 20.0 * ((limit - 1) // (onions + cooking))


def lines() -> list[dict[str, Any]]:
    """All rows, from random play up."""

    def line(env: str, what: str, value: float | Fraction, how: str) -> dict[str, Any]:
        row = {"env": env, "what": what, "return": float(value), "how": how}
        if isinstance(value, Fraction):
            row["exactly"] = str(value)
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
        line(coin, "random", round(coins(lambda values: values.mean((-2, -1))), 12), exact),
        line(coin, "each to its own coin", coins(own_coin), exact),
        line(coin, "the best", coins(lambda values: values.max((-2, -1))), exact),
        line(spread, "random", played(spread), simulated),
        line(spread, "each to a landmark of its own", played(spread, assigned), simulated),
        line(kitchen, "random", played(kitchen), simulated),
        line(kitchen, "one pot allows at most", soups(), "bound"),
    ]


if __name__ == "__main__":
    run(__doc__, Rows([{}], lines), libraries=("jax", "jaxmarl"), seeds=[SEED])
