"""Environment steps per processor second of each learner."""

from markdown_table import sourced_table
from record import load


def marl_speed() -> str:
    result = load("marl_speed")
    lines = [
        [
            row["learner"],
            f"{row['steps_per_processor_s']:,.0f}",
            *(f"{row[f'of_{beside}_by_processor']:.2f}" for beside in ("bare", "jaxmarl")),
        ]
        for row in result["rows"]
    ]
    head = [
        "one core, simple_spread",
        "steps per processor second",
        "relative to bare",
        "to JaxMARL's",
    ]
    return sourced_table(result, head, lines)
