"""The verifier's verdicts on all mutants of small schedules, beside an independent oracle's.

    python benchmarks/experiments/mutations.py

Mutations and oracle are those of tests/verify. Every alternative of every mutation is tried at
every transfer; on the two schedules of hundreds of transfers a few are drawn.
"""

import sys

import gradweave as gw
from benchmarks.command_line import parser_of
from benchmarks.record import record
from gradweave.schedulers.spec import from_spec
from tests.verifier.mutations import judge, table, total

# network, strategy, collective, alternatives per mutation and transfer (None: all)
SCHEDULES = [
    ("bcube:n=3,k=1", "merged", "all_reduce", None),
    ("bcube:n=3,k=1", "merged:overlap=true", "all_reduce", None),
    ("complete:4", "merged", "all_reduce", None),
    ("dcell:n=4,k=1", "parameter_server", "reduce_scatter", 4),
    ("fat_tree:2", "merged:aggregating_switches=true", "all_reduce", None),
    ("fat_tree:4", "merged:aggregating_switches=true", "reduce_scatter", 4),
    ("mesh:2x3", "merged", "all_gather", None),
    ("ring:4,capacity=2", "merged:overlap=true", "all_reduce", None),
    ("ring:5", "ring", "all_reduce", None),
    ("ring:5", "ring", "reduce_scatter", None),
    ("star:4", "central_parameter_server", "all_reduce", None),
    ("star:4", "merged:aggregating_switches=true", "all_reduce", None),
]


def main() -> None:
    parser_of(__doc__).parse_args()
    schedules, by_mutation = [], {}
    for network, strategy, collective, limit in SCHEDULES:
        scheduler = from_spec(strategy)
        schedule = scheduler.schedule(gw.topology.from_spec(network), collective=collective)
        aggregating = getattr(scheduler, "aggregating_switches", False)
        tallies = judge(schedule, most=limit, aggregating_switches=aggregating)
        case = {"topology": network, "scheduler": strategy, "collective": collective}
        size = {"transfers": schedule.num_transfers, "alternatives": limit or "all"}
        schedules.append({**case, **size, **total(tallies.values()).counts()})
        print(schedules[-1], flush=True)
        for name, tally in tallies.items():
            by_mutation.setdefault(name, []).append(tally)
    joined = {name: total(tallies) for name, tallies in sorted(by_mutation.items())}
    print(table(joined))
    record(
        "mutations",
        seeds=[0],
        schedules=schedules,
        rows=[{"mutation": name, **tally.counts()} for name, tally in joined.items()],
    )
    if wrong := sum(tally.wrong for tally in joined.values()):
        sys.exit(f"verifier and oracle disagree on {wrong} mutants")


if __name__ == "__main__":
    main()
