"""Tables of agents that need more than a template: `agents.toml` has the rest."""

from typing import Any

import numpy as np

from benchmarks.markdown_table import source, sourced_table, table
from benchmarks.record import load
from benchmarks.table_templates import SHOWN, filled, grouped

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
PUBLISHED = {
    "independent": "utilisation .96, CV 1.57, .00 to .88",
    "FEN": "utilisation .90, CV .17, .18 to .28",
}
"""Job scheduling by Jiang and Lu 2019, cited at second hand."""


def marl_lines() -> str:
    """Returns of reference policies, and upper bounds."""
    result = load("marl_lines")
    lines = [
        f"`{row['env']}` | {row['what']} | {row['return']:.3g}"
        f"{' = ' + str(row['exactly']) if 'exactly' in row else ''} | {row['how']}"
        for row in result["rows"]
    ]
    return sourced_table(result, " | agents | return | source", lines)


def marl_learning() -> str:
    """Returns of trained policies, beside the reference policies of `marl_lines`."""
    result, lines = load("marl_learning"), []
    for row in result["rows"]:
        simple, best = _reference_returns(row["command"])
        lines += filled(
            f"{{case}} | {{steps:,}} | {{return.random.mean:.3g}} | {simple} | {best} | "
            "{target:.3g} | {earned.mean:.3g} | {interval} | {earned.by_seed:each .3g} | "
            "{episodes:,} | {judged} | {reached:?yes/**no**}",
            [row | {"earned": row["return"][row["judged"]], "interval": _interval(row)}],
        )
    head = " | steps | at random | simple policy | optimum | target | mean | 95 % | each seed"
    text = table(f"{head} | episodes | actions | reached", lines)
    hidden = [row for row in result["rows"] if row["return"].get("hidden")]
    each = "; ".join(filled("{case}: {return.hidden.by_seed:each .3g}", hidden))
    note = f"With the light hidden, in the order of the seeds: {each}.\n\n" if hidden else ""
    return f"{text}\n\n{note}{source(result)}"


def _interval(row: dict[str, Any]) -> str:
    earned = row["return"][row["judged"]]
    return " to ".join(f"{value:.3g}" for value in earned.get("interval", [])) or "–"


def _reference_returns(command: str) -> tuple[str, str]:
    """Returns of a simple policy and of the best, in the environment that a command trains on."""
    words = command.split()
    env = words[words.index("--env") + 1]
    rows = load("marl_lines")["rows"]
    returns = {(row["env"], row["what"]): f"{row['return']:.3g}" for row in rows}
    simple = returns.get((env, SIMPLE_POLICIES.get(env)), "–")
    best = returns.get((env, BEST_RETURNS.get(env)), "–")
    return simple, f"≤ {best}" if env == "overcooked" else best


def marl_matrix() -> str:
    """Which algorithm runs on which environment, and why one does not."""
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
        " | ".join([f"`{env}`", *(cell(env, name) for name in names)])
        for env in dict.fromkeys(row["env"] for row in result["rows"])
    ]
    notes = "\n".join(f"{i}. {reason}" for i, reason in enumerate(reasons, 1))
    return f"{table(' | '.join(['', *names]), lines)}\n\n{notes}\n\n{source(result)}"


def rllib() -> str:
    """PPO beside RLlib: training times, and how many times less they are."""
    result = load("rllib")
    fixed, target = f"{result['fixed_steps']:,}", f"{result['target']:g}".replace("-", "−")
    medians = sorted(result["medians"], key=lambda row: row["side"], reverse=True)
    lines = filled(
        "{case} | {sustained_steps_per_s:,.0f} | {first_update_s:.1f} | "
        "{wall_s_to_fixed_steps:.1f} | −{-return_at_fixed_steps:.1f} | {wall_s_to_target:.1f} | "
        "{steps_to_target:,.0f}",
        medians,
    )
    head = "PPO, two cores, median of three seeds | steps/s | first update, s | "
    head += f"{fixed} steps, s | return there | return {target}, s | steps to it"

    def times(ratios: dict[str, list[float]]) -> str:
        by_seed = {key: ", ".join(f"{value:.1f}" for value in ratios[key]) for key in ratios}
        return (
            f"{by_seed['sustained_steps_per_s']} times the sustained rate; {fixed} "
            f"steps in {by_seed['wall_s_to_fixed_steps']} times less time; a return of {target} in "
            f"{by_seed['wall_s_to_target']} times less."
        )

    ratios, fastest, best = result["times_rllib"], result["fastest"], result["rllib_best"]
    of_rate, of_time = best["sustained_steps_per_s"], best["wall_s_to_target"]
    assert best["wall_s_to_fixed_steps"] == of_time
    against = [f"Beside {of_rate} in the rate, and {of_time}, which is sooner there, in times:\n"]
    against += [f"- {fastest[run]}: {times(ratios[run])}" for run in ("first_run", "later_run")]
    versions = result["sources"][result["source"]]["versions"]
    packages = {name: versions[name] for name in ("python", "jax", "jaxmarl")}
    packages |= {name: versions[f"rllib side: {name}"] for name in ("ray", "torch", "mpe2")}
    comparison = "\n".join(against)
    return f"{table(head, lines)}\n\n{comparison}\n\n{source(result, packages=packages)}"


def rllib_parity() -> str:
    """Whether the game is the same on both sides."""
    result = load("rllib")["parity"]
    one, whole = (result[f"largest_difference_{over}"] for over in ("of_one_step", "in_an_episode"))
    lines = [
        " | ".join([name, *(f"{value:.1e}" for value in values.values())])
        for name, values in (
            ("one step from the same state", one),
            ("25 steps from the same start", whole),
        )
    ]
    text = table(" | ".join(["largest difference", *one]), lines)
    share = result["share_of_steps_with_agents_touching"]
    return (
        f"{text}\n\n{result['episodes']} episodes of random actions, {result['steps']:,} steps, "
        f"agents touch in {share:.1%} of them."
    )


def machines_published() -> str:
    """Reward machines beside the published figures."""
    result, lines = load("machines"), []
    for row in result["published"] + result.get("central", []):
        beside = "; ".join(
            f"{_steps(row['running_median'][steps])} ({_steps(theirs)}) at {int(steps):,}"
            for steps, theirs in row["published"].items()
        )
        named = {"beside": "–" if row["central"] else beside}
        named |= {key: _steps(row[key]) for key in ("final_steps", "to_90_percent")}
        last = np.array(list(row["taken"].values())[-10:]).mean(0) if "taken" in row else None
        named["range"] = "–" if last is None else f"{_steps(last[0])} to {_steps(last[-1])}"
        lines += filled(
            "{world}, {central:?as one/apart} | {causal:?yes/no} | {trials} | {steps:,} | "
            "{beside} | {final_steps} | {range} | {to_90_percent} | {seconds:.0f} s",
            [row | named],
        )
    head = "world | causal knowledge | trials | training steps"
    head += " | running median of the team's steps (the authors' code) | final"
    head += " | 90 % of trials, last ten tests | steps to 90 % of the final speed | all trials took"
    return sourced_table(result, head, lines)


def _steps(value: float | None) -> str:
    return "never" if value is None else SHOWN["short"](value)


def machines_rendezvous() -> str:
    """How teams that meet learn apart, and as one."""
    result, lines = load("machines"), []
    for apart, central in grouped(result["rendezvous"], ["agents"]):
        as_one = (
            central["refused"].split("need ")[1].split(";")[0] + ": refused"
            if "refused" in central
            else f"{_steps(central['solved_after'])} of {central['steps']:,}"
        )
        solved, final = _steps(apart["solved_after"]), _steps(apart["final_steps"])
        lines.append(f"{apart['agents']} | {solved} | {final} | {as_one}")
    head = "agents | apart: solved after | steps to the goals at last | as one: solved after"
    return sourced_table(result, head, lines)


def machines_gossip() -> str:
    """Teams that exchange what they learn."""
    result, lines = load("machines"), []
    keys = ("solved_after", "solved_by_nine_tenths_after", "final_steps")
    for row in result["gossip"]:
        every = f", every {row['every']:,}" if row["every"] else ""
        counts = " | ".join(_steps(row[key]) for key in keys)
        sent = f"{row['sent_bytes_per_team'] / 1e6:,.3g} MB"
        lines.append(f"{row['world']} | {row['network']}{every} | {counts} | {sent}")
    head = "world | network of eight teams | half of the teams solve it after | nine tenths"
    return sourced_table(result, f"{head} | final | sent by a team", lines)


FEN_LINE = (
    "{variant} | {count(by_seed)} | {steps:,} | {mean.utilisation:.3f} | "
    "{mean.variation:.3f} ({max(by_seed.variation):.3f}) | {mean.least:.3f} | "
    "{mean.greatest:.3f} | {mean.jain:.3f} | {mean.processor_s / 60:.1f} | "
)
FEN_HEAD = (
    "variant | seeds | steps | utilisation | coefficient of variation (worst seed) | least | "
    "greatest | Jain's index | processor minutes a seed | "
)


FEN_PRODUCT = "{mean(by_seed.product):.3f} ({by_seed.product:range .3f}) | {front:?yes/no}"
FEN_PRODUCT_HEAD = "utilisation × Jain's index | on the front"


def _with_front(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each row with whether no other has both more utilisation and less variation."""

    def of(row: dict[str, Any]) -> dict[str, float]:
        return row.get("mean", row)

    def beaten(row: dict[str, Any]) -> bool:
        return any(
            of(other)["utilisation"] > of(row)["utilisation"]
            and of(other)["variation"] < of(row)["variation"]
            for other in rows
        )

    return [row | {"front": not beaten(row)} for row in rows]


def fairness_job() -> str:
    """Equal searches in job scheduling, and scripts."""
    return _searched_alike("job_scheduling")


def fairness_matthew() -> str:
    """Equal searches in the Matthew effect, and scripts."""
    return _searched_alike("matthew_effect")


def fairness_plant() -> str:
    """Equal searches in the manufacturing plant, and scripts."""
    return _searched_alike("manufacturing_plant")


FAIRNESS_LINE = (
    "{method} | {seeds} | {rate:g} | {entropy:g} | {utilisation:.3f} | "
    "{variation:.3f} ({worst_variation:.3f}) | {least:.3f} | {greatest:.3f} | {jain:.3f} | "
    "{product:.3f} ({least_product:.3f} to {greatest_product:.3f}) | {front:?yes/no} | "
    "{gossip_bytes:.0f}"
)
SCRIPT_LINE = (
    "*{script}* | – | – | – | {utilisation:.3f} | {variation:.3f} | {least:.3f} | "
    "{greatest:.3f} | {jain:.3f} | {product:.3f} | {front:?yes/no} | –"
)
FAIRNESS_HEAD = (
    "method (*script*) | seeds | rate | entropy | utilisation | "
    "coefficient of variation (worst seed) | least | greatest | Jain's index | "
    "utilisation × Jain's index | on the front | bytes an agent sends a step"
)


def _searched_alike(world: str) -> str:
    """A world's methods and scripts; the front is that of all of them."""
    result = load("fairness")
    learned = [row for row in result["rows"] if row["world"] == world]
    scripts = [row for row in load("fen")["scripted"] if row["world"] == world]
    rows = _with_front(learned + scripts)
    lines = filled(FAIRNESS_LINE, rows[: len(learned)]) + filled(SCRIPT_LINE, rows[len(learned) :])
    head, published = FAIRNESS_HEAD, [PUBLISHED.get(row["method"], "–") for row in learned]
    if world == "job_scheduling":
        lines = [
            f"{line} | {figures}"
            for line, figures in zip(lines, published + ["–"] * len(scripts), strict=True)
        ]
        head += " | published"
    return sourced_table(result, head, lines, learned)


def fen_job() -> str:
    """Fairness by hierarchy in job scheduling."""
    result = load("fen")
    lines = filled(
        FEN_LINE + FEN_PRODUCT + " | {mean.gossip_bytes:.0f}", _with_front(result["job"])
    )
    head = f"{FEN_HEAD}{FEN_PRODUCT_HEAD} | bytes an agent sends a step"
    return sourced_table(result, head, lines, result["job"])


def fen_others() -> str:
    """The same in two other worlds."""
    result = load("fen")
    worlds = {
        "matthew": "Matthew effect",
        "matthew_before": "Matthew effect, the ghost's place",
        "plant": "manufacturing plant",
    }
    shown = {name: result.get(part, []) for part, name in worlds.items()}
    line = FEN_LINE + FEN_PRODUCT
    lines = [
        f"{name}: {one}" for name, rows in shown.items() for one in filled(line, _with_front(rows))
    ]
    head = f"{FEN_HEAD}{FEN_PRODUCT_HEAD}"
    return sourced_table(result, head, lines, list(shown.values()))
