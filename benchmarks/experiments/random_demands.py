"""The verifier's verdicts on random demands and their mutants, beside an independent oracle's.

    taskset -c 0 python benchmarks/experiments/random_demands.py

Demands, routes, mutations and oracle are those of tests/verify: several jobs of overlapping servers
on a network of up to eight nodes, each piece gathered along one random tree and spread along
another. Each schedule must be accepted; of each three mutants are drawn, first the mutation, then
its place.
"""

import sys
from collections import Counter, defaultdict
from random import Random

from benchmarks.command_line import parser_of
from benchmarks.record import record
from tests.verifier.mutations import Tally, judged, mutants, table, total
from tests.verifier.oracle import faults
from tests.verifier.random_demands import random_draft

DEMANDS = 10_000
MUTANTS = 3
"""Of each demand."""


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--demands", type=int, default=DEMANDS, help="how many")
    demands = parser.parse_args().demands
    seen, valid, tallies = Counter(), Tally(), defaultdict(Tally)
    for seed in range(demands):
        draw = Random(seed)
        draft = random_draft(draw)
        if broken := faults(draft):
            sys.exit(f"demand {seed}: its routes break {broken}")
        judged(valid, draft)
        asked = draft.asked
        assert asked is not None
        seen += Counter(
            jobs=1 + max(block.job for block in asked.blocks),
            blocks=len(asked.blocks),
            pieces=len(asked.block),
            transfers=len(draft.rows),
        )
        by_name = defaultdict(list)
        for name, mutant in mutants(draft, most=1, seed=seed):
            by_name[name].append(mutant)
        for name in draw.sample(sorted(by_name), MUTANTS):
            judged(tallies[name], draw.choice(by_name[name]))
    rows = {name: tallies[name] for name in sorted(tallies)}
    every = total(rows.values())
    print(table(rows))
    record(
        "random_demands",
        seeds=[0, demands - 1],
        demands={"tried": demands, "accepted": valid.still_valid, **seen},
        mutants=every.counts(),
        rows=[{"mutation": name, **tally.counts()} for name, tally in rows.items()],
    )
    if wrong := every.wrong + valid.wrong:
        sys.exit(f"verifier and oracle disagree on {wrong} schedules")


if __name__ == "__main__":
    main()
