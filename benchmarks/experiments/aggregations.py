"""Every aggregation of `gradweave train` on two games: return against steps, bytes and seconds.

    python benchmarks/experiments/aggregations.py [--games GAME] [--only NAME ...] [--resume]

Eight workers learn by IPPO, five seeds side by side. Harvest is the game of the guide own-games.md,
spread is simple_spread. Settings are the same for all aggregations, but for the learning rate: that
is searched for each, among TIMES the algorithm's own and beyond while the best is at an end, by
SEARCHED other seeds, whose returns at the end decide. One training feeds all axes: returns are
those of the episodes that ended while learning, and steps, bytes and seconds are counted for the
update in which they ended. The four exact aggregations give every worker the same mean, so that one
training, by `mean`, stands for them; they differ in bytes and seconds.

Workers of all but the asynchronous server compute in one program on one device, by `jax.vmap` over
the axis that `gradweave train` has devices on: the same learner and the same messages. The server
is that of `asynchronous.simulate_training`.

Bytes are what workers count as sent. Seconds are computed: an update takes a worker COMPUTE_S, and
then come its messages on one of two networks. Exact means take what the event model says of their
schedules; gossip and NoLoCo what a step's messages take that all leave at once by shortest routes;
DiLoCo an all-reduce by the best schedule, less the steps for which it may be under way. To and from
the asynchronous server all messages of all workers count as leaving at once, more than they take.
With a slow worker its computing takes FACTOR times as long, and whoever averages over all workers,
or over neighbours in every step, waits for it.

A run has reached the level when the mean of its last SMOOTH updates has: what exact means reach at
LEVEL of the way from their first return to their last. Intervals are Student's t over the seeds.
"""

import dataclasses
import functools
import itertools
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy import stats

import gradweave as gw
from benchmarks.command_line import parser_of
from benchmarks.pictures import Picture
from benchmarks.record import record, show
from benchmarks.unfinished import Unfinished
from gradweave.aggregate import exchange_seconds, outer_settings
from gradweave.aggregate.aggregation import resolve
from gradweave.aggregate.asynchronous import UpdateReport, simulate_training
from gradweave.aggregate.messages import messages_sent
from gradweave.aggregate.spec import AsynchronousSpec, GossipSpec, LocalSpec, parse
from gradweave.execute.axis import AXIS
from gradweave.marl import Config, make
from gradweave.marl.asynchronous.training import server_task
from gradweave.marl.learners.algorithms import build, settings
from gradweave.marl.learners.learner import sent_bytes
from gradweave.marl.program import seed_keys
from gradweave.processes.jax_start import start_jax
from gradweave.report.curves import Curve, draw_curves
from tests.docs.blocks import blocks_of

NAME = "aggregations"
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "own-games.md"
WORKERS, SEEDS = 8, 5
TIMES, SEARCHED, FIRST = tuple(8.0 ** (half / 2) for half in range(-1, 4)), 2, 100
"""Rates that are searched, of the algorithm's own; by how many seeds, from which one on."""
LIBRARIES = ("jax", "jaxmarl", "optax")
SMOOTH, LAST, LEVEL = 5, 0.1, 0.8
"""Updates of a mean; share of the updates that are the end; share of the way up."""
COMPUTE_S, SLOW, FACTOR = 0.01, 7, 5.0
"""Of a worker's update; the slow worker, and how many times as long it takes."""


class Game(NamedTuple):
    """A game, and how it is learned."""

    env: str
    family: str
    steps: int
    settings: dict[str, Any]


LEARNED = {"environments": 32, "epochs": 2, "minibatches": 4}
STEPS = 8
"""Of the optimizer, in an update."""
GAMES = {
    "harvest": Game("harvest:Harvest", "own", 60_000, LEARNED | {"rollout": 32}),
    "spread": Game("MPE_simple_spread_v3", "spread", 400_000, LEARNED | {"rollout": 50}),
}
OUTER = "OUTER"
"""Stands for the outer settings of DiLoCo, which depend on the number of averages."""
_CHOSEN = "leaf_spine:leaves=4,spines=2,servers_per_leaf=2,oversubscription=4"
TOGETHER = {
    "exact": "mean",
    "D-PSGD, ring": "d_psgd",
    "D-PSGD, chosen pairs": (
        f"d_psgd:mixing=fast_matchings,message_bytes=50e3,distinct=4,network={_CHOSEN}"
    ),
    "DCD, 4 bits": "dcd_psgd:bits=4",
    "CHOCO, 4 bits": "choco_sgd:bits=4",
    "DiLoCo": f"diloco:local_steps={STEPS},{OUTER}",
    "DiLoCo, 4 bits": f"diloco:local_steps={STEPS},{OUTER},bits=4",
    "streaming DiLoCo": f"streaming_diloco:local_steps={STEPS},fragments=4,delay=1,{OUTER}",
    "NoLoCo": f"noloco:local_steps={STEPS}",
}
_SLOW = f"step_s={COMPUTE_S},slow={SLOW},factor={FACTOR:g}"
BY_SERVER = {
    "server, sync": f"asynchronous:consistency=sync,step_s={COMPUTE_S}",
    "server, async": f"asynchronous:consistency=async,step_s={COMPUTE_S}",
    "server, ssp(3), one slow": f"asynchronous:consistency=ssp,bound=3,catch_up=true,{_SLOW}",
    "server, async, one slow": f"asynchronous:consistency=async,{_SLOW}",
}
EXACT = {
    "ring": lambda: gw.schedulers.Ring(),
    "parameter server": lambda: gw.schedulers.CentralParameterServer(),
    "schedule": lambda: None,
}
"""How exact means are computed; None: the best schedule found in three seconds."""
RACKS, SITES = "racks", "sites"
SHOWN = "harvest"
"""The game of the picture."""


@functools.cache
def network(name: str) -> gw.topology.Topology:
    """Leaf–spine 4:1 of 1 Gbit/s with 10 µs a link, or a ring of 100 Mbit/s with 10 ms."""
    if name == RACKS:
        link = gw.topology.Link(bandwidth_bytes_per_s=125e6, latency_s=10e-6)
        return gw.topology.leaf_spine(4, 2, 2, 4, link=link)
    return gw.topology.ring(WORKERS, link=gw.topology.Link(12.5e6, 10e-3))


def together(game: Game, name: str) -> str:
    """The aggregation; DiLoCo averages once an update."""
    updates = config(game, "mean").updates
    outer = ",".join(f"{key}={value}" for key, value in outer_settings(updates).items())
    return TOGETHER[name].replace(OUTER, outer)


def config(
    game: Game, aggregation: str, times: float = 1.0, seed: int = 0, seeds: int = SEEDS
) -> Config:
    """A training, as `gradweave train` would be asked for it, its rate so many times as high."""
    made: Any = settings("ippo", game.family, game.settings)
    made = dataclasses.replace(made, learning_rate=times * made.learning_rate)
    return Config(
        *(game.env, "ippo", made, game.steps),
        aggregation=aggregation,
        devices=WORKERS,
        seed=seed,
        seeds=seeds,
    )


class Chosen(NamedTuple):
    """State of the aggregation that is used, and of the others beside it."""

    sent_bytes: jax.Array
    states: tuple[Any, ...]
    """Leaves of each."""


def one_of(made: list[optax.GradientTransformation], which: Any) -> optax.GradientTransformation:
    """The aggregation of a number that is not known when the program is compiled."""
    shapes: list[Any] = []

    def init(params: Any) -> Chosen:
        states = [one.init(params) for one in made]
        shapes[:] = [jax.tree.structure(state) for state in states]
        return Chosen(jnp.zeros(()), tuple(tuple(jax.tree.leaves(state)) for state in states))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Chosen]:
        def by(number: int) -> Any:
            own = jax.tree.unflatten(shapes[number], state.states[number])
            change, own = made[number].update(updates, own, params)
            states = list(state.states)
            states[number] = tuple(jax.tree.leaves(own))
            sent = sent_bytes(own)["sent_bytes"]
            return change, Chosen(sent, tuple(states))

        return jax.lax.switch(which, [functools.partial(by, i) for i in range(len(made))])

    return optax.GradientTransformation(init, update)


class Together:
    """The program of a game's workers, by any of the aggregations, compiled once for all."""

    def __init__(self, game: Game, seed: int, seeds: int) -> None:
        self.game, self.config = game, config(game, "mean")
        self.texts = list(dict.fromkeys(together(game, name) for name in TOGETHER))
        environment = make(game.env)
        each = [resolve(parse(text), WORKERS, same_data=True) for text in self.texts]

        def learner(which: Any, times: Any) -> Any:
            def aggregate(optimizer: Any) -> Any:
                scaled = optax.chain(optimizer, optax.scale(times))
                return one_of([one(scaled) for one in each], which)

            return build(self.config, environment, aggregate)

        def start(which: Any, times: Any) -> Any:
            made, keys = learner(which, times), seed_keys(np.int32(seed), seeds)

            def worker(number: Any) -> Any:
                return jax.vmap(lambda key: made.init(key, number * made.games))(keys)

            return jax.vmap(worker, axis_name=AXIS)(jnp.arange(WORKERS))

        def update(state: Any, which: Any, times: Any) -> Any:
            made = learner(which, times)
            made.optimizer.init(jax.tree.map(lambda x: x[0, 0], state.parameters))
            state, metrics = jax.vmap(jax.vmap(made.update), axis_name=AXIS)(state)
            returns, episodes = metrics.returns.mean(-1).sum(0), metrics.episodes.sum(0)
            sent = metrics.figures["sent_bytes"].mean(1) * STEPS
            return state, (returns / episodes, sent)

        quick = {"xla_backend_optimization_level": 0}
        self.start = jax.jit(start, compiler_options=quick)
        self.update = jax.jit(update, donate_argnums=0)

    def run(self, name: str, times: float) -> dict[str, Any]:
        """Trains at so many times the rate."""
        aggregation = together(self.game, name)
        which = jnp.int32(self.texts.index(aggregation)), jnp.float32(times)
        state, made = self.start(*which), []
        for _ in range(self.config.updates):
            state, told = self.update(state, *which)
            made.append(jax.device_get(told))
        sent = np.array([one[1] for one in made], np.float64).mean(0)
        leaves = jax.tree.leaves(state.parameters)
        return {
            "aggregation": aggregation,
            "parameters": sum(leaf[0, 0].size for leaf in leaves),
            "steps": [self.config.settings.steps * (i + 1) for i in range(len(made))],
            "return": [[round(float(x), 4) for x in one[0]] for one in made],
            "busiest": float(sent.max()),
            "all": float(sent.sum()),
            "seconds": None,
        }


def by_server(
    game: Game, name: str, times: float, parameters: int, seed: int, seeds: int
) -> dict[str, Any]:
    """Trains by the asynchronous server on its simulator."""
    of = config(game, BY_SERVER[name], times, seed, seeds)
    spec = parse(of.aggregation)
    assert isinstance(spec, AsynchronousSpec)
    told: list[Any] = []
    lines: list[tuple[float, list[float]]] = []

    def report(made: UpdateReport) -> None:
        told.extend(one.metrics for one in made.aux)
        if len(told) < WORKERS:
            return
        episodes = sum(one.episodes for one in told)
        returns = sum(one.returns.mean(-1) for one in told)
        mean = returns / np.where(episodes, episodes, np.nan)
        lines.append((made.seconds, [round(float(x), 4) for x in mean]))
        told.clear()

    overhead_s = server_seconds(RACKS, parameters)
    simulate_training(server_task(of, spec), overhead_s=overhead_s, report=report)
    pulls = 2 if spec.correction else 1
    return {
        "aggregation": of.aggregation,
        "parameters": parameters,
        "steps": [of.settings.steps * (i + 1) for i in range(len(lines))],
        "return": [line[1] for line in lines],
        "busiest": 4.0 * parameters * pulls * WORKERS,
        "all": 4.0 * parameters * (pulls + 1) * WORKERS,
        "seconds": [line[0] for line in lines],
    }


@functools.cache
def exact_schedule(on: str, how: str) -> gw.Schedule:
    """The all-reduce of an exact mean."""
    scheduler = EXACT[how]()
    if scheduler is None:
        return gw.solve(network(on), time_limit=3).schedule
    return scheduler.schedule(network(on))


def exact_seconds(on: str, how: str, parameters: float) -> float:
    """Of an all-reduce."""
    return float(gw.simulator.seconds(exact_schedule(on, how), 4.0 * parameters, "events"))


def server_seconds(on: str, parameters: int) -> float:
    """Of a step's two pulls and its push, all workers' at once."""
    return 1.5 * exact_seconds(on, "parameter server", parameters)


def message_seconds(on: str, row: dict[str, Any]) -> float:
    """What an update's messages add to computing, of what workers do together."""
    spec, size = parse(row["aggregation"]), row["parameters"]
    if isinstance(spec, GossipSpec):
        mixing = spec.mixing_matrix(WORKERS)
        each = row["all"] / STEPS / messages_sent(mixing).sum(1).mean()
        return STEPS * float(exchange_seconds(network(on), mixing, each).mean())
    assert isinstance(spec, LocalSpec)
    if spec.method.mixes:
        mixing = spec.mixing_matrix(WORKERS)
        return float(exchange_seconds(network(on), mixing, 4.0 * size).mean())
    plain = 4.0 * size * 2 * (WORKERS - 1) / WORKERS
    fragments, delay = spec.method.fragments, spec.method.delay
    share = row["busiest"] / plain / fragments
    takes = exact_seconds(on, "schedule", size * share)
    return fragments * max(0.0, takes - delay * COMPUTE_S / STEPS)


def told_of(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What a training is by each way to compute its means: bytes and seconds of each update."""
    count = np.arange(1, len(row["steps"]) + 1)
    base = {key: row[key] for key in ("game", "name", "times", "steps", "return")}
    if row["name"] in BY_SERVER:
        slow, size = "slow" in row["name"], row["parameters"]
        at = np.array(row["seconds"])
        of = COMPUTE_S + server_seconds(RACKS, size)
        there = at * (COMPUTE_S + server_seconds(SITES, size)) / of
        found = {f"{RACKS}_slow": at} if slow else {RACKS: at, SITES: there}
        if row["name"] == "server, sync":
            found[f"{RACKS}_slow"] = count * ((FACTOR - 1) * COMPUTE_S + of)
        yield base | {"busiest": count * row["busiest"], "all": count * row["all"], **found}
        return
    if row["name"] != "exact":
        yield base | timed(row, {on: message_seconds(on, row) for on in (RACKS, SITES)})
        return
    for how in EXACT:
        size = row["parameters"]
        sent = gw.simulator.traffic(exact_schedule(RACKS, how), 4.0 * size).sent_bytes
        of = row | {"busiest": STEPS * sent.max(), "all": STEPS * sent.sum()}
        added = {on: STEPS * exact_seconds(on, how, size) for on in (RACKS, SITES)}
        yield base | {"name": f"{row['name']}, {how}"} | timed(of, added)


def timed(row: dict[str, Any], added: dict[str, float]) -> dict[str, Any]:
    """Bytes and seconds of all updates so far."""
    count = np.arange(1, len(row["steps"]) + 1)
    on = {where: count * (COMPUTE_S + more) for where, more in added.items()}
    slow = count * (FACTOR * COMPUTE_S + added[RACKS])
    sent = {name: count * row[name] for name in ("busiest", "all")}
    return sent | on | {f"{RACKS}_slow": slow}


def smoothed(returns: Any) -> np.ndarray:
    """[U, S] means of the last updates."""
    values = np.array(returns, np.float64)
    parts = [values[max(0, i + 1 - SMOOTH) : i + 1] for i in range(len(values))]
    return np.stack([np.nanmean(part, 0) for part in parts])


def at_the_end(row: dict[str, Any]) -> np.ndarray:
    """[S] the mean return of the last updates."""
    returns = np.array(row["return"], np.float64)
    return np.nanmean(returns[-max(1, round(LAST * len(returns))) :], 0)


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row of the table for each aggregation: its end, and what it took to the level."""
    levels = {}
    for row in rows:
        if row["name"] == "exact":
            mean = smoothed(row["return"]).mean(1)
            levels[row["game"]] = mean[0] + LEVEL * (mean[-1] - mean[0])
    found = []
    for one in itertools.chain.from_iterable(told_of(row) for row in rows if row["game"] in levels):
        curve, level = smoothed(one["return"]), levels[one["game"]]
        ends = at_the_end(one)
        low, high = stats.t.interval(0.95, SEEDS - 1, ends.mean(), stats.sem(ends))
        at = [np.flatnonzero(of >= level) for of in curve.T]
        there = [int(places[0]) for places in at if len(places)]
        reached: dict[str, Any] = {}
        for axis in ("steps", "busiest", "all", RACKS, SITES, f"{RACKS}_slow"):
            known = len(there) == SEEDS and axis in one
            reached[axis] = float(np.mean(np.array(one[axis])[there])) if known else None
        found.append(
            {"game": one["game"], "name": one["name"], "times": one["times"],
             "end": float(ends.mean()), "low": low,
             "high": high, "level": float(level), "seeds_there": len(there), "to": reached}
        )  # fmt: skip
    return found


def chosen(searches: list[dict[str, Any]], game: str, name: str) -> float:
    """The rate whose returns are the highest, of those that were searched."""
    tried = [one for one in searches if (one["game"], one["name"]) == (game, name)]
    return max(tried, key=lambda one: one["end"])["times"]


def next_to_try(ends: dict[float, float]) -> float | None:
    """The next rate of a search; None where the best lies between others."""
    for times in TIMES:
        if times not in ends:
            return times
    best = max(ends, key=lambda times: ends[times])
    if best == max(ends):
        return best * 8**0.5
    return best / 8**0.5 if best == min(ends) else None


def keep(rows: list[dict[str, Any]]) -> None:
    """Writes all, in the order of this file, whatever was measured first."""
    games, names = [*GAMES], [*TOGETHER, *BY_SERVER]
    rows = sorted(rows, key=lambda r: (games.index(r["game"]), names.index(r["name"]), r["times"]))
    rows = [row | {"times": round(row["times"], 4)} for row in rows]
    searches = [row for row in rows if "return" not in row]
    rows = [row for row in rows if "return" in row]
    rows = [row for row in rows if row["times"] == chosen(searches, row["game"], row["name"])]
    record(
        NAME,
        libraries=LIBRARIES,
        seeds=list(range(SEEDS)),
        workers=WORKERS,
        compute_s=COMPUTE_S,
        slow_factor=FACTOR,
        search_seeds=list(range(FIRST, FIRST + SEARCHED)),
        searches=searches,
        summary=summary(rows),
        rows=rows,
    )


def draw(result: dict[str, Any], path: Path) -> None:
    """Return against seconds between sites, as `gradweave plot` draws it."""
    rows = [one for row in result["rows"] if row["game"] == SHOWN for one in told_of(row)]
    curves = [
        Curve(one["name"], one[SITES], np.array(one["return"], np.float64)).smoothed(SMOOTH)
        for one in rows
        if SITES in one
    ]
    axis = "seconds, eight sites in a ring"
    draw_curves(curves, f"return in {SHOWN}", path, against=axis, log=True)


def measure(game: str, names: list[str], kept: Unfinished) -> None:
    """Searches each aggregation's rate, then trains by it; what is there already stays."""
    searched = functools.cache(lambda: Together(GAMES[game], FIRST, SEARCHED))
    reported = functools.cache(lambda: Together(GAMES[game], 0, SEEDS))

    def trained(name: str, times: float, program: Any, *seeds: int) -> dict[str, Any]:
        if name in TOGETHER:
            return program().run(name, times)
        (size,) = {row["parameters"] for row in kept.rows() if row["game"] == game}
        return by_server(GAMES[game], name, times, size, *seeds)

    for name in names:
        own = {"game": game, "name": name}
        there = [row for row in kept.rows() if row["game"] == game and row["name"] == name]
        ends = {row["times"]: row["end"] for row in there if "return" not in row}
        while times := next_to_try(ends):
            made = trained(name, times, searched, FIRST, SEARCHED)
            ends[times] = float(at_the_end(made).mean())
            found = {"times": times, "end": ends[times]}
            kept.add(own | found | {"parameters": made["parameters"]})
            show(own | found)
        times = chosen([row for row in kept.rows() if "return" not in row], game, name)
        if not any("return" in row and row["times"] == times for row in there):
            made = trained(name, times, reported, 0, SEEDS)
            kept.add(own | {"times": times} | made)
            show(own | {"times": times, "end": float(at_the_end(made).mean())})


def main() -> None:
    """Measures each game by each aggregation."""
    picture = Picture(NAME, draw, ("rows",))
    parser = parser_of(__doc__, picture, resumes=True)
    parser.add_argument("--games", nargs="+", choices=GAMES, default=list(GAMES))
    parser.add_argument(
        "--only", nargs="+", choices=[*TOGETHER, *BY_SERVER], default=[*TOGETHER, *BY_SERVER]
    )
    asked = parser.parse_args()
    start_jax(1)
    warnings.simplefilter("ignore", gw.aggregate.ValidityWarning)
    kept = Unfinished(NAME, resume=asked.resume, libraries=LIBRARIES)
    with tempfile.TemporaryDirectory() as folder:
        for block in blocks_of(GUIDE):
            if block.title:
                (Path(folder) / block.title).write_text(block.code)
        sys.path.insert(0, folder)
        for game in asked.games:
            measure(game, asked.only, kept)
    keep(kept.rows())
    kept.end()
    picture.redraw()


if __name__ == "__main__":
    main()
