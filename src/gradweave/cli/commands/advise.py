"""``gradweave advise``: which aggregation suits a network, by predicted seconds and bytes."""

import json
from pathlib import Path
from typing import Any, Unpack

import click

from gradweave.aggregate.advice import CANDIDATES, SLOWER, Advice, Forecast, advise
from gradweave.aggregate.spec import GossipSpec, parse
from gradweave.cli.console import Progress, print_json, print_lines, print_table, table, warn
from gradweave.cli.groups import command
from gradweave.cli.options import (
    FaultOptions,
    fault_options,
    faults,
    json_option,
    seed_option,
    time_limit_option,
    writable,
)
from gradweave.cli.sizes import size_option
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
@click.option(
    "--compute-time",
    type=_Seconds(),
    required=True,
    metavar="TIME",
    help="What a worker computes per step, without messages, such as 80ms.",
)
@click.option(
    "--aggregation",
    "candidates",
    multiple=True,
    metavar="SPEC",
    help=f"Compare this aggregation; repeatable.  [default: {', '.join(CANDIDATES)}]",
)
@click.option(
    "--runtime",
    default="gloo",
    show_default=True,
    metavar="NAME",
    help=f"What sends the messages: {', '.join(NAMES)}, or a profile in a TOML file.",
)
@fault_options
@seed_option
@time_limit_option
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE.toml",
    help="Write the advised aggregation to this file, for gradweave train --config; a schedule or "
    "network that it needs is saved beside it.",
)
@json_option
def advise_aggregation(
    network: str,
    gradient_bytes: int,
    compute_time: float,
    candidates: tuple[str, ...],
    runtime: str,
    seed: int,
    time_limit: float | None,
    output: Path | None,
    as_json: bool,
    **lost: Unpack[FaultOptions],
) -> None:
    """Choose an aggregation for workers on NETWORK.

    For each aggregation, predict the seconds of a step, the bytes that the busiest worker sends in
    it, and the steps until an update has reached all workers: one for an exact mean, more for
    gossip and local updates. Those marked * are on the front: no other is as good in all three.
    """
    writable(output, ".toml")
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
    if as_json:
        print_json(_object(advice, output))
        return
    heads = ("aggregation", "step", "exchange", "every", "bytes per step", "reaches all after", "")
    print_table(table(heads, [_row(one) for one in advice.forecasts]))
    for one in advice.forecasts:
        for doubt in one.doubts:
            warn(f"{one.aggregation}: in doubt: {doubt}")
    advised = advice.advised
    print_lines(
        f"advised: {advised.aggregation}, whose updates reach all workers soonest among steps of "
        f"at most {SLOWER:g} times the quickest",
        f"predicted, {advice.conditions}",
        *([] if output is None else [f"written to {output}"]),
    )


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


def _object(advice: Advice, output: Path | None) -> dict[str, Any]:
    return {
        "network": advice.topology.name,
        "workers": advice.topology.num_servers,
        "gradient_bytes": advice.gradient_bytes,
        "compute_s": advice.compute_s,
        "runtime": advice.runtime,
        "advised": advice.advised.aggregation,
        "conditions": advice.conditions,
        "forecasts": [
            {
                "aggregation": one.aggregation,
                "step_s": one.step_s,
                "exchange_s": one.exchange_s,
                "every": one.every,
                "step_bytes": one.step_bytes,
                "reached_after": one.reached_after,
                "on_front": one.on_front,
                "doubts": list(one.doubts),
            }
            for one in advice.forecasts
        ],
        "output": None if output is None else str(output),
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
