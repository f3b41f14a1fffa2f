"""``gradweave advise``: which aggregation suits a network, by predicted seconds and bytes."""

import json
from pathlib import Path
from typing import Any, Unpack

import click

from gradweave.aggregate.advice import CANDIDATES, SLOWER, Advice, Forecast, advise
from gradweave.aggregate.spec import GossipSpec, parse
from gradweave.cli.answers import Answer
from gradweave.cli.console import Progress, Table, fields_of
from gradweave.cli.groups import command
from gradweave.cli.options import (
    FaultOptions,
    fault_options,
    faults,
    option,
    seed_option,
    size_option,
    time_limit_option,
    written_option,
)
from gradweave.common.atomic import atomic_write
from gradweave.errors import SpecError
from gradweave.printable import in_one_line
from gradweave.simulator.runtime import NAMES
from gradweave.topology.formats.files import save
from gradweave.topology.spec import from_spec
from gradweave.topology.units import format_seconds, format_size, parse_seconds


class _Seconds(click.ParamType):
    """A time such as 80ms or 0.2, in seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The time in seconds."""
        try:
            return parse_seconds("time", value)
        except SpecError as error:
            self.fail(str(error), param, ctx)


@command(
    name="advise",
    examples=[
        "leaf_spine:leaves=2,spines=2,servers_per_leaf=4,oversubscription=4 --size 400MB "
        "--compute-time 250ms",
        "cities.json --compute-time 2s --aggregation mean --aggregation diloco:local_steps=500",
    ],
)
@click.argument("network")
@size_option("Size of all gradients, which are float32.", "100MB")
@option(
    "--compute-time",
    "Time that a worker computes per step, such as 80ms, without messages.",
    _Seconds(),
    required=True,
    metavar="TIME",
)
@option(
    "--aggregation candidates",
    f"Compare this aggregation; repeatable.  [default: {', '.join(CANDIDATES)}]",
    multiple=True,
    metavar="SPEC",
)
@option(
    "--runtime",
    f"What sends the messages: {', '.join(NAMES)}, or a profile in a TOML file.",
    default="gloo",
    metavar="NAME",
)
@fault_options
@seed_option
@time_limit_option
@written_option(
    "--output",
    "Write the advised aggregation to this file, for gradweave train --config, and a schedule or "
    "network that it needs next to it.",
    (".toml",),
    metavar="FILE.toml",
)
def advise_aggregation(
    network: str,
    gradient_bytes: int,
    compute_time: float,
    candidates: tuple[str, ...],
    runtime: str,
    seed: int,
    time_limit: float | None,
    output: Path | None,
    **lost: Unpack[FaultOptions],
) -> Answer:
    """Choose an aggregation for workers on NETWORK.

    For each aggregation, predict the seconds of a step, the bytes that the busiest worker sends in
    it, and the steps until an update has reached all workers: one for an exact mean, more for
    gossip and local updates. Those marked * are on the front: no other is as good in all three.
    """
    with Progress(f"aggregations on {network}") as progress:
        advice = advise(
            faults(lost).apply_to(from_spec(network)),
            gradient_bytes,
            compute_time,
            runtime=runtime,
            candidates=candidates or CANDIDATES,
            seed=seed,
            time_limit=time_limit,
            progress=progress,
        )
    if output is not None:
        _write(advice, output)
    asides = [
        f"gradweave: warning: {one.aggregation}: in doubt: {doubt}"
        for one in advice.forecasts
        for doubt in one.doubts
    ]
    heads = ("aggregation", "step", "exchange", "every", "bytes per step", "reaches all after", "")
    text = [
        Table(heads, map(_row, advice.forecasts)),
        f"advised: {advice.advised.aggregation}, whose updates reach all workers soonest among "
        f"steps of at most {SLOWER:g} times the quickest",
        f"predicted, {advice.conditions}",
    ]
    return Answer(_object(advice), text, asides).written_to(output)


def _row(one: Forecast) -> list[str]:
    return [
        one.aggregation,
        format_seconds(one.step_s),
        format_seconds(one.exchange_s),
        "step" if one.every == 1 else f"{one.every} steps",
        format_size(one.step_bytes),
        "1 step" if one.reached_after == 1 else f"{one.reached_after:g} steps",
        "*" if one.on_front else "",
    ]


def _object(advice: Advice) -> dict[str, Any]:
    names = ("aggregation", "step_s", "exchange_s", "every", "step_bytes", "reached_after")
    names += ("on_front", "doubts")
    return {
        "network": advice.topology.name,
        "workers": advice.topology.num_servers,
        **fields_of(advice, "gradient_bytes", "compute_s", "runtime", "conditions"),
        "advised": advice.advised.aggregation,
        "forecasts": [fields_of(one, *names) for one in advice.forecasts],
    }


def _write(advice: Advice, output: Path) -> None:
    """The advised aggregation as a configuration of ``gradweave train``."""
    advised, aggregation = advice.advised, advice.advised.aggregation
    if advised.schedule is not None:
        plan = output.with_suffix(".schedule.json.gz")
        advised.schedule.save(plan)
        aggregation = f"scheduled:{plan}"
    elif isinstance(spec := parse(aggregation), GossipSpec) and spec.network is None:
        saved = output.with_suffix(".network.json")
        save(advice.topology, saved)
        aggregation += f"{',' if ':' in aggregation else ':'}network={saved}"
    step = f"{format_seconds(advised.step_s)} per step predicted on {advice.topology.name}"
    text = (
        f"# {in_one_line(f'{step}, {advice.conditions}')}\n"
        f"aggregation = {json.dumps(aggregation)}\n"  # JSON's strings are strings of TOML, too
        f"devices = {advice.topology.num_servers}\n"
    )
    atomic_write(output, text.encode())
