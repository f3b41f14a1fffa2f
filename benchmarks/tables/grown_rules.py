"""Mean rounds of one grown run under each selection rule."""

from markdown_table import number, sourced_table
from record import load


def grown_rules() -> str:
    result = load("grown_rules")
    labels = list(dict.fromkeys(row["label"] for row in result["rows"]))
    rules = list(dict.fromkeys(row["rule"] for row in result["rows"]))
    at = {(row["rule"], row["label"]): row for row in result["rows"]}
    lines = [
        [
            rule,
            *(
                f"{at[rule, label]['mean']:.1f} ({at[rule, label]['share_at_bound']:.0%})"
                for label in labels
            ),
        ]
        for rule in rules
    ]
    lines.append(["bound", *(number(at[rules[0], label]["bound"]) for label in labels)])
    head = ["mean (share of runs at the bound)", *labels]
    return sourced_table(result, head, lines)
