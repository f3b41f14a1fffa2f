"""Mutants of schedules and of certificates: what gradweave-check says of them.

    python benchmarks/experiments/certificate_mutants.py

Schedules: every mutant of tests/verify/mutations.py, judged by the verifier and by the checker,
which share no code; they must agree. Certificates: entries changed, dropped, added, negated, claims
raised, those of other networks put in their place; none may be accepted that claims more than a
known schedule takes, of the kind that the certificate holds for.
"""

import copy
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

sys.path.extend(str(Path(__file__).parents[up]) for up in (1, 2))

from command_line import parser_of
from mutations import SCHEDULES
from record import record

import gradweave as gw
import gradweave_check as checker
from gradweave.schedule.file import demand_to_object
from gradweave.schedulers import from_spec
from gradweave.schedulers.demand_spec import as_demand_strategies
from gradweave.topology.formats.object import topology_to_object
from tests.bounds.test_bounds_closing_cut import three_rings
from tests.verify.checked_files import accepted
from tests.verify.mutations import mutants, verdict_on
from tests.verify.oracle import Draft
from tests.verify.random_demands import random_draft

DEMANDS = 10
"""Random schedules of demands that are mutated."""
LARGE = 100
"""Transfers from which on a few alternatives of each mutation are drawn."""
MUTANTS = 3_500
"""Of each certificate."""

# network, collective, strategy: networks on which a schedule meets the bound, or nearly
ROUNDS = [
    ("bcube:n=3,k=1", "all_reduce", "symmetric"),
    ("bcube:n=3,k=1", "all_reduce", "merged:overlap=true"),
    ("ring:8", "all_gather", "grown"),
    ("torus:4x4", "reduce_scatter", "symmetric"),
    ("mesh:3x3", "all_gather", "grown"),
    ("star:4", "all_reduce", "ring"),
    ("mi250", "all_gather", "grown"),
    ("a100:boxes=4", "all_gather", "grown"),
    ("rings", "all_gather", "grown"),
]


def main() -> None:
    parser_of(__doc__).parse_args()
    schedules = list(shown(mutated_schedules()))
    certificates = list(shown(mutated_certificates()))
    total = sum(row["mutants"] for row in (*schedules, *certificates))
    disagreed = sum(row["disagreed"] for row in schedules)
    wrong = sum(row["wrongly_accepted"] for row in certificates)
    print(f"{total} mutants, {disagreed} judged differently, {wrong} wrongly accepted")
    record(
        "certificate_mutants",
        seeds=[0],
        mutants=total,
        schedule_mutants=sum(row["mutants"] for row in schedules),
        certificate_mutants=sum(row["mutants"] for row in certificates),
        disagreed=disagreed,
        wrongly_accepted=wrong,
        schedules=schedules,
        certificates=certificates,
    )
    if disagreed or wrong:
        sys.exit("see above")


def shown(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The same rows, each printed as it comes."""
    for row in rows:
        print(row, flush=True)
        yield row


def mutated_schedules() -> Iterator[dict[str, Any]]:
    """What both say of each schedule's mutants."""
    for network, strategy, collective, limit in SCHEDULES:
        if limit is not None:  # hundreds of transfers: a matter of an hour
            continue
        scheduler = from_spec(strategy)
        schedule = scheduler.schedule(gw.topology.from_spec(network), collective=collective)
        limit = 2 if schedule.num_transfers > LARGE else None
        adding = getattr(scheduler, "aggregating_switches", False)
        row = {"topology": network, "scheduler": strategy, "collective": collective}
        yield row | compared([Draft.of(schedule)], limit, adding)
    drafts = [random_draft(random.Random(seed)) for seed in range(DEMANDS)]
    yield {"topology": "random", "scheduler": "random", "collective": "demand"} | compared(
        drafts, 4, False
    )


def compared(drafts: list[Draft], most: int | None, adding: bool) -> dict[str, int]:
    """Of all mutants: how many are valid, and of how many verifier and checker disagree."""
    counts: Counter[str] = Counter()
    for draft in drafts:
        for _, mutant in mutants(draft, most):
            valid = verdict_on(mutant, aggregating_switches=adding) is None
            counts["mutants"] += 1
            counts["valid"] += valid
            counts["disagreed"] += valid != accepted(mutant, adding)
    return {name: counts[name] for name in ("mutants", "valid", "disagreed")}


def mutated_certificates() -> Iterator[dict[str, Any]]:
    """What the checker says of each certificate's mutants."""
    cases = list(certified())
    others = [json.dumps(certificate) for _, _, _, certificate, _ in cases]
    for number, (name, topology, demand, certificate, upper) in enumerate(cases):
        network = checker.Network(topology_to_object(topology))
        asked = checker.Asked(
            certificate["claim"]["collective"],
            None if demand is None else demand_to_object(demand),
            network,
        )
        draw, counts = random.Random(number), Counter[str]()
        seen = {json.dumps(certificate)}
        while counts["mutants"] < MUTANTS:
            mutant = mutated(certificate, draw, others, topology.num_nodes)
            if (text := json.dumps(mutant)) in seen:
                continue
            seen.add(text)
            counts["mutants"] += 1
            try:
                proof = checker.Proof(mutant, network, asked)
            except (checker.Wrong, *checker.BROKEN):
                counts["refused"] += 1
                continue
            claimed = Fraction(mutant["claim"]["least"])
            # One that proves what it claims is sound; of a wider scope its claim is no more either.
            counts["sound"] += claimed <= proof.least and claimed <= upper(proof)
            counts["wrongly_accepted"] += not (claimed <= proof.least and claimed <= upper(proof))
        kinds = "+".join(dict.fromkeys(step["kind"] for step in certificate["proof"]))
        counted = {key: counts[key] for key in ("mutants", "refused", "sound", "wrongly_accepted")}
        yield {"case": name, "unit": certificate["claim"]["unit"], "kinds": kinds, **counted}


Upper = Callable[[Any], Fraction | float]


def certified() -> Iterator[tuple[str, Any, Any, dict[str, Any], Upper]]:
    """Certificates, each with what a known schedule takes of which a mutant may speak."""
    for spec, collective, strategy in ROUNDS:
        topology = three_rings(9) if spec == "rings" else gw.topology.from_spec(spec)
        schedule = from_spec(strategy).schedule(topology, collective=collective)
        (found,) = gw.bounds.certificates_of(schedule)
        name = f"{spec} {collective}, {strategy}"
        yield name, topology, None, dict(found.certificate), rounds_of(schedule.rounds)
    slow = gw.topology.named_faults.Faults(slow=("0-8=0.25",))
    for name, topology, strategy in (
        ("star:8, one link slow", slow.apply_to(gw.topology.star(8)), "planned"),
        ("bcube:n=3,k=1", gw.topology.bcube(n=3, k=1), "symmetric"),
        ("dcell:n=4,k=1", gw.topology.dcell(n=4, k=1), "symmetric"),
    ):
        schedule = from_spec(strategy).schedule(topology)
        for size in (1e3, 1e9):
            found = gw.bounds.certify_seconds(topology, size)
            taken = gw.simulate.seconds(schedule, size, "events")
            case = f"{name}, {size:g} bytes"
            yield case, topology, None, dict(found.certificate), per_byte(taken, size)
    star = gw.topology.star(6)
    for name, root, strategy in (
        ("broadcast", 0, "chain"),
        ("all_reduce", None, "chain"),
        ("all_to_all", None, "direct"),
    ):
        demand = gw.schedule.collective(name, range(6), 10**7, root=root)
        found = gw.bounds.certify_demand(star, demand, gw.bounds.demand_bound(star, demand))
        schedule = as_demand_strategies(strategy)[0].schedule(star, demand)
        seconds = gw.simulate.seconds(schedule, model="events")
        upper = of_demand(seconds, schedule.rounds)
        yield f"star:6 {name}", star, demand, dict(found.certificate), upper


def of_demand(seconds: float, rounds: int) -> Upper:
    """A schedule's time, or its rounds where a mutant speaks of them."""
    return lambda proof: rounds if proof.rounds else seconds


def rounds_of(taken: int) -> Upper:
    """Rounds of a schedule with one piece a server; with more, so many times as many do."""
    return lambda proof: taken * max(proof.pieces) if proof.rounds else float("inf")


def per_byte(seconds: float, size: float) -> Upper:
    """A schedule's time; of a larger gradient at most in proportion, or later if servers are."""
    return lambda proof: (
        float("inf")
        if proof.rounds
        else seconds * max(1.0, float(proof.bytes) / size) + float(max(proof.ready))
    )


WORDS = ("cut", "groups", "depth", "late_entry", "closing_cut", "lengths", "reach", "root")
STAGES = ("all_reduce", "reduce_scatter", "all_gather", "demand")


def mutated(
    certificate: dict[str, Any], draw: random.Random, others: list[str], nodes: int
) -> dict[str, Any]:
    """A certificate with one to three things changed, or another network's."""
    if draw.random() < 0.02:
        other = json.loads(draw.choice(others))
        return other if draw.random() < 0.5 else {**other, "network": certificate["network"]}
    changed = copy.deepcopy(certificate)
    for _ in range(draw.choice((1, 1, 2, 3))):
        _change(changed, draw, nodes)
    if draw.random() < 0.5:
        claim = changed.get("claim")
        least = claim.get("least") if isinstance(claim, dict) else None
        if isinstance(least, str) and least.replace("/", "").isdigit():
            more = draw.choice((Fraction(1), Fraction(least) / draw.choice((2, 100, 10**6))))
            changed["claim"]["least"] = str(Fraction(least) + more)
    return changed


def _change(inside: Any, draw: random.Random, nodes: int) -> None:
    """Changes something within an object or list."""
    keys = list(inside) if isinstance(inside, dict) else list(range(len(inside)))
    if not keys:
        return
    key = draw.choice(keys)
    value = inside[key]
    if isinstance(value, dict | list) and draw.random() < 0.85 and value:
        return _change(value, draw, nodes)
    if draw.random() < 0.15:
        del inside[key]
    elif isinstance(inside, list) and draw.random() < 0.3:
        inside.insert(key, draw.choice((value, draw.randrange(nodes), draw.choice(inside))))
    else:
        inside[key] = _other(value, draw, nodes)


def _other(value: Any, draw: random.Random, nodes: int) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return draw.choice((value + 1, value - 1, -value, 2 * value, draw.randrange(nodes)))
    if isinstance(value, str):
        if value.replace("/", "").isdigit():
            raised = str(Fraction(value) * draw.choice((2, Fraction(3, 2), Fraction(1, 2))))
            return draw.choice((raised, "-" + value, "0", value + "1"))
        return draw.choice((*WORDS, *STAGES, "rounds", "seconds"))
    if isinstance(value, list):
        return draw.choice(([], value[::-1], value[1:], [draw.randrange(nodes)]))
    return draw.choice((None, [], 0, {}))


if __name__ == "__main__":
    main()
