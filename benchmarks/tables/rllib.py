"""PPO beside RLlib: training times, and the parity of both games."""

from markdown_table import source, table
from record import load


def rllib() -> str:
    result = load("rllib")
    fixed, target = f"{result['fixed_steps']:,}", f"{result['target']:g}".replace("-", "−")
    head = [
        *("PPO, two cores, median of three seeds", "steps/s", "first update, s"),
        *(f"{fixed} steps, s", "return there", f"return {target}, s", "steps to it"),
    ]
    lines = [
        [
            row["case"],
            f"{row['sustained_steps_per_s']:,.0f}",
            f"{row['first_update_s']:.1f}",
            f"{row['wall_s_to_fixed_steps']:.1f}",
            f"{row['return_at_fixed_steps']:.1f}".replace("-", "−"),
            "–" if row["wall_s_to_target"] is None else f"{row['wall_s_to_target']:.1f}",
            "–" if row["steps_to_target"] is None else f"{row['steps_to_target']:,.0f}",
        ]
        for row in sorted(result["medians"], key=lambda row: row["side"], reverse=True)
    ]

    def times(ratios: dict[str, list[float]]) -> str:
        by_seed = {key: ", ".join(f"{value:.1f}" for value in ratios[key]) for key in ratios}
        return (
            f"{by_seed['sustained_steps_per_s']} times the sustained rate; {fixed} "
            f"steps in {by_seed['wall_s_to_fixed_steps']} times less time; a return of {target} in "
            f"{by_seed['wall_s_to_target']} times less."
        )

    ratios = result["times_rllib"]
    fastest = result["fastest"]
    best = result["rllib_best"]
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
    result = load("rllib")["parity"]
    one, whole = (result[f"largest_difference_{over}"] for over in ("of_one_step", "in_an_episode"))
    head = ["largest difference", *one]
    lines = [
        ["one step from the same state", *(f"{value:.1e}" for value in one.values())],
        ["25 steps from the same start", *(f"{value:.1e}" for value in whole.values())],
    ]
    share = result["share_of_steps_with_agents_touching"]
    return (
        f"{table(head, lines)}\n\n"
        f"{result['episodes']} episodes of random actions, {result['steps']:,} steps, agents touch "
        f"in {share:.1%} of them."
    )
