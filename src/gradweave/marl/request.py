"""A training as a command: requested, checked, joined with other processes, resumed, reported.

A user requests it by a TOML file, and by options that override the file. JAX is not imported before
the request is known.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gradweave.aggregate.spec import ASYNCHRONOUS, AsynchronousSpec, method_of, parse
from gradweave.automata.files import dump, load_machine
from gradweave.common import lazy
from gradweave.common.checks import did_you_mean, expected_one_of
from gradweave.errors import GradweaveError, OptionError
from gradweave.marl.config import Config
from gradweave.marl.games.environments import FAMILIES, family_named, family_of, is_object
from gradweave.marl.games.environments import parse as parse_game
from gradweave.marl.games.families.grid_worlds import WORLDS
from gradweave.marl.learners import algorithms
from gradweave.marl.worlds.catalogue import OWN_MACHINE
from gradweave.processes.jax_start import start_jax
from gradweave.training.config import read_toml
from gradweave.training.pace import duration
from gradweave.training.resuming import resuming

if TYPE_CHECKING:  # these import JAX, which must not be imported yet
    from gradweave.marl.results import Report, Trained
    from gradweave.processes.agreement import Processes

Say = Callable[[str], None]
"""Callback that receives a line of text."""
_RECOVERED = "servers were lost and all resumed from the checkpoint"
_KINDS = {
    "env": str,
    "options": dict,
    "algorithm": str,
    "aggregation": str,
    "devices": int,
    "seed": int,
    "seeds": int,
    "steps": int,
    "settings": dict,
    "network": str,
}
"""The type of each field, by name."""
_WORDS = {str: "text", int: "a whole number", dict: "a table"}
_DEFAULTS = {"env": "MPE_simple_spread_v3", "algorithm": "ippo", "steps": 1_000_000}


@dataclasses.dataclass(frozen=True)
class Request:
    """A training that the user requested."""

    config: Config
    extend: bool
    """Whether it may extend a training of fewer steps: only if the user gave the number of steps.
    """

    @property
    def by_server(self) -> bool:
        """Whether an asynchronous server trains, with workers in separate processes."""
        return method_of(self.config.aggregation) == ASYNCHRONOUS

    @property
    def imports(self) -> bool:
        """Whether it imports user modules, which may start JAX."""
        return is_object(self.config.env) or self.config.network is not None

    @property
    def devices(self) -> int:
        """Number of devices of this process and of those that train in the same program."""
        return 1 if self.by_server else self.config.devices

    def check(self) -> None:
        """Refuses invalid requests early, before JAX starts or the game is made."""
        id, options = parse_game(self.config.env, self.config.options)
        family = family_named(family_of(self.config.env))
        algorithms.check_suits(
            self.config.algorithm,
            self.config.env,
            continuous=family.continuous(options),
            opposed=family.opposed(id, options),
            earned=family.reading is None or family.reading.utility is not None,
        )
        algorithms.check_network(self.config.algorithm, self.config.network)
        aggregation = parse(self.config.aggregation)
        aggregation.check_workers(self.config.devices)
        if isinstance(aggregation, AsynchronousSpec):
            _check_served(self.config)


def read_request(
    file: Path | None,
    options: Mapping[str, Any],
    settings: Sequence[str],
    machine: str | None = None,
) -> Request:
    """The training that a file and options describe.

    Args:
        file: TOML file, or None for no file.
        options: fields of `Config`; those that are not None override the file.
        settings: settings of the algorithm, as ``NAME=VALUE``.
        machine: path of a reward machine's file, or ``own`` for the machine of the world.

    Raises:
        OptionError: a field is unknown, or its value is not allowed.
        FileError: the machine's file cannot be read.
    """
    fields = read_toml(file)
    guide = {} if machine is None else {"machine": _machine(machine)}
    try:
        _check_names(fields)
        _check_imports_nothing(fields)
        fields |= {name: value for name, value in options.items() if value is not None}
        _check_kinds(fields)
        extend = "steps" in fields
        fields = _DEFAULTS | fields
        given = fields.pop("settings", {}) | dict(map(_setting, settings))
        family = family_of(fields["env"])
        if guide:
            _check_hears(fields["env"], family)
            fields["options"] = fields.get("options", {}) | guide
        made = algorithms.settings(fields["algorithm"], family, given)
        return Request(Config(settings=made, **fields), extend)
    except OptionError as error:
        raise OptionError(f"{file}: {error}" if file else str(error)) from error


def _check_served(config: Config) -> None:
    """Refuses a training that an asynchronous server cannot run."""
    lazy.require(f"--aggregation {ASYNCHRONOUS}", "ray")
    known = [name for name, row in algorithms.ALGORITHMS.items() if row.parted]
    if config.algorithm not in known:
        raise OptionError(expected_one_of(f"{ASYNCHRONOUS}: algorithm", known, config.algorithm))
    if getattr(config.settings, "normalise_values", False):
        raise OptionError(
            f"normalise_values: not supported by {ASYNCHRONOUS}, because a worker knows only its "
            "own returns; omit it, or use another aggregation"
        )


def _machine(given: str) -> str:
    """The text of a machine's file, which the training stores; ``own`` is returned unchanged."""
    return given if given == OWN_MACHINE else dump(load_machine(given))


def _check_hears(env: str, family: str) -> None:
    if family != WORLDS and family in FAMILIES:
        known = ", ".join(FAMILIES[WORLDS].ids)
        raise OptionError(f"--machine: {env} has no events for a reward machine; use {known}")


def _check_names(fields: Mapping[str, Any]) -> None:
    for name in fields:
        if name not in _KINDS:
            hint = did_you_mean(name, _KINDS)
            raise OptionError(f"{name}: unknown; {hint}known are {', '.join(_KINDS)}")


def _check_imports_nothing(fields: Mapping[str, Any]) -> None:
    """Refuses modules in a file: code that a file names is never imported."""
    env = fields.get("env")
    if isinstance(env, str) and is_object(env):
        raise OptionError(f"env: {env} names code to import, which a file may not do: give --env")
    if "network" in fields:
        raise OptionError("network: names code to import, which a file may not do: give --network")


def _check_kinds(fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        kind = _KINDS[name]
        if not isinstance(value, kind) or isinstance(value, bool):
            raise OptionError(f"{name}: expected {_WORDS[kind]}, got {value!r}")


def read_sweep(given: Sequence[str]) -> dict[str, list[float]]:
    """The values of a sweep, by the name of a setting.

    Args:
        given: each as ``NAME=VALUE,VALUE,…``.

    Raises:
        OptionError: an entry has another form, or a name is given twice.

    >>> read_sweep(["learning_rate=1e-3,3e-3", "discount=0.9"])
    {'learning_rate': [0.001, 0.003], 'discount': [0.9]}
    """
    sweep: dict[str, list[float]] = {}
    for text in given:
        name, _, values = text.partition("=")
        try:
            numbers = [float(value) for value in values.split(",")]
        except ValueError:
            numbers = []
        if not numbers or name in sweep or len(set(numbers)) < len(numbers):
            raise OptionError(
                f"--sweep: expected NAME=NUMBER,NUMBER,… with each once, got {text!r}"
            )
        sweep[name] = numbers
    return sweep


def _setting(text: str) -> tuple[str, Any]:
    """A name and a value, which is written as in TOML."""
    name, equals, value = text.partition("=")
    if not equals:
        raise OptionError(f"--set: expected NAME=VALUE, got {text!r}")
    try:
        return name.strip(), msgspec.toml.decode(f"value = {value}")["value"]
    except msgspec.DecodeError:
        return name.strip(), value


@contextlib.contextmanager
def session(
    ask: Callable[[], Request], check_files: Callable[[], None], *, distributed: bool, complain: Say
) -> Iterator[tuple[Request, "Processes"]]:
    """Context of a training: its request and processes, with JAX started while the block lasts.

    Args:
        ask: returns the request, or raises the error in it.
        check_files: raises if an output cannot be written; called in the process that writes files.
        distributed: whether other processes were started with this one. If so, an error in any
            process ends all of them; see `gradweave.processes.jax_distributed.joined`.
        complain: reports why this process ends.

    Raises:
        GradweaveError: the error that `ask` or `check_files` raised, if possible before JAX is
            imported; or the other processes cannot be reached.
    """
    if not distributed:
        check_files()
        request = ask()
        if request.imports:
            start_jax(request.devices)
        request.check()
        start_jax(request.devices)
        from gradweave.processes.agreement import Processes

        yield request, Processes()
        return
    from gradweave.processes.jax_distributed import joined

    asked = _caught(ask)
    _check_in_one_program(asked)
    devices = None if isinstance(asked, GradweaveError) else asked.config.devices
    with joined(devices, complain) as processes:

        def checked() -> Request:
            if processes.first:
                check_files()
            if isinstance(asked, GradweaveError):
                raise asked
            return asked

        with processes.lost_is_an_error():
            request = processes.together(checked)
        yield request, processes


def _check_in_one_program(asked: Request | GradweaveError) -> None:
    """Refuses a server's training in every process, before the processes look for each other."""
    if isinstance(asked, Request) and asked.by_server:
        raise OptionError(
            f"--distributed: {asked.config.aggregation} starts its workers itself; omit the option"
        )


def _caught(ask: Callable[[], Request]) -> Request | GradweaveError:
    """The request, or the error, which the other processes must receive after they have joined."""
    try:
        return ask()
    except GradweaveError as error:
        return error


def train(
    request: Request,
    output: Path,
    processes: "Processes",
    *,
    sweep: Mapping[str, Sequence[float]] | None = None,
    progress: Say,
    checkpoint_minutes: float,
    note: Say,
    wandb: str | None = None,
) -> "dict[str, Trained]":
    """Trains, and reports progress, the checkpoint it resumes from, and what remains after Ctrl-C.

    Args:
        request: the training to run.
        output: folder of the checkpoint, the logs and the policy.
        processes: the processes that train together.
        sweep: the values of each setting that varies; see `training.train_sweep`.
        progress: called with a description of the current step.
        checkpoint_minutes: minutes between checkpoints.
        note: writes a line to standard error.
        wandb: see `training.train`.

    Returns:
        The result of each combination of a sweep by its subfolder, or of the one training.

    Raises:
        GradweaveError: see `training.train`.
    """
    from gradweave.marl import folder, training

    config, extend = request.config, request.extend and sweep is None

    def done() -> int:
        return folder.updates_done(config, output, extend=extend, sweep=sweep)

    run: dict[str, Any] = {
        "report": reporting(progress, note, config.algorithm),
        "progress": progress,
        "checkpoint_minutes": checkpoint_minutes,
        "wandb": wandb,
    }
    with processes.lost_is_an_error():
        before = processes.number_of_first(done)
    with contextlib.ExitStack() as stack:
        if processes.first:
            stack.enter_context(resuming(output, before, config.updates, done, "train", note))
        if sweep is not None:
            return training.train_sweep(config, sweep, output, **run)
        return {"": training.train(config, output, extend=extend, processes=processes, **run)}


def reporting(progress: Say, note: Say, algorithm: str = "ippo") -> "Callable[[Report], None]":
    """A callback that shows progress, and warns the user once per problem.

    It warns about gradients that are not finite, per device, and about agents' rewards that differ
    although the algorithm learns a common reward.

    Args:
        progress: called with a description of the current step.
        note: writes a line to standard error.
        algorithm: name of the algorithm.
    """
    averages = algorithms.algorithm(algorithm).one_team
    noted: set[int] = set()
    lost = [0, 0]

    def report(at: "Report") -> None:
        for place, (now, what) in enumerate(
            ((at.replaced, "workers that died were replaced"), (at.recovered, _RECOVERED))
        ):
            if now > lost[place]:
                lost[place] = now
                note(f"{what}: {now} by update {at.update}")
        nonlocal averages
        if averages and _differ(at.by_agent):
            averages = False
            note(
                f"{algorithm}: learns the mean of the agents' rewards, which differ: returns "
                f"{min(at.by_agent):.4g} to {max(at.by_agent):.4g}, mean {at.mean_return:.4g}; "
                "if their interests are opposed, use iql or ippo"
            )
        mean = "" if at.mean_return is None else f", return {at.mean_return:.4g}"
        progress(
            f"update {at.update} of {at.of}{mean}; "
            f"{at.steps_per_s:.3g} steps/s, about {duration(at.seconds_left)} left"
        )
        for device, number in enumerate(at.not_finite):
            if number and device not in noted:
                noted.add(device)
                note(
                    f"device {device}: gradients that are not finite, {number} by update "
                    f"{at.update}; they are left out"
                )

    return report


def _differ(returns: Sequence[float]) -> bool:
    """Whether the agents' returns differ by more than rounding."""
    if not returns:
        return False
    return max(returns) - min(returns) > 1e-4 * max(map(abs, returns))
