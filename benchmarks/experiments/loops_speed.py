"""Processor time of strategies and of their compiled loops, now and at an earlier commit, in turns.

    python benchmarks/experiments/loops_speed.py [--before COMMIT]

Two processes, one with each checkout's code, run each strategy on each of its networks, one of them
at a time; of some runs the shortest counts, after one that compiles. Schedules must be the same.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.command_line import parser_of
from benchmarks.experiments.same_schedules import SEED, digest, networks
from benchmarks.experiments.training_speed import HERE, checkout
from benchmarks.record import record, show

BEFORE = "5f57ecf"
"""The last one whose inner loops counted references."""
WORK = {
    "packed:gradient_bytes=1e8": (44,),
    "hierarchical:gradient_bytes=1e8": (11, 26),
    "timed:restarts=4,gradient_bytes=1e8": (12, 24),
    "grown:restarts=8": (12, 24),
    "merged:tries=8": (12, 24),
    "learned:samples=4": (12,),
}
"""Strategies, and on which networks of `same_schedules`, by their places there."""
RUNS = 2


def child() -> None:
    """Reads a strategy and a network's place from each line, and prints what scheduling takes."""
    from gradweave.schedulers.spec import from_spec

    there = list(networks())
    for line in sys.stdin:
        strategy, place = json.loads(line)
        scheduler, network = from_spec(strategy), there[place]
        made = digest(scheduler.schedule(network, seed=SEED))
        runs, spent = [], defaultdict(float)
        undo = timed_kernels(spent)
        for _ in range(RUNS):
            spent.clear()
            began = time.process_time()
            scheduler.schedule(network, seed=SEED)
            runs.append((time.process_time() - began, dict(spent)))
        undo()
        seconds, loops = min(runs, key=lambda run: run[0])
        row = {"network": network.name, "schedule": made, "seconds": seconds, "loops": loops}
        print(json.dumps(row), flush=True)


def timed_kernels(spent: dict[str, float]) -> Callable[[], None]:
    """Has each loop that Python calls add its seconds by its name; undone by what it returns.

    All that is called must be compiled by then.
    """
    from numba.core.dispatcher import Dispatcher

    bound = [
        (vars(module), name, value)
        for module in list(sys.modules.values())
        if module.__name__.startswith("gradweave.")
        for name, value in list(vars(module).items())
        if isinstance(value, Dispatcher) and not value.targetoptions["no_cpython_wrapper"]
    ]

    def timed(kernel: Any) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            began = time.process_time()
            result = kernel(*arguments)
            spent[kernel.__name__] += time.process_time() - began
            return result

        return called

    for names, name, kernel in bound:
        names[name] = timed(kernel)

    def undo() -> None:
        for names, name, kernel in bound:
            names[name] = kernel

    return undo


def start(tree: Path) -> subprocess.Popen[str]:
    """A child with a checkout's code."""
    return subprocess.Popen(
        [sys.executable, __file__, "--child"],
        env=os.environ | {"PYTHONPATH": str((tree / "src").resolve())},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def measured(children: Sequence[subprocess.Popen[str]], work: dict[str, Any]) -> Iterator[Any]:
    """A row for each strategy and network, and the loop that took most of the time before."""
    for strategy, places in work.items():
        for place in places:
            before, after = (asked(each, [strategy, place]) for each in children)
            assert before["schedule"] == after["schedule"], (strategy, place)
            loop = max(before["loops"], key=before["loops"].get)
            row = {"strategy": strategy, "network": before["network"], "loop": loop}
            for when, answer in (("before", before), ("after", after)):
                row |= {f"{when}_s": answer["seconds"], f"loop_{when}_s": answer["loops"][loop]}
            yield row


def asked(process: subprocess.Popen[str], question: Any) -> Any:
    """What a child answers to a line."""
    assert process.stdin is not None and process.stdout is not None
    print(json.dumps(question), file=process.stdin, flush=True)
    return json.loads(process.stdout.readline())


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--before", default=BEFORE, help="(default: %(default)s)")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child()
        return
    with checkout(options.before) as other:
        children = [start(tree) for tree in (other, HERE)]
        rows = []
        for row in measured(children, WORK):
            rows.append(row)
            show(row)
        for each in children:
            each.kill()
    record("loops_speed", seeds=[SEED], before=options.before, rows=rows)


if __name__ == "__main__":
    main()
