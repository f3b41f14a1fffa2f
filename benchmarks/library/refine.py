"""Cuts trees of records finer, or packs them anew, for instances in seconds that are open.

    taskset -c 0 python benchmarks/library/refine.py --only TEXT [--settled]

Known schedules were searched for seconds, in few pieces. Here the trees of an instance's best one,
and those that column generation finds beside, carry what a linear program says, to a tolerance that
is a tenth of what closes an instance; then they are cut finer. What is better becomes the record,
as in `make.py`. `--settled` gives up a little time for shares that are alike and flat trees.
"""

import argparse
import dataclasses
import math
import time

import numpy as np
from instances import Question, questions
from make import BY, FOLDER, MAX_TRANSFERS, data_of, today

import gradweave_check as checker
from gradweave.bounds.least_seconds import least_seconds
from gradweave.errors import GradweaveError, InvalidScheduleError
from gradweave.library import Instance, Library
from gradweave.library.instance import CLOSED_WITHIN, EXACT_WITHIN
from gradweave.library.judging import judge
from gradweave.library.submission import Outcome, accept, schedule_of
from gradweave.schedule import Schedule
from gradweave.schedulers.unequal import packing
from gradweave.schedulers.unequal.known_trees import known_trees
from gradweave.schedulers.unequal.linear_program import Tree
from gradweave.schedulers.unequal.packed import schedule_with
from gradweave.schedulers.unequal.parts import parts_with
from gradweave.schedulers.unequal.paths import Paths
from gradweave.simulate import seconds
from gradweave.stop import Stop
from gradweave.topology import Topology

TOLERANCE = 1e-4
"""How far the trees' bytes may be from the least time, relative to it."""
AIM = 0.9 * float(CLOSED_WITHIN)
"""How far above the bound a cut is to come, relative to it."""
FIRST_PIECES = 2048
MOST_OPEN = 50_000
"""Transfers of a schedule that is kept though its instance stays open."""
SLACK = 1e-4
"""Time given up for shares that are alike and flat trees, relative to the least."""


def packed(topology: Topology, known: Schedule, size: int, settled: bool, stop: Stop) -> list[Tree]:
    """Trees that carry the gradient in about the least time."""
    kind = known.collective
    assert kind != "demand"
    shares = "any" if kind == "all_reduce" else "equal"
    least = least_seconds(topology, 1.0, kind, shares=shares)
    search = packing.TreeSearch(topology, kind, least, Paths(topology, residual=0.0))
    for one in known_trees(known, topology, np.arange(topology.num_nodes)) or ():
        search.add_tree(one.tree)
    search.run(TOLERANCE, stop)
    if settled:
        search.settle(size, stop)
    found = search.packing()
    print(f"  {len(found.trees)} trees, {found.seconds_per_byte * size:.9g} s of bytes", flush=True)
    return list(found.trees)


def refined(
    library: Library, question: Question, instance: Instance, settled: bool, limit_s: float
) -> str:
    """Keeps the schedule of as few pieces as close the instance, or the best there is; a line."""
    topology, size = question.topology(), instance.bytes
    known = schedule_of(library.schedule(instance))
    assert size is not None and known.collective != "demand"
    trees = packed(topology, known, size, settled, Stop.after(limit_s))
    parts = parts_with(topology, known.collective, trees)
    most = MAX_TRANSFERS // parts.trees.hop.shape[1]
    best, fastest, pieces, said = None, instance.record.value * (1 - EXACT_WITHIN), FIRST_PIECES, ""
    bound = float(checker.exact(instance.record.bound))
    while True:
        made = schedule_with(topology, known.collective, size, parts, [pieces], Stop.after(None))
        taken = seconds(made, size, "events")
        over = taken / bound - 1
        said += f" {pieces}: {over:.3%}"
        if taken < fastest:
            best, fastest = made, taken
        if over < CLOSED_WITHIN or pieces == most:
            break
        # what is above the bound falls as pieces get finer
        pieces = min(max(math.ceil(pieces * over / AIM), 2 * pieces), most)
    closes = fastest / bound - 1 < CLOSED_WITHIN
    if best is None or (best.num_transfers > MOST_OPEN and not closes):
        return said
    data = data_of(best)
    outcome = Outcome(instance, judge(data, instance), data)
    how = f"refine.py, {best.pieces} pieces" + (", settled" if settled else "")
    try:
        accepted = accept(library, outcome, BY, how, today())
    except InvalidScheduleError as error:
        return f"{said} (not kept: {error})"
    return f"{said} ({best.num_transfers} transfers, {accepted.status})"


def main() -> None:
    asking = argparse.ArgumentParser(description=__doc__)
    asking.add_argument("--only", default="", help="instances whose ids have this text")
    asking.add_argument("--settled", action="store_true")
    asking.add_argument("--time-limit", type=float, default=300.0)
    given = asking.parse_args()
    library = Library(FOLDER)
    packing.TUNING = dataclasses.replace(packing.TUNING, slack=SLACK)
    for question in questions():
        instance = library.instances.get(question.id)
        if given.only not in question.id or instance is None or instance.status == "closed":
            continue
        if question.model == "rounds" or question.jobs is not None:
            continue
        begun = time.process_time()
        try:
            said = refined(library, question, instance, given.settled, given.time_limit)
        except GradweaveError as error:
            said = f" failed: {error}"
        took = time.process_time() - begun
        print(f"{question.id}, was {instance.gap:.3%}:{said} ({took:.1f} s)", flush=True)


if __name__ == "__main__":
    main()
