"""``gradweave machine``: reward machines, and whether agents can share their tasks."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from gradweave.automata.decomposition import Least, Verdict, check, least
from gradweave.automata.files import Task, load_machine
from gradweave.automata.machine import NO_MOVE, Machine
from gradweave.automata.operations import dead, product, projection, values
from gradweave.cli.answers import Answer
from gradweave.cli.console import fields_of
from gradweave.cli.groups import Command
from gradweave.cli.options import FILE, option, writable
from gradweave.common.wording import counted
from gradweave.errors import ANSWER_IS_NO, SUCCESS, OptionError, RewardError
from gradweave.report.machine_page import write_machine_page


@click.group()
def machine() -> None:
    """Check and draw reward machines."""


@machine.command("check", cls=Command, examples=["task.yaml"])
@click.argument("file", type=FILE)
@option("--without-causal", "Also count traces that the causal model excludes.", bool)
def check_(file: Path, without_causal: bool) -> Answer:
    """Check whether the agents of FILE are done exactly when the team is, and paid alike.

    FILE has the team's machine, the events that each agent sees, and what never happens. Exit
    status 1 says that the division is wrong; a shortest trace shows it.
    """
    task = load_machine(file)
    if not task.agents:
        raise OptionError(f"{file}: says not which events each agent sees; add agents: {{NAME: …}}")
    causal = None if without_causal else task.causal
    try:
        agents = _agents(task)
        verdict = check(task.machine, list(agents.values()), causal)
        reason = None if verdict.valid else _reason(agents, verdict)
    except RewardError as error:
        agents, verdict, reason = {}, Verdict(False, None, False, (), 0), str(error)
    smallest = least(task.machine, task.agents, causal)
    return Answer(
        _object(task, agents, verdict, smallest, causal) | {"reason": reason},
        _lines(task, agents, verdict, smallest, causal, reason),
        status=SUCCESS if verdict.valid else ANSWER_IS_NO,
    )


@machine.command("show", cls=Command, examples=["task.yaml --output task.html"])
@click.argument("file", type=FILE)
@option("--output", "Write this page.  [default: FILE.html]", FILE)
def show(file: Path, output: Path | None) -> Answer:
    """Draw the machine of FILE, each agent's part of it, and what the world allows, on one page."""
    task = load_machine(file)
    output = output or Path(f"{file.stem}.html")
    writable(output, ".html", ".htm")
    drawn = [("the team", task.machine)]
    drawn += [(f"what agent {name} sees", machine) for name, machine in _agents(task).items()]
    if task.causal is not None:
        drawn.append(("what never happens", task.causal))
    write_machine_page(drawn, output, task.machine.name, _size(task.machine))
    return Answer(
        {"file": str(file), "output": str(output), "machines": len(drawn)},
        [f"{output}: {counted(len(drawn), 'machine')}; open it in a browser"],
    )


def _agents(task: Task) -> dict[str, Machine]:
    return {name: projection(task.machine, events, name) for name, events in task.agents.items()}


def _size(machine: Machine) -> str:
    return f"{counted(len(machine.states), 'state')}, {counted(len(machine.events), 'event')}"


def _shared(task: Task) -> dict[str, list[str]]:
    """Events that several agents have to see together, and who."""
    seen = {
        event: [agent for agent, events in task.agents.items() if event in events]
        for number, event in enumerate(task.machine.events)
        if (task.machine.next[:, number] != NO_MOVE).any()
    }
    return {event: agents for event, agents in seen.items() if len(agents) > 1}


def _lost(task: Task, causal: Machine | None) -> list[str]:
    """States of the team from which, as far as is known, the task cannot be done."""
    whole = task.machine if causal is None else product(task.machine, causal).machine
    lost = dead(whole) & ~whole.forbidden
    return [state for state, is_lost in zip(whole.states, lost, strict=True) if is_lost]


def _object(
    task: Task,
    agents: dict[str, Machine],
    verdict: Verdict,
    smallest: Least | None,
    causal: Machine | None,
) -> dict[str, Any]:
    return {
        "machine": task.machine.name,
        "states": len(task.machine.states),
        "events": list(task.machine.events),
        "value": float(values(task.machine)[task.machine.start]),
        "agents": {
            name: {"events": list(task.agents[name]), "states": len(machine.states)}
            for name, machine in agents.items()
        },
        "shared": _shared(task),
        "causal": causal and causal.name,
        "lost": _lost(task, causal),
        **fields_of(verdict, "valid", "counterexample", "team_done", "agents_done", "explored"),
        "least": smallest
        and {
            "events": smallest.division,
            "told": smallest.communicated,
            "hidden": smallest.hidden,
            "proved": smallest.proved,
        },
    }


def _lines(
    task: Task,
    agents: dict[str, Machine],
    verdict: Verdict,
    smallest: Least | None,
    causal: Machine | None,
    reason: str | None,
) -> Iterator[str]:
    shared = _shared(task)
    yield f"{task.machine.name}: {_size(task.machine)}"
    for name, machine in agents.items():
        events = task.agents[name]
        private = ", ".join(event for event in events if event not in shared) or "none"
        states = counted(len(machine.states), "state")
        yield f"  {name} sees {', '.join(events)}: {states}; private: {private}"
    for event, who in shared.items():
        yield f"  {event} must be communicated among {', '.join(who)}"
    if causal is not None:
        yield f"  known: {causal.name}"
        if lost := _lost(task, causal):
            yield f"  the task is lost in {', '.join(lost[:8])}"
    if reason is None:
        explored = counted(verdict.explored, "state")
        yield f"valid: all agents are done exactly when the team is, and paid alike ({explored})"
    else:
        yield f"not valid: {reason}"
    yield _advice(verdict, smallest)


def _reason(agents: dict[str, Machine], verdict: Verdict) -> str:
    """Why a division is not valid."""
    after = f"after {' '.join(verdict.counterexample or ()) or 'no event at all'}"
    unpaid = verdict.unpaid
    if unpaid is None:
        done = [name for name, is_done in zip(agents, verdict.agents_done, strict=True) if is_done]
        team = "is" if verdict.team_done else "is not"
        return f"{after} the team {team} done, and {', '.join(done) or 'no agent'} is"
    if unpaid.agent is None:
        return f"{after} the team is paid {unpaid.team:g}, and no agent hears of it"
    agent = list(agents)[unpaid.agent]
    return f"{after} the team is paid {unpaid.team:g}, and {agent} {unpaid.paid:g}"


def _advice(verdict: Verdict, smallest: Least | None) -> str:
    if smallest is None:
        return "no way was found to make it valid by telling agents more"
    tried = "" if smallest.proved else ", as far as was tried"
    if not verdict.valid:
        added = ", ".join(f"{event} to {agent}" for agent, event in smallest.communicated)
        return f"valid, and with the fewest told, if one tells {added}{tried}"
    if smallest.hidden:
        hidden = ", ".join(f"{event} from {agent}" for agent, event in smallest.hidden)
        return (
            f"the minimum that agents must see{tried}: {hidden} may be hidden, unless they bring "
            "it about"
        )
    return f"nothing can be hidden from anybody{tried}"
