"""Returns of trained policies, beside the reference policies of `marl_lines`."""

from markdown_table import source, table
from record import load

SIMPLE_POLICIES = {
    "switch_riddle": "never touches the switch, at best",
    "coin_game:shared_rewards=true": "each to its own coin",
    "MPE_simple_spread_v3": "each to a landmark of its own",
}
"""Of `marl_lines`: a simple policy by environment."""
BEST_RETURNS = {
    "switch_riddle": "knows all",
    "coin_game:shared_rewards=true": "the best",
    "overcooked": "one pot allows at most",
}
"""Of `marl_lines`: the optimum, or an upper bound."""


def marl_learning() -> str:
    result = load("marl_learning")
    lines = []
    for row in result["rows"]:
        earned = row["return"][row["judged"]]
        simple, best = _reference_returns(row["command"])
        interval = "–"
        if "interval" in earned:
            interval = " to ".join(f"{value:.3g}" for value in earned["interval"])
        lines.append(
            [
                row["case"],
                f"{row['steps']:,}",
                f"{row['return']['random']['mean']:.3g}",
                simple,
                best,
                f"{row['target']:.3g}",
                f"{earned['mean']:.3g}",
                interval,
                ", ".join(f"{value:.3g}" for value in earned["by_seed"]),
                f"{row['episodes']:,}",
                row["judged"],
                "yes" if row["reached"] else "**no**",
            ]
        )
    head = ["", "steps", "at random", "simple policy", "optimum", "target"]
    head += ["mean", "95 %", "each seed", "episodes", "actions", "reached"]
    hidden = [
        f"{row['case']}: {', '.join(f'{value:.3g}' for value in hidden['by_seed'])}"
        for row in result["rows"]
        if (hidden := row["return"].get("hidden"))
    ]
    note = f"With the light hidden, in the order of the seeds: {'; '.join(hidden)}.\n\n"
    return f"{table(head, lines)}\n\n{note if hidden else ''}{source(result)}"


def _reference_returns(command: str) -> tuple[str, str]:
    """Returns of a simple policy and of the best, in the environment that a command trains on."""
    words = command.split()
    env = words[words.index("--env") + 1]
    rows = load("marl_lines")["rows"]
    returns = {(row["env"], row["what"]): f"{row['return']:.3g}" for row in rows}
    simple = returns.get((env, SIMPLE_POLICIES.get(env)), "–")
    best = returns.get((env, BEST_RETURNS.get(env)), "–")
    return simple, f"≤ {best}" if env == "overcooked" else best
