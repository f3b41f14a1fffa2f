"""What a message costs beside its bytes, by runtime."""

from markdown_table import sourced_table
from record import load

_EXECUTORS = {
    "mpi": "executor on MPI",
    "jax": "executor on JAX, one process",
    "torch": "executor on gloo",
}


def message_cost() -> str:
    result = load("message_cost")
    lines = [
        [f"{name} by itself", f"{1e6 * one['messages'][0]['each_s']:.2g} µs"]
        for name, one in result["own"].items()
    ]
    lines += [
        [_EXECUTORS[name], f"{1e6 * one['further_message_s'][0]:.2g} µs"]
        for name, one in result["executors"].items()
    ]
    return sourced_table(result, ["small messages, one after the other", "each takes"], lines)
