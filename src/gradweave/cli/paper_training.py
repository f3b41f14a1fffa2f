"""``gradweave learn --paper``: a training's rounds next to the paper's, and to the bound."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gradweave.cli.console import warn
from gradweave.common.wording import counted
from gradweave.errors import MissingExtraError, SpecError
from gradweave.report.comparison import TABLE_2, Case
from gradweave.report.curves import Curve, draw_curves
from gradweave.report.paper import PAPER_LEARNED
from gradweave.topology.spec import from_spec

if TYPE_CHECKING:
    from gradweave.learning.config import Config

CURVE = "curve.png"
_TREES = {
    "even": "shortest paths, ties broken evenly",
    "fixed": "shortest paths, ties by lowest ids",
    "grown": "trees that grow with the schedule",
}


def case_of(network: str) -> Case:
    """The network that ``--paper`` names.

    Args:
        network: a label of Table 2, or the specification of a network.

    Raises:
        SpecError: it is neither.
    """
    labels = {case.label: case for case in TABLE_2}
    if network in labels:
        return labels[network]
    try:
        from_spec(network)
    except SpecError as error:
        raise SpecError(f"--paper: expected {', '.join(labels)}, or a network; {error}") from error
    return Case(network, network, "reduce_scatter")


def compared(case: Case, config: "Config", folder: Path) -> dict[str, Any]:
    """The rounds of one stage, as JSON, and their chart in the training's folder.

    Args:
        case: the network.
        config: the training's configuration.
        folder: the training's folder.
    """
    from gradweave.learning.paper import DRAWN, EPISODES, LAST, others, outcome

    found, known = outcome(folder), others(config)
    stages = 2 if case.stages == "all_reduce" else 1
    counts = PAPER_LEARNED.get(case.label)
    rounds = {
        "bound": known.bound,
        "constants": known.constants,
        "paper": None if counts is None else counts / stages,
    }
    flat: dict[float, list[str]] = {}  # names by value, since equal lines would hide each other
    for name, value in zip(("bound", "19 constants", "the paper"), rounds.values(), strict=True):
        if value is not None:
            flat.setdefault(float(value), []).append(name)
    updates = np.arange(1, len(found.rounds) + 1, dtype=np.float64)
    curves = [Curve("trained", updates, np.array(found.rounds)[:, None])]
    for value, names in flat.items():
        curves.append(Curve(", ".join(names), updates, np.full((len(updates), 1), value)))
    chart: Path | None = folder / CURVE
    try:
        draw_curves(curves, f"rounds of one stage on {case.label}", chart, against="update")
    except MissingExtraError as error:
        warn(f"no {CURVE}: {error}")
        chart = None
    return {
        "network": case.label,
        "trees": config.groups[0].exercises[0].trees,
        "seed": config.seed,
        "updates": len(found.rounds),
        "episodes_per_update": EPISODES,
        "first": found.first,
        "last": found.last,
        "last_of": min(LAST, len(found.rounds)),
        **rounds,
        "constants_episodes": DRAWN,
        "paper_stages": stages,
        "curve": None if chart is None else str(chart),
    }


def lines_of(made: dict[str, Any]) -> list[str]:
    """The result of `compared` as text, a figure and its conditions per line."""
    each = f"{counted(made['episodes_per_update'], 'drawn episode')} each"
    rows = [
        ("before training", made["first"], f"the first update, {each}"),
        (
            "trained by Algorithm 1",
            made["last"],
            f"the last {made['last_of']} of {counted(made['updates'], 'update')}, {each}",
        ),
        (
            "19 constants",
            made["constants"],
            f"{counted(made['constants_episodes'], 'drawn episode')}, without repair",
        ),
        ("bound", made["bound"], "of any schedule on these trees"),
    ]
    if made["paper"] is not None:
        whole = made["paper"] * made["paper_stages"]
        counts = "one stage" if made["paper_stages"] == 1 else "both stages"
        rows.append(
            ("the paper", made["paper"], f"{whole:g} in Table 2, {counts}; its trees are not known")
        )
    return [
        f"{made['network']}, {_TREES[made['trees']]}, seed {made['seed']}: rounds of one stage",
        *(f"  {name:24}{value:6.4g}   {conditions}" for name, value, conditions in rows),
        *([] if made["curve"] is None else [f"curve: {made['curve']}"]),
    ]
