"""An episode as an animated GIF."""

import dataclasses
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from gradweave.common import lazy
from gradweave.common.atomic import atomic_write
from gradweave.marl.games.environment import Environment
from gradweave.marl.games.parallel import game_errors
from gradweave.marl.learners.learner import Learner
from gradweave.marl.learners.randomness import split_each

FRAME_MS = 150
MOST_FRAMES = 400


@dataclasses.dataclass(frozen=True)
class Frame:
    """One step of an episode, as drawn."""

    state: Any
    """State of the game before the action."""
    observation: NDArray[np.float32]
    """[A, O] observations."""
    action: NDArray[Any]
    """[A] or [A, U] actions."""
    reward: NDArray[np.float32]
    """[A] rewards for the action."""
    returns: NDArray[np.float32]
    """[A] returns before the action."""


def episode(
    learner: Learner, environment: Environment, parameters: Any, *, seed: int, greedy: bool
) -> list[Frame]:
    """Plays one episode of at most `MOST_FRAMES` steps.

    Args:
        learner: the learner whose policy plays.
        environment: the environment.
        parameters: parameters of one seed.
        seed: seed of the episode.
        greedy: whether the policy takes its best actions instead of sampling.
    """
    keys = jax.random.split(jax.random.key(seed), 1)

    @jax.jit
    def step(games: Any, view: Any, memory: Any, keys: Any) -> Any:
        keys, drawing, playing = split_each(keys, 3)
        memory, action = learner.act(parameters, memory, view, drawing, greedy=greedy)
        after, seen, outcome = environment.steps(playing, games, action)
        return (after, seen, memory, keys), action, outcome

    games, view = jax.jit(jax.vmap(environment.reset))(keys)
    now = games, view, learner.memory(parameters, 1), keys
    frames: list[Frame] = []
    returns = np.zeros(environment.num_agents, np.float32)
    for _ in range(MOST_FRAMES):
        state, seen = jax.tree.map(lambda x: np.asarray(x[0]), now[0]), now[1].observation[0]
        with game_errors():
            now, action, outcome = step(*now)
            reward = np.asarray(outcome.reward[0])
        frames.append(Frame(state, np.asarray(seen), np.asarray(action[0]), reward, returns))
        returns = returns + reward
        if outcome.done[0]:
            break
    return frames


def save_gif(environment: Environment, frames: list[Frame], path: Path) -> None:
    """Draws an episode.

    Args:
        environment: the environment of the episode.
        frames: the steps of the episode.
        path: path of the file, ending in .gif.

    Raises:
        MissingExtraError: Matplotlib or Pillow is missing.
        FileError: the file cannot be written.
    """
    lazy.require("a picture", "matplotlib", "PIL", extra="plot")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image as Pillow

    paint = PAINTERS.get(environment.family, _paint_arrays)
    images = []
    for number, frame in enumerate(frames):
        figure = Figure(figsize=(5.2, 5.4), dpi=80)
        canvas = FigureCanvasAgg(figure)
        axes = figure.add_axes((0.06, 0.04, 0.88, 0.84))
        paint(environment, frame, axes)
        earned = "  ".join(f"{value:g}" for value in np.round(frame.returns, 2))
        figure.text(0.06, 0.945, environment.id, fontsize=11, weight="bold")
        figure.text(0.06, 0.9, f"step {number + 1} of {len(frames)} · so far {earned}", fontsize=9)
        canvas.draw()
        images.append(Pillow.fromarray(np.asarray(canvas.buffer_rgba())[..., :3]))
    pictures = [image.quantize(64) for image in images]
    file = io.BytesIO()
    pictures[0].save(
        file,
        "GIF",
        save_all=True,
        append_images=pictures[1:],
        duration=[FRAME_MS] * (len(pictures) - 1) + [6 * FRAME_MS],
        loop=0,
    )
    atomic_write(path, file.getvalue())


def _paint_plane(environment: Environment, frame: Frame, axes: Any) -> None:
    """MPE: agents and landmarks as discs, a ring around the goal, and messages."""
    from matplotlib.patches import Circle

    game: Any = environment.game
    goals = np.atleast_1d([] if frame.state.goal is None else frame.state.goal)
    for place in reversed(range(game.num_entities)):
        colour = np.asarray(game.colour[place], float).ravel()[:3] / 255
        if len(colour) < 3:  # push gives landmarks no RGB colours
            colour = np.full(3, 0.25)
        solid = place < game.num_agents
        centre, radius = frame.state.p_pos[place], float(game.rad[place])
        axes.add_patch(Circle(centre, radius, color=colour, alpha=0.9 if solid else 0.5))
        if solid:
            message = frame.state.c[place]
            label = f"{place} says {int(message.argmax())}" if message.any() else str(place)
            axes.annotate(label, centre, ha="center", va="center", fontsize=8)
        elif place - game.num_agents in goals:
            axes.add_patch(Circle(centre, radius + 0.06, fill=False, color="black"))
    axes.set(xlim=(-1.6, 1.6), ylim=(-1.6, 1.6), aspect="equal", xticks=[], yticks=[])


def _paint_overcooked(environment: Environment, frame: Frame, axes: Any) -> None:
    from jaxmarl.viz.overcooked_visualizer import OvercookedVisualizer

    game: Any = environment.game
    edge = game.agent_view_size - 2
    grid = np.asarray(frame.state.maze_map[edge:-edge, edge:-edge, :])
    picture = OvercookedVisualizer._render_grid(
        grid,
        highlight_mask=None,
        agent_dir_idx=frame.state.agent_dir_idx,
        agent_inv=frame.state.agent_inv,
    )
    axes.imshow(picture)
    axes.axis("off")


_INGREDIENTS = ("gold", "darkgreen", "purple", "cyan", "red", "orange", "blue", "pink")


def _paint_overcooked_v2(environment: Environment, frame: Frame, axes: Any) -> None:
    """Counters, pots and piles; cooks as arrows. JaxMARL's picture would need imageio."""
    from jaxmarl.environments.overcooked_v2.common import StaticObject as Thing
    from matplotlib.colors import to_rgb

    state = frame.state
    colours: dict[int, str] = {
        Thing.EMPTY: "black",
        Thing.WALL: "grey",
        Thing.GOAL: "limegreen",
        Thing.POT: "dimgrey",
        Thing.RECIPE_INDICATOR: "sienna",
        Thing.BUTTON_RECIPE_INDICATOR: "sienna",
        Thing.PLATE_PILE: "lightgrey",
    }
    grid = state.grid[..., 0]
    axes.imshow([[to_rgb(colours.get(int(kind), "grey")) for kind in row] for row in grid])
    for (row, column), kind in np.ndenumerate(grid):
        at = column, row
        if kind >= Thing.INGREDIENT_PILE_BASE:
            axes.scatter(*at, s=260, color=_INGREDIENTS[kind - Thing.INGREDIENT_PILE_BASE])
        elif kind == Thing.POT:
            label = f"pot {state.grid[row, column, 2]}"
            axes.annotate(label, (column, row - 0.3), ha="center", va="center", fontsize=7)
        shows_recipe = kind == Thing.RECIPE_INDICATOR or (
            kind == Thing.BUTTON_RECIPE_INDICATOR and state.grid[row, column, 2] > 0
        )
        _paint_food(axes, at, int(state.recipe if shows_recipe else state.grid[row, column, 1]))
    ways = ((0.0, -1.0), (0.0, 1.0), (1.0, 0.0), (-1.0, 0.0))  # (x, y) by direction
    cooks = state.agents
    for cook, way in enumerate(cooks.dir):
        x, y = float(cooks.pos.x[cook]), float(cooks.pos.y[cook])
        right, down = (0.4 * part for part in ways[int(way)])
        arrow = {"width": 9, "headwidth": 22, "color": f"C{cook}"}
        axes.annotate("", (x + right, y + down), (x - right, y - down), arrowprops=arrow)
        _paint_food(axes, (x, y), int(cooks.inventory[cook]))
    axes.axis("off")


def _paint_food(axes: Any, at: tuple[float, float], bits: int) -> None:
    """Food from overcooked_v2's bits: plate, cooked, and two bits per ingredient's count."""
    if bits & 1:
        axes.scatter(*at, s=150, color="white", edgecolors="red" if bits & 2 else "black", zorder=4)
    counts = [(bits >> 2 * kind + 2) & 3 for kind in range(len(_INGREDIENTS))]
    pieces = [kind for kind, count in enumerate(counts) for _ in range(count)]
    for number, kind in enumerate(pieces):
        aside = 0.14 * (number - (len(pieces) - 1) / 2)
        axes.scatter(at[0] + aside, at[1], s=30, color=_INGREDIENTS[kind], zorder=5)


def _paint_robots(environment: Environment, frame: Frame, axes: Any) -> None:
    """jaxnav: walls, robots with their headings, and goals as stars."""
    from matplotlib.patches import Circle

    game: Any = environment.game
    state = frame.state
    height, width = state.map_data.shape
    axes.imshow(state.map_data, cmap="binary", origin="lower", extent=(0, width, 0, height))
    for robot, (place, goal, angle) in enumerate(
        zip(state.pos, state.goal, state.theta, strict=True)
    ):
        colour = "grey" if state.move_term[robot] else f"C{robot % 10}"
        axes.add_patch(Circle(place, game.rad, color=colour))
        front = place + game.rad * np.array([np.cos(angle), np.sin(angle)])
        axes.plot([place[0], front[0]], [place[1], front[1]], color="black")
        axes.scatter(*goal, marker="*", s=140, color=f"C{robot % 10}", edgecolors="black")
        axes.annotate(str(robot), place, ha="center", va="center", fontsize=7)
    axes.axis("off")


def _paint_storm(environment: Environment, frame: Frame, axes: Any) -> None:
    """Coins of both kinds, players as arrows. JaxMARL's picture fails on NumPy 2."""
    from jaxmarl.environments.storm.storm_env import Items

    state = frame.state
    colours = {Items.cooperation_coin: "tab:green", Items.defection_coin: "tab:red"}
    for item, colour in colours.items():
        for row, column in np.argwhere(state.grid == item):
            axes.scatter(column, row, s=110, color=colour)
    away = ((0.0, 1.0), (1.0, 0.0), (0.0, -1.0), (-1.0, 0.0))  # (row, column) by direction
    for player, (row, column, direction) in enumerate(state.agent_positions):
        down, right = away[int(direction)]
        axes.annotate(
            "",
            (column + 0.45 * right, row + 0.45 * down),
            (column - 0.45 * right, row - 0.45 * down),
            arrowprops={"width": 7, "headwidth": 18, "color": f"C{player}"},
        )
        inventory = state.agent_inventories[player].astype(int).tolist()
        axes.annotate(f"{player} {inventory}", (column, row), fontsize=8, ha="center", va="center")
    _draw_cells(axes, len(state.grid), alpha=0.4)


def _paint_coins(environment: Environment, frame: Frame, axes: Any) -> None:
    """Large discs for players and small discs for coins, in their colours."""
    state = frame.state
    things = (
        (state.red_pos, "tab:red", 0.32, -0.12, "0"),
        (state.blue_pos, "tab:blue", 0.32, 0.12, "1"),
        (state.red_coin_pos, "darkred", 0.12, -0.25, ""),
        (state.blue_coin_pos, "navy", 0.12, 0.25, ""),
    )
    from matplotlib.patches import Circle

    for (row, column), colour, size, aside, text in things:
        centre = float(column) + aside, float(row)
        axes.add_patch(Circle(centre, size, color=colour, alpha=0.75))
        axes.annotate(text, centre, ha="center", va="center", color="white")
    _draw_cells(axes, 3, alpha=1.0)


def _draw_cells(axes: Any, side: int, alpha: float) -> None:
    """The lines between the cells of a square grid."""
    between = np.arange(side - 1) + 0.5
    axes.set(xlim=(-0.5, side - 0.5), ylim=(-0.5, side - 0.5), aspect="equal")
    axes.set_xticks(between, labels=[])
    axes.set_yticks(between, labels=[])
    axes.grid(alpha=alpha)


def _paint_battle(environment: Environment, frame: Frame, axes: Any) -> None:
    """SMAX: units of both sides, more transparent as their health falls."""
    game: Any = environment.game
    state = getattr(frame.state, "state", frame.state)
    full = np.asarray(game.unit_type_health)[state.unit_types]
    for unit, place in enumerate(state.unit_positions):
        if state.unit_alive[unit]:
            share = float(np.clip(state.unit_health[unit] / full[unit], 0.1, 1.0))
            colour = "tab:blue" if unit < game.num_allies else "tab:red"
            axes.scatter(*place, s=140, color=colour, alpha=share, edgecolors="black")
            axes.annotate(str(unit), place, ha="center", va="center", fontsize=7)
    axes.set(xlim=(0, game.map_width), ylim=(0, game.map_height), aspect="equal")


def _paint_world(environment: Environment, frame: Frame, axes: Any) -> None:
    """Walls, places of events, agents, and the state of the team's machine."""
    game: Any = environment.game
    world = game.world
    rows, columns = world.shape
    shades = np.ones((rows * columns, 3))
    shades[list(world.walls)] = 0.35
    for cells in world.marks.values():
        shades[list(cells)] = (0.93, 0.9, 0.75)
    axes.imshow(shades.reshape(rows, columns, 3))
    for mark, cells in world.marks.items():
        for cell in cells:
            row, column = divmod(cell, columns)
            axes.annotate(mark, (column, row), ha="center", va="center", fontsize=8, color="grey")
    state = getattr(frame.state, "game", frame.state)  # unwraps a game with reward machines
    for agent, cell in enumerate(state.cells):
        row, column = divmod(int(cell), columns)
        aside = 0.1 * (agent - (len(state.cells) - 1) / 2)
        axes.scatter(column + aside, row + aside, s=120, color=f"C{agent % 10}", edgecolors="black")
    progress = world.task.machine.states[int(state.progress)]
    axes.set(xticks=[], yticks=[], xlabel=f"the team: {progress}")


def _paint_jobs(environment: Environment, frame: Frame, axes: Any) -> None:
    """Job scheduling: the resource's cell, and agents as in `_paint_agents`."""
    row, column = frame.state.world.resource
    axes.scatter(column, row, s=420, marker="s", color="gold")
    _paint_agents(frame, axes, side=5)


def _paint_plant(environment: Environment, frame: Frame, axes: Any) -> None:
    """The manufacturing plant: gems in the colours of their kinds."""
    state = frame.state.world
    for (row, column), kind in zip(state.gem, state.kind, strict=True):
        colour = ("gold", "tab:cyan", "tab:pink")[int(kind)]
        axes.scatter(column, row, s=160, marker="D", color=colour)
    _paint_agents(frame, axes, side=8)


def _paint_agents(frame: Frame, axes: Any, side: int) -> None:
    """Agents on cells; an agent's disc is fuller, the closer its return is to the highest."""
    for agent, (row, column) in enumerate(frame.state.world.place):
        _paint_agent(axes, (float(column), float(row)), 0.32, agent, _share(frame)[agent])
    _draw_cells(axes, side, alpha=0.4)


def _paint_matthew(environment: Environment, frame: Frame, axes: Any) -> None:
    """The Matthew effect: ghosts as triangles, pac-men in proportion to their sizes."""
    state = frame.state.world
    axes.scatter(*state.ghost.T, s=60, marker="^", color="black", zorder=4)
    for agent, ((x, y), size) in enumerate(zip(state.place, state.size, strict=True)):
        _paint_agent(axes, (float(x), float(y)), float(size), agent, _share(frame)[agent])
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xticks=[], yticks=[])


def _share(frame: Frame) -> NDArray[Any]:
    """[A] the agents' returns as shares of the highest."""
    return np.maximum(frame.returns, 0.0) / max(float(frame.returns.max()), 1e-9)


def _paint_agent(
    axes: Any, centre: tuple[float, float], radius: float, agent: int, share: float
) -> None:
    """A ring, filled from its centre up to a share."""
    from matplotlib.patches import Circle

    colour = f"C{agent % 10}"
    axes.add_patch(Circle(centre, radius, fill=False, color=colour, linewidth=2))
    axes.add_patch(Circle(centre, radius * float(share) ** 0.5, color=colour, alpha=0.6))
    axes.annotate(str(agent), centre, ha="center", va="center", fontsize=8)


def _paint_arrays(environment: Environment, frame: Frame, axes: Any) -> None:
    """Other games: each agent's observation as a tile, with its action and its reward."""
    seen = frame.observation
    side = int(np.ceil(seen.shape[1] ** 0.5))
    filled = np.zeros((len(seen), side * side), np.float32)
    filled[:, : seen.shape[1]] = np.clip(seen, -1.0, 1.0)
    tiles = [np.pad(row.reshape(side, side), 1, constant_values=np.nan) for row in filled]
    axes.imshow(np.concatenate(tiles, axis=1), cmap="coolwarm", vmin=-1, vmax=1)
    for agent, name in enumerate(environment.agents):
        what = np.round(frame.action[agent], 1).tolist()
        label = f"{name.replace('_', ' ')}\naction {what}\nreward {frame.reward[agent]:.2g}"
        axes.annotate(
            label,
            ((side + 2) * (agent + 0.5), -0.6),
            ha="center",
            va="bottom",
            fontsize=7,
            annotation_clip=False,
        )
    axes.axis("off")


Painter = Callable[[Environment, Frame, Any], None]
PAINTERS: dict[str, Painter] = {
    "spread": _paint_plane,
    "mpe": _paint_plane,
    "push": _paint_plane,
    "crypto": _paint_plane,
    "simple": _paint_plane,
    "speaker_listener": _paint_plane,
    "reference": _paint_plane,
    "facmac": _paint_plane,
    "facmac_of_a_size": _paint_plane,
    "overcooked": _paint_overcooked,
    "overcooked_v2": _paint_overcooked_v2,
    "jaxnav": _paint_robots,
    "storm": _paint_storm,
    "coin_game": _paint_coins,
    "smax": _paint_battle,
    "worlds": _paint_world,
    "job_scheduling": _paint_jobs,
    "matthew_effect": _paint_matthew,
    "manufacturing_plant": _paint_plant,
}
