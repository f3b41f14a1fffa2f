"""What `learned` does for the portfolio: processor seconds to a certified optimum.

    taskset -c 0 python benchmarks/experiments/learned_warm_start.py

On the twenty well-connected random networks: one all-gather each by the portfolio without
`learned`, with it at its place, and with its best actions first. After compilation.
"""

from typing import Any

from benchmarks.command_line import parser_of
from benchmarks.random_networks import well_connected_network
from benchmarks.record import printed, record
from benchmarks.solutions import figures, solved
from gradweave.schedulers import Learned, Scheduler
from gradweave.schedulers.solving.portfolio import DEFAULT

WITHOUT = tuple(one for one in DEFAULT if not isinstance(one, Learned))
VARIANTS: dict[str, tuple[Scheduler, ...]] = {
    "without": WITHOUT,
    "in its place": DEFAULT,
    "first": (Learned(samples=0), *WITHOUT),
}
COMPILES = 0, 13
"""Networks that are solved once before, so that what they take is compiled: grown trees suffice on
the first, the second takes every strategy."""
NETWORKS, LIMIT_S = 20, 10.0


def measure(seed: int, variant: str) -> dict[str, Any]:
    """The portfolio's all-gather of one network."""
    seconds, solution = solved(
        well_connected_network(seed),
        collective="all_gather",
        schedulers=VARIANTS[variant],
        time_limit=LIMIT_S,
    )
    row = {"seed": seed, "variant": variant, **figures(solution, "rounds", "bound", "optimal")}
    return row | {"scheduler": solution.scheduler.name, "seconds": round(seconds, 4)}


def main() -> None:
    parser_of(__doc__).parse_args()
    for seed in COMPILES:
        for variant in VARIANTS:
            measure(seed, variant)
    rows = printed(measure(seed, name) for seed in range(NETWORKS) for name in VARIANTS)
    record(
        "learned_warm_start",
        limit_s=LIMIT_S,
        rows=rows,
    )


if __name__ == "__main__":
    main()
