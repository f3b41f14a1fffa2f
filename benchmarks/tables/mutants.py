"""How many injected faults the tests of each room notice, and which they do not."""

from markdown_table import sourced_table, table
from record import load


def mutants_by_room() -> str:
    result = load("mutants")
    lines, total = [], [0, 0, 0]
    for room in dict.fromkeys(row["room"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["room"] == room]
        alive = [row for row in rows if row["noticed_by"] is None]
        open_ = sum(row["why"] == "not explained" for row in alive)
        counts = [len(rows), len(rows) - len(alive), open_]
        total = [a + b for a, b in zip(total, counts, strict=True)]
        lines.append([room, *map(str, counts)])
    lines.append(["**all**", *(f"**{count}**" for count in total)])
    head = ["room", "faults", "noticed", "not noticed, unexplained"]
    return sourced_table(result, head, lines)


def mutants_not_noticed() -> str:
    rows = [row for row in load("mutants")["rows"] if row["noticed_by"] is None]
    head = ["fault that no test of its room notices", "why"]
    return table(head, [[f"`{_escaped(row['edit'])}`", row["why"]] for row in rows])


def _escaped(text: str) -> str:
    return text.removeprefix("src/gradweave/").replace("|", r"\|")
