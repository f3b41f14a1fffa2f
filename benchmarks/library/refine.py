"""Finer schedules for instances in seconds that are open: collectives among all servers.

    taskset -c 0 python -m benchmarks.library.refine [--only TEXT] [--by grown] [--by program]

Known schedules were searched for seconds, in few pieces. What is left above the bound is mostly how
unevenly trees load links, and how long links idle at the beginning and the end. Here trees are many
and links priced sharply, so that loads differ by a piece (`grown`), or the best known schedule's
trees and others carry what a linear program says, to a tenth of what closes an instance
(`program`); the order is improved forwards and backwards. Pieces get finer until the instance is
closed or the transfers are too many. What is better becomes the record, as in `make.py`.
"""

import argparse
import itertools
import math
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import gradweave_check as checker
from benchmarks.library.instances import Question, questions
from benchmarks.library.make import BY, FOLDER, MAX_TRANSFERS, data_of, today
from gradweave.bounds.seconds.least_seconds import least_seconds
from gradweave.common.stop import UNLIMITED
from gradweave.errors import GradweaveError, InvalidScheduleError
from gradweave.library import Library
from gradweave.library.instance import CLOSED_WITHIN, EXACT_WITHIN, Instance
from gradweave.library.judging import judge
from gradweave.library.submission import Outcome, accept, schedule_of
from gradweave.schedulers.greedy import decoding
from gradweave.schedulers.packing import tree_program
from gradweave.schedulers.packing.packed import schedule_with
from gradweave.schedulers.packing.parts import parts_with
from gradweave.schedulers.packing.paths import PathCosts
from gradweave.schedulers.repairing.known_trees import known_trees
from gradweave.schedules import Schedule
from gradweave.simulator import seconds
from gradweave.topology import Topology

TOLERANCE = 1e-4
"""How far the program's bytes may be from the least time, relative to it."""
AIM = 0.9 * float(CLOSED_WITHIN)
"""How far above the bound a schedule is to come, relative to it."""
SHARPNESS = (40.0, 160.0, 640.0)
"""Of prices, see `planned`."""
PROBE_PIECES, FIRST_PIECES = 768, 2048
MOST_OPEN = 50_000
"""Transfers of a schedule that is kept though its instance stays open."""
IMPROVEMENTS = 3
"""How often an order is played backwards and forwards again."""


class Task(NamedTuple):
    """An instance, and what is known."""

    topology: Topology
    known: Schedule
    size: int
    bound: float


class Made(NamedTuple):
    """A schedule, what it takes, and how it came about."""

    schedule: Schedule
    seconds: float
    how: str


def by_program(task: Task) -> Iterator[Made]:
    """Trees of the least time by a linear program, cut finer and finer."""
    topology, known = task.topology, task.known
    kind = known.collective
    assert kind != "demand"
    shares = "any" if kind == "all_reduce" else "equal"
    least = least_seconds(topology, 1.0, kind, shares=shares)
    search = tree_program.TreeSearch(topology, kind, least, PathCosts(topology, residual=0.0))
    for one in known_trees(known, topology, np.arange(topology.num_nodes)) or ():
        search.add_tree(one.tree)
    search.run(TOLERANCE, UNLIMITED)
    parts = parts_with(topology, kind, search.packing().trees)
    most = MAX_TRANSFERS // parts.trees.hop.shape[1]
    pieces = FIRST_PIECES
    while True:
        made = schedule_with(topology, kind, task.size, parts, [pieces], UNLIMITED)
        taken = seconds(made, task.size, "events")
        yield Made(made, taken, f"refine.py --by program, {made.pieces} pieces")
        if pieces == most:
            return
        pieces = finer(pieces, taken / task.bound - 1, most)


def by_growing(task: Task) -> Iterator[Made]:
    """Many trees of one piece each, at prices of several kinds; the best kind in finer pieces."""
    topology, kind = task.topology, task.known.collective
    assert kind != "demand"
    wiring = decoding.Wiring(topology, kind, float(task.size))
    stages = 2 if kind == "all_reduce" else 1
    most = MAX_TRANSFERS // (stages * (topology.num_servers - 1))
    tried: list[tuple[float, int]] = []
    proposals = list(_proposals(wiring, task.known))
    for number, (proposal, _) in enumerate(proposals):
        tried.append((_grown(wiring, proposal, PROBE_PIECES).seconds, number))
    for _, number in sorted(tried)[:2]:
        proposal, name = proposals[number]
        pieces = FIRST_PIECES
        while True:
            found = _grown(wiring, proposal, pieces)
            how = f"refine.py --by grown, {len(found.grove.root)} pieces, {name}"
            yield Made(found.schedule(), found.seconds, how)
            if pieces == most:
                break
            pieces = finer(pieces, found.seconds / task.bound - 1, most)


def _proposals(wiring: decoding.Wiring, known: Schedule) -> Iterator[tuple[decoding.Proposal, str]]:
    """What servers root, and what links cost, in several ways; with a name."""
    topology = wiring.topology
    even = decoding.even(topology)
    rooted = np.bincount(topology.rank[known.root], known.share, topology.num_servers)
    shares = {"even": even.shares}
    if wiring.collective == "all_reduce" and np.ptp(rooted) > 0.1 * rooted.mean():
        shares["known"] = rooted / rooted.sum()
    biases = {"no bias": even.bias, "duals": _priced(wiring)}
    for (roots, part), (prices, bias), sharpness in itertools.product(
        shares.items(), biases.items(), SHARPNESS
    ):
        made = even._replace(shares=part, bias=bias, sharpness=sharpness)
        yield made, f"{roots} roots, {prices}, sharpness {sharpness:g}"


def _priced(wiring: decoding.Wiring) -> NDArray[np.float64]:
    """[L] logarithms of the duals of the least time, over bandwidths; none is free."""
    topology, kind = wiring.topology, wiring.collective
    shares = "any" if kind == "all_reduce" else "equal"
    duals = least_seconds(topology, 1.0, kind, shares=shares).duals.link_duals.max(axis=0)
    paid = duals.astype(np.float64) * topology.bandwidth_bytes_per_s
    return np.log(np.maximum(paid / paid.max(), 1e-3))


def _grown(wiring: decoding.Wiring, proposal: decoding.Proposal, pieces: int) -> decoding.Decoded:
    grove = decoding.grow_trees(wiring, proposal, pieces, 2)
    return decoding.simulate(grove, proposal.order, 1, IMPROVEMENTS)


def finer(pieces: int, over: float, most: int) -> int:
    """In how many pieces to try next: what is above the bound falls with their size.

    Args:
        pieces: tried last.
        over: how far above the bound that came, relative to it.
        most: pieces.
    """
    return min(max(math.ceil(pieces * over / AIM), 2 * pieces), most)


WAYS = {"grown": by_growing, "program": by_program}


def refined(library: Library, question: Question, instance: Instance, way: str) -> str:
    """Keeps the first schedule that closes the instance, or the best one; a line on it."""
    bound, said, best = float(checker.exact(instance.record.bound)), "", None
    known = schedule_of(library.schedule(instance))
    assert instance.bytes is not None
    task = Task(question.topology(), known, instance.bytes, bound)
    fastest = instance.record.value * (1 - EXACT_WITHIN)
    for made in WAYS[way](task):
        said += f" {made.schedule.pieces}: {made.seconds / bound - 1:.3%}"
        closes = made.seconds / bound - 1 < CLOSED_WITHIN
        if made.seconds < fastest and (closes or made.schedule.num_transfers <= MOST_OPEN):
            best, fastest = made, made.seconds
        if closes:
            break
    if best is None:
        return said
    data = data_of(best.schedule)
    try:
        outcome = Outcome(instance, judge(data, instance), data)
        accepted = accept(library, outcome, BY, best.how, today())
    except InvalidScheduleError as error:
        return f"{said} (not kept: {error})"
    return f"{said} ({best.schedule.num_transfers} transfers, {best.how}, {accepted.status})"


def main() -> None:
    asking = argparse.ArgumentParser(description=__doc__)
    asking.add_argument("--only", action="append", help="instances whose ids have this text")
    asking.add_argument("--by", choices=list(WAYS), action="append")
    given = asking.parse_args()
    library = Library(FOLDER)
    for question in questions():
        if given.only and not any(text in question.id for text in given.only):
            continue
        if question.model == "rounds" or question.jobs is not None:
            continue
        for way in given.by or list(WAYS):
            instance = library.instances[question.id]
            if instance.status == "closed":
                break
            begun = time.process_time()
            try:
                said = refined(library, question, instance, way)
            except GradweaveError as error:
                said = f" failed: {error}"
            took = time.process_time() - begun
            print(f"{question.id}, {instance.gap:.3%}, {way}:{said} ({took:.1f} s)", flush=True)


if __name__ == "__main__":
    main()
