"""Reward machines: published figures, the checker, agents without end, gossip, deep learners."""

from typing import Any

from markdown_table import sourced_table
from record import load


def _knows(row: dict[str, Any]) -> str:
    return "yes" if row["causal"] else "no"


def _number(value: float | None) -> str:
    return "never" if value is None else f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"


def machines_published() -> str:
    result = load("machines")
    lines = []
    for row in result["published"] + result.get("central", []):
        ours = row["running_median"]
        beside = [
            f"{_number(ours[steps])} ({_number(theirs)}) at {int(steps):,}"
            for steps, theirs in row["published"].items()
        ]
        together = "as one" if row["central"] else "apart"
        lines.append(
            [
                f"{row['world']}, {together}",
                _knows(row),
                str(row["trials"]),
                f"{row['steps']:,}",
                "; ".join(beside) if not row["central"] else "–",
                _number(row["final_steps"]),
                _number(row["to_90_percent"]),
                f"{row['seconds']:.0f} s",
            ]
        )
    head = [
        "world", "causal knowledge", "trials", "training steps",
        "running median of the team's steps (the authors' code)", "final",
        "steps to 90 % of the final speed", "all trials took",
    ]  # fmt: skip
    return sourced_table(result, head, lines)


def machines_checker() -> str:
    result = load("machines")
    row = result["checker"]
    line = [
        f"{row['machines']:,}", f"{row['valid']:,}", f"{row['refuted']:,}", f"{row['agree']:,}",
        f"{row['replayed']:,}", f"{row['check_seconds']:.1f} s",
    ]  # fmt: skip
    head = [
        "random machines", "valid", "refuted", f"agree with traces up to {row['longest']} events",
        "counterexamples that replay", "the checker took",
    ]  # fmt: skip
    return sourced_table(result, head, [line])


def machines_rendezvous() -> str:
    result = load("machines")
    rows = {(row["agents"], row["central"]): row for row in result["rendezvous"]}
    lines = []
    for agents in dict.fromkeys(agents for agents, _ in rows):
        apart, central = rows[agents, False], rows[agents, True]
        as_one = (
            central["refused"].split("need ")[1].split(";")[0] + ": refused"
            if "refused" in central
            else f"{_number(central['solved_after'])} of {central['steps']:,}"
        )
        lines.append(
            [str(agents), _number(apart["solved_after"]), _number(apart["final_steps"]), as_one]
        )
    head = ["agents", "apart: solved after", "steps to the goals at last", "as one: solved after"]
    return sourced_table(result, head, lines)


def machines_gossip() -> str:
    result = load("machines")
    lines = [
        [
            row["world"],
            row["network"] + (f", every {row['every']:,}" if row["every"] else ""),
            _number(row["solved_after"]),
            _number(row["solved_by_nine_tenths_after"]),
            _number(row["final_steps"]),
            f"{row['sent_bytes_per_team'] / 1e6:,.3g} MB",
        ]
        for row in result["gossip"]
    ]
    head = [
        "world", "network of eight teams", "half of the teams solve it after", "nine tenths",
        "final", "sent by a team",
    ]  # fmt: skip
    return sourced_table(result, head, lines)


def machines_deep() -> str:
    result = load("machines")
    lines = [
        [
            row["algorithm"],
            "yes" if row["machine"] else "no",
            f"{row['steps']:,}",
            ", ".join(f"{value:.2f}" for value in row["return"]),
            f"{row['length']:.1f}",
            f"{row['random']:.2f}",
            row["how"],
        ]
        for part in ("deep_iql", "deep_ippo", "deep_qmix")
        for row in result.get(part, [])
    ]
    head = [
        "generator by", "machine", "steps", "return of each seed", "steps of an episode (of 200)",
        "at random", "actions",
    ]  # fmt: skip
    return sourced_table(result, head, lines)
