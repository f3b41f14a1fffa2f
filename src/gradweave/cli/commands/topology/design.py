"""``gradweave topology design``: the best network of directly linked servers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from gradweave.cli.answers import Answer
from gradweave.cli.console import Progress, Table, fields_of
from gradweave.cli.groups import command
from gradweave.cli.options import SECONDS, SizeType, option, seed_option, written_option
from gradweave.cli.solving import ended_by_ctrl_c
from gradweave.common.wording import counted
from gradweave.design.candidates import MOST_SERVERS
from gradweave.design.search import TIME_LIMIT_S, Design, Proposal
from gradweave.design.search import design as compare
from gradweave.errors import OptionError
from gradweave.topology.formats.files import save
from gradweave.topology.topology import Link
from gradweave.topology.units import (
    ROUNDING,
    format_bandwidth,
    format_seconds,
    format_size,
    parse_bandwidth,
    parse_latency,
    parse_overhead,
)


@command(examples=["16 4 1MB", "64 6 25MB --bandwidth 400Gbit/s --output best.json"])
@click.argument("servers", type=click.IntRange(2, MOST_SERVERS))
@click.argument("degree", type=click.IntRange(1, 1024))
@click.argument("gradient_bytes", metavar="SIZE", type=SizeType())
@option("--bandwidth", "Bandwidth of a link.  [default: 100Gbit/s]", metavar="RATE")
@option("--latency", "Latency of a link.  [default: 1us]", metavar="TIME")
@option("--overhead", "Cost of a message on a link.  [default: 1us]", metavar="TIME")
@seed_option
@option("--time-limit", "End all searches after this time.", SECONDS, default=TIME_LIMIT_S)
@written_option(
    "--output", "Write the best network to this file, .json or .graphml.", (".json", ".graphml")
)
def design(
    servers: int,
    degree: int,
    gradient_bytes: int,
    bandwidth: str | None,
    latency: str | None,
    overhead: str | None,
    seed: int,
    time_limit: float,
    output: Path | None,
) -> Answer:
    """Compare networks of directly linked servers.

    SERVERS have at most DEGREE links each; SIZE is the size of the gradient. Candidates are tori,
    rings, hypercubes, HyperX, Slim Fly, Xpander, the best circulants, a random graph and a random
    graph with swapped links, of exactly that many servers, ranked by the time of an all-reduce. The
    first line bounds all networks.
    """
    if degree == 1 and servers > 2:
        raise OptionError(f"expected a degree of 2 or more for {servers} servers, got 1")
    default = Link()
    link = Link(
        parse_bandwidth(bandwidth) if bandwidth else default.bandwidth_bytes_per_s,
        parse_latency(latency) if latency else default.latency_s,
        overhead_s=parse_overhead(overhead) if overhead else default.overhead_s,
    )
    with Progress("designing") as progress, ended_by_ctrl_c(progress) as interrupt:
        found = compare(
            servers,
            degree,
            gradient_bytes,
            link=link,
            seed=seed,
            time_limit=time_limit,
            interrupt=interrupt,
            progress=progress,
        )
    if output is not None:
        save(found.proposals[0].candidate.network, output)
    heads = ["network", "links", "diameter", "mean hops", "time", "bound", "gap"]
    shown = Table(heads, map(_row, found.proposals), list(_notes(found)))
    return Answer(_as_object(found, seed), [_bound_line(found), shown]).written_to(output)


def _bound_line(found: Design) -> str:
    bound, link = found.bound, found.link
    return (
        f"every network of {found.servers} servers, at most {counted(found.degree, 'link')} of "
        f"{format_bandwidth(link.bandwidth_bytes_per_s)} each way per server, no switches, sums "
        f"made by servers: {format_size(found.gradient_bytes)} take at least "
        f"{format_seconds(bound.seconds)} (bytes {format_seconds(bound.bytes_s)}, "
        f"{counted(bound.hops, 'hop')} {format_seconds(bound.latency_s)})"
    )


def _row(proposal: Proposal) -> list[str]:
    candidate = proposal.candidate
    return [
        candidate.network.name,
        str(candidate.degree),
        str(candidate.diameter),
        f"{candidate.mean_hops:.3f}",
        format_seconds(proposal.seconds),
        format_seconds(proposal.bound_s),
        f"{100 * (proposal.seconds / proposal.bound_s - 1):.1f}%",
    ]


def _notes(found: Design) -> Iterator[str]:
    best, torus = found.proposals[0], found.torus
    name = best.candidate.network.name
    if torus is not None:
        gain = torus.seconds / best.seconds - 1
        simple = torus.candidate.network.name
        if gain > ROUNDING:
            yield f"{name} is {100 * gain:.1f}% faster than {simple}"
        else:
            yield f"no candidate is faster than {simple}"
    yield (
        f"no network can be more than {100 * (best.seconds / found.bound.seconds - 1):.1f}% faster "
        f"than {name}"
    )
    timed = sum(one.solution.stopped in ("time", "interrupt") for one in found.proposals)
    if timed:
        yield f"{counted(timed, 'search', 'searches')} of {len(found.proposals)} ended early"
    if found.unsolved:
        yield f"{counted(len(found.unsolved), 'network')} not compared: interrupted"
    for one in found.proposals:
        if one.candidate.also:
            yield f"{one.candidate.network.name} is also {', '.join(one.candidate.also)}"


def _as_object(found: Design, seed: int) -> dict[str, Any]:
    bound, link = found.bound, found.link
    return {
        **fields_of(found, "servers", "degree", "gradient_bytes"),
        "seed": seed,
        "link": fields_of(link, "bandwidth_bytes_per_s", "latency_s", "overhead_s"),
        "every_network": {
            **fields_of(bound, "seconds", "bytes_s", "latency_s"),
            "diameter": bound.hops,
            "mean_hops": bound.total_hops / (found.servers - 1),
        },
        "networks": [
            {
                "topology": one.candidate.network.name,
                **fields_of(one.candidate, "also", "family", "degree", "bundle", "diameter"),
                "mean_hops": one.candidate.mean_hops,
                "seconds": one.seconds,
                "seconds_bound": one.bound_s,
                "stopped": one.solution.stopped,
            }
            for one in found.proposals
        ],
        "not_compared": [one.network.name for one in found.unsolved],
    }
