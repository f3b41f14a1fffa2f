"""What a training's folder keeps: checkpoint, schedule and policy, and how they are read again.

If the solver finds the schedule that averages gradients, it is saved next to the checkpoint, which
names it by its digest, so that a training that resumes combines its updates identically.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from gradweave.aggregate.aggregation import by_schedule, find_schedule, resolve
from gradweave.aggregate.asynchronous import checkpoint as of_server
from gradweave.aggregate.spec import ScheduledSpec, method_of, parse
from gradweave.errors import FileError, OptionError
from gradweave.marl import checkpoint
from gradweave.marl.config import Config, current, differences
from gradweave.marl.games.environment import Environment
from gradweave.marl.games.environments import id_of, is_object, make
from gradweave.marl.learners import algorithms
from gradweave.marl.learners.algorithms import Aggregate
from gradweave.marl.learners.learner import Learner
from gradweave.marl.learners.own_network import Factory, named
from gradweave.marl.program import Program
from gradweave.marl.results import Trained
from gradweave.schedules.file import from_bytes, load, to_bytes
from gradweave.schedules.schedule import Schedule
from gradweave.topology.formats.object import topology_to_object
from gradweave.topology.topology import Topology

if TYPE_CHECKING:
    from gradweave.processes.agreement import Processes

CHECKPOINT = "checkpoint.safetensors"
SERVERS = "servers"
"""Subfolder that holds the checkpoint of a training through an asynchronous server."""
POLICY = "policy.safetensors"
SCHEDULE = "schedule.json"
Sweep = Mapping[str, Sequence[float]]
"""The values of each setting that varies within a sweep, by the setting's name."""


def begun(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """The path of a folder's checkpoint and its metadata, or None if there is no checkpoint.

    Raises:
        FileError: the checkpoint cannot be read.
    """
    path = folder / CHECKPOINT
    if path.exists():
        return path, checkpoint.about(path)
    by_server = of_server.about(folder / SERVERS)
    if by_server is None:
        return None
    metadata, gradients = by_server
    workers = metadata.get("config", {}).get("devices", 1)
    return folder / SERVERS, metadata | {"updates": gradients // workers}


def stated(
    config: Config, folder: Path, extend: bool, *, sweep: Sweep | None = None
) -> Mapping[str, Any] | None:
    """The metadata of the checkpoint that this training can resume from, or None if there is none.

    Args:
        config: configuration of the training that should resume.
        folder: folder of the training.
        extend: whether to accept the final checkpoint of a training with fewer steps.
        sweep: the values of each varied setting, for several trainings that run in one program.

    Raises:
        OptionError: the checkpoint belongs to another training; the message names the differences.
        FileError: the checkpoint cannot be read.
    """
    found = begun(folder)
    if found is None:
        return None
    path, metadata = found
    other, updates = metadata.get("config"), metadata.get("updates")
    if not isinstance(other, dict) or not isinstance(updates, int):
        raise FileError(f"{path}: does not say which training it belongs to")
    other = current(other)
    differ = differences(other, config.flat())
    there, here = metadata.get("sweep"), description(config, (), sweep=sweep).get("sweep")
    if there != here:
        differ = [f"sweep {there} there, {here} here", *differ]
    if not differ:
        return metadata
    longer = isinstance(other.get("steps"), int) and other["steps"] < config.steps
    if there == here and longer and not differences(other | {"steps": config.steps}, config.flat()):
        had = dataclasses.replace(config, steps=other["steps"]).updates
        if updates < had:
            raise OptionError(
                f"{path} is for {other['steps']} steps and has not finished ({updates} of {had} "
                f"updates): finish it with --steps {other['steps']}, then extend it"
            )
        if extend:
            return metadata
        differ = [f"{differ[0]}, which --steps {config.steps} extends it to"]
    more = f" and {len(differ) - 3} more" if len(differ) > 3 else ""
    raise OptionError(
        f"{path} belongs to another training: {'; '.join(differ[:3])}{more}; "
        "give another folder, or remove it"
    )


def extended_from(config: Config, metadata: Mapping[str, Any] | None) -> tuple[int, ...]:
    """`Trained.extended` for a training that resumes from the metadata that `stated` returned."""
    if metadata is None:
        return ()
    before = tuple(metadata.get("extended", ()))
    steps = metadata["config"]["steps"]
    return before if steps == config.steps else (*before, steps)


def description(
    config: Config, extended: tuple[int, ...], *, sweep: Sweep | None = None, **more: Any
) -> dict[str, Any]:
    """The metadata that files keep about a training: everything that their arrays depend on."""
    if extended:
        more["extended"] = list(extended)
    if sweep is not None:
        more["sweep"] = {name: list(map(float, values)) for name, values in sweep.items()}
    return {"config": config.flat(), **more}


@dataclasses.dataclass(frozen=True)
class Combining:
    """How devices combine their updates."""

    aggregate: Aggregate
    """Adds the aggregation to an optimizer."""
    schedule: Schedule | None = None
    """The schedule that averages gradients, or None if no schedule is used."""
    kept: bool = False
    """Whether the solver found the schedule, so that it must be saved with the checkpoint."""

    @functools.cached_property
    def digest(self) -> str | None:
        """The name under which the checkpoint refers to the schedule."""
        return None if self.schedule is None else _digest(self.schedule)

    def keep(self, folder: Path) -> None:
        """Saves the schedule, if the solver found it, next to the training's checkpoint.

        Raises:
            FileError: the file cannot be written.
        """
        if self.schedule is not None and self.kept:
            self.schedule.save(folder / SCHEDULE)


def combining(
    config: Config, folder: Path, stated: Mapping[str, Any] | None, processes: "Processes"
) -> Combining:
    """Resolves the aggregation of a configuration.

    Args:
        config: configuration of the training.
        folder: folder of the training.
        stated: metadata of the checkpoint to resume from, or None if there is none, and in all
            processes but the first.
        processes: the processes that train together; only the first has a folder and reads files.

    Raises:
        SpecError: the aggregation cannot be parsed.
        OptionError: a value is out of range, or the schedule is not the one that the training
            started with.
        ScheduleError: the schedule is for another number of devices.
        FileError: the schedule's file cannot be read.
    """
    text, devices = config.aggregation, config.devices
    if method_of(text) != "scheduled":
        return Combining(processes.together(lambda: resolve(parse(text), devices, same_data=True)))
    schedule, solved = processes.by_first(lambda: _schedule(config, folder, stated)) or (
        None,
        False,
    )
    if not processes.alone:
        content = processes.bytes_of_first(lambda: to_bytes(schedule) if schedule else b"")
        schedule = processes.together(lambda: from_bytes(content, text))
    assert schedule is not None
    aggregation = processes.together(lambda: by_schedule(schedule, devices, spec=text))
    return Combining(aggregation, schedule, kept=solved)


def _schedule(
    config: Config, folder: Path, stated: Mapping[str, Any] | None
) -> tuple[Schedule, bool]:
    """The schedule (read, found or saved earlier), and whether it was found for a network."""
    spec = parse(config.aggregation)
    assert isinstance(spec, ScheduledSpec)
    expected = None if stated is None else stated.get("schedule")
    if spec.network is not None and stated is not None:
        schedule = _kept(folder / SCHEDULE, spec.network)
        if schedule is not None and expected in (None, _digest(schedule)):
            return schedule, True
    schedule = find_schedule(spec, config.devices, config.seed)
    if expected not in (None, _digest(schedule)):
        raise OptionError(
            f"{spec.file} is not the schedule that the training in {folder} started with; "
            "restore that file, or give another folder"
            if spec.file
            else f"{folder / SCHEDULE} is not the schedule that the training there started with, "
            "and neither is the schedule found now; restore that file, or give another folder"
        )
    return schedule, spec.network is not None


def _kept(path: Path, network: Topology) -> Schedule | None:
    """The saved schedule, if it is for this network."""
    if not path.exists():
        return None
    schedule = load(path)
    same = topology_to_object(schedule.topology) == topology_to_object(network)
    return schedule if same else None


def _digest(schedule: Schedule) -> str:
    return hashlib.sha256(to_bytes(schedule)).hexdigest()[:16]


def updates_done(
    config: Config, folder: Path, *, extend: bool = False, sweep: Sweep | None = None
) -> int:
    """Number of updates in a folder's checkpoint, 0 if it has none; see `stated`."""
    metadata = stated(config, folder, extend, sweep=sweep)
    return 0 if metadata is None else metadata["updates"]


def check_environment(config: Config, environment: Environment | None) -> None:
    """Refuses a game that is not the game of the training.

    Raises:
        OptionError: the configuration names another game.
    """
    if environment is not None and environment.family != id_of(config.env):
        raise OptionError(f"environment: expected {config.env}, got {environment.id}")


def load_policy(folder: Path, learner: Learner, config: Config) -> Any:
    """Reads the parameters [S, ...] of a finished training.

    Raises:
        FileError: the file cannot be read, or has another format.
    """
    program = Program(learner, jax.devices()[:1], config.seed, config.seeds)
    like = jax.eval_shape(program.parameters, program.shapes())
    return checkpoint.load(folder / POLICY, like)


def load_trained(
    folder: Path, *, environment: Environment | None = None, network: Factory | None = None
) -> Trained:
    """Reads a finished training, with its environment and algorithm.

    Args:
        folder: the folder that was passed to `train`. No code that it names is imported.
        environment: the environment of the training; required if it was named as ``module:object``.
        network: the factory of the networks; required if the training did not use Gradweave's.

    Returns:
        The result that `train` returned, without the facts about that run: it counts all updates as
        resumed, and has no speed.

    Raises:
        FileError: there is no policy, or it cannot be used.
        OptionError: the environment cannot be made here, or differs from that of the training.
    """
    path = folder / POLICY
    if not path.exists():
        if begun(folder) is not None:
            raise FileError(
                f"{folder}: has no {POLICY} yet, because the training has not finished; train "
                "again with the same options to continue it"
            )
        raise FileError(f"{folder}: there is no {POLICY}; give the folder of a training")
    about = checkpoint.about(path)
    config_fields, extended = about.get("config"), about.get("extended", [])
    if not isinstance(config_fields, dict) or not isinstance(extended, list):
        raise FileError(f"{path}: does not say which training it belongs to")
    try:
        config = algorithms.config_of(config_fields)
    except (OptionError, TypeError) as error:
        raise FileError(f"{path}: {error}") from error
    check_environment(config, environment)
    if environment is None:
        if is_object(config.env):
            raise OptionError(
                f"{path}: its game is {config.env}, which no file may import: give --env, or "
                "environment= in Python"
            )
        environment = make(config.env, **config.options)
    if config.network is not None and network is None:
        raise OptionError(
            f"{path}: its network is {config.network}, which no file may import: give --network, "
            "or network= in Python"
        )
    learner = algorithms.build(config, environment, lambda optimizer: optimizer, network)
    parameters = load_policy(folder, learner, config)
    return Trained(
        config, environment, learner, parameters, config.updates, None, extended=tuple(extended)
    )


def imported(folder: Path, env: str | None, network: str | None) -> dict[str, Any]:
    """Arguments of `load` for the objects that a command names as ``module:object``.

    Args:
        folder: folder of the training, whose options the game gets.
        env: the game of the training, or None if the folder's metadata suffices.
        network: the factory of the networks, or None if the training used Gradweave's.

    Raises:
        OptionError: an object is not the training's, or cannot be imported.
        FileError: the folder cannot be read.
    """
    kept = checkpoint.about(folder / POLICY).get("config", {}) if env or network else {}
    for what, given in (("env", env), ("network", network)):
        if given is not None and given != kept.get(what):
            raise OptionError(f"--{what}: expected {kept.get(what)}, got {given}")
    found: dict[str, Any] = {}
    if env is not None:
        found["environment"] = make(env, **kept.get("options", {}))
    if network is not None:
        found["network"] = named(network)
    return found
