"""Processor time of `gradweave train` beside JaxMARL's script."""

from markdown_table import sourced_table
from record import load


def marl_commands() -> str:
    result = load("marl_commands")
    names = {
        "jaxmarl": "`python jaxmarl_ppo.py`",
        "first run": "`gradweave train`, first run",
        "later run": "`gradweave train`, later runs",
    }
    lines = [
        [
            names[row["program"]],
            f"{row['processor_s']['median']:.0f} s",
            f"{row['processor_s']['times_as_quick_as_jaxmarl']:.2f}",
        ]
        for row in result["rows"]
    ]
    head = [f"{result['steps']:,} steps, one core", "processor time", "speed-up"]
    return sourced_table(result, head, lines)
