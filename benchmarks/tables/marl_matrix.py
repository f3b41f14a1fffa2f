"""Which algorithm runs on which environment, and why one does not."""

from markdown_table import source, table
from record import load


def marl_matrix() -> str:
    result = load("marl_matrix")
    names = list(dict.fromkeys(row["algorithm"] for row in result["rows"]))
    reasons: list[str] = []

    def cell(env: str, name: str) -> str:
        both = [row for row in result["rows"] if (row["env"], row["algorithm"]) == (env, name)]
        if all(row["runs"] for row in both):
            return "runs"
        reason = next(row["reason"] for row in both if not row["runs"])
        reason = reason.removeprefix(f"{name}: ").replace(env, "this environment")
        if reason not in reasons:
            reasons.append(reason)
        return f"({reasons.index(reason) + 1})"

    lines = [
        [f"`{env}`", *(cell(env, name) for name in names)]
        for env in dict.fromkeys(row["env"] for row in result["rows"])
    ]
    notes = "\n".join(f"{i}. {reason}" for i, reason in enumerate(reasons, 1))
    return f"{table(['', *names], lines)}\n\n{notes}\n\n{source(result)}"
