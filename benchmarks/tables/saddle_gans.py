"""GANs over gossip where each worker sees one mode: what they cover."""

from markdown_table import sourced_table
from record import load


def saddle_gans() -> str:
    result = load("saddle_gans")
    lines = []
    for run in result["runs"]:
        covered = [row["covered"] for row in run["rows"]]
        precision = sorted(row["precision"] for row in run["rows"])
        every = sum(number == run["modes"] for number in covered)
        lines.append(
            [
                run["method"],
                f"{run['modes']} on {run['network']}",
                f"{every} of {len(covered)}",
                f"{min(covered)} to {max(covered)}",
                f"{precision[0]:.2f} to {precision[-1]:.2f}",
                f"{run['bytes'] / 2**20:,.0f}",
            ]
        )
    head = ["method", "modes", "all covered, seeds", "covered", "precision", "MiB sent by a worker"]
    return sourced_table(result, head, lines)
