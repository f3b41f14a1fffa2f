"""Speed and compilation time of the JAX executor."""

from markdown_table import sourced_table
from record import load


def jax_speed() -> str:
    result = load("jax_all_reduce")
    at = {row["elements"]: row for row in result["speed"]}
    head = ["8 devices, elements of float32", *(f"{elements:,}" for elements in at)]
    names = list(next(iter(at.values()))["times_best_by_hand"])
    lines = [
        [name.replace("_", " "), *(f"{row['times_best_by_hand'][name]:.2f}" for row in at.values())]
        for name in names
    ]
    return sourced_table(result, head, lines)


def jax_compilation() -> str:
    result = load("jax_all_reduce")
    networks = list(dict.fromkeys(row["network"] for row in result["compilation"]))
    at = {(row["scheduler"], row["network"]): row for row in result["compilation"]}
    schedulers = list(dict.fromkeys(row["scheduler"] for row in result["compilation"]))
    parts = ("steps_s", "trace_and_lower_s", "compile_s")
    head = [f"seconds to compile, {result['compilation_devices']} devices"]
    head += [f"`{network}`" for network in networks]
    lines = [
        [
            scheduler.replace("_", " "),
            *(
                f"{sum(at[scheduler, network][part] for part in parts):.1f}"
                if (scheduler, network) in at
                else "–"
                for network in networks
            ),
        ]
        for scheduler in schedulers
    ]
    return sourced_table(result, head, lines)
