"""Mutants of schedules and of certificates: what two checkers and the verifier say of them.

    python benchmarks/experiments/certificate_mutants.py

Schedules: every mutant of tests/verifier/mutations.py, and files whose shares or links are changed,
judged by the verifier and by both checkers, gradweave_check.py and checkers/gradweave_check.rs,
which share no code; all must agree. Certificates: entries changed, dropped, added, negated, claims
raised, those of other networks put in their place, or capacities of their network changed; both
checkers must agree, and none may accept one that claims more than a known schedule takes, of the
kind that the certificate holds for.
"""

import copy
import json
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import gradweave as gw
import gradweave_check as checker
from benchmarks.command_line import parser_of
from benchmarks.experiments.mutations import SCHEDULES
from benchmarks.record import record
from benchmarks.second_checker import SecondChecker
from gradweave.errors import GradweaveError
from gradweave.schedulers.spec import as_demand_strategies, from_spec
from gradweave.schedules.file import demand_to_object, from_bytes, to_bytes
from gradweave.topology.formats.object import topology_to_object
from tests.bounds.test_bounds_closing_cut import three_rings
from tests.verifier.checked_files import as_file
from tests.verifier.mutations import mutants, verdict_on
from tests.verifier.oracle import Draft
from tests.verifier.random_demands import random_draft

DEMANDS = 3
"""Random schedules of demands that are mutated."""
LARGE = 100
"""Transfers up to which a schedule is mutated."""
MUTANTS = 2_700
"""Of each certificate."""
NETWORKS = 100
"""Of these with its network changed."""
FILES = 500
"""Mutants of the file of a schedule, each of its own."""
TOGETHER = 500
"""Schedules that the second checker is asked about at once."""

# network, collective, strategy: networks on which a schedule meets the bound, or nearly
ROUNDS: list[tuple[str, Any, str]] = [
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

MESSAGES: list[tuple[str, Any, str]] = [
    ("star:8", "all_reduce", "postal"),
    ("star:8", "all_gather", "merged"),
    ("bcube:n=3,k=1", "reduce_scatter", "merged"),
]
"""The same for messages of a few bytes."""


def main() -> None:
    parser_of(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        judges = Judges(SecondChecker.compiled(Path(folder)))
        schedules = list(shown(mutated_schedules(judges)))
        certificates = list(shown(mutated_certificates(judges)))
    rows = (*schedules, *certificates)
    total, disagreed = (sum(row[name] for row in rows) for name in ("mutants", "disagreed"))
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
        checker_s=round(judges.first_s, 1),
        second_checker_s=round(judges.second_s, 1),
        verifier_s=round(judges.verifier_s, 1),
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


class Judges:
    """Both checkers and the verifier, and the processor time that each has taken."""

    def __init__(self, second: SecondChecker) -> None:
        self._second = second
        self.first_s = self.second_s = self.verifier_s = 0.0

    def second(self, contents: list[dict[str, Any]], adding: bool) -> list[str]:
        """Of each file what the second checker accepts, part by part."""
        begun = _children_s()
        found = self._second.verdicts(contents, adding=adding)
        self.second_s += _children_s() - begun
        return found

    def first(self, content: dict[str, Any], adding: bool) -> str:
        """What the first one does."""
        begun = time.process_time()
        try:
            found = checker.check(content, adding=adding)
            return "".join(str(int(good)) for good, *_ in found)
        except (checker.Wrong, RecursionError, *checker.BROKEN):
            return "0"
        finally:
            self.first_s += time.process_time() - begun

    def verifies(self, judge: Callable[[], bool]) -> bool:
        """What the verifier says."""
        begun = time.process_time()
        try:
            return judge()
        finally:
            self.verifier_s += time.process_time() - begun


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def mutated_schedules(judges: Judges) -> Iterator[dict[str, Any]]:
    """What all say of each schedule's mutants."""
    for network, strategy, collective, _ in SCHEDULES:
        scheduler = from_spec(strategy)
        schedule = scheduler.schedule(gw.topology.from_spec(network), collective=collective)
        if schedule.num_transfers > LARGE:  # the experiment of mutations has those
            continue
        adding = getattr(scheduler, "aggregating_switches", False)
        row = {"topology": network, "scheduler": strategy, "collective": collective}
        yield row | compared(judges, changed_rows([Draft.of(schedule)], None, adding), adding)
    drafts = [random_draft(random.Random(seed)) for seed in range(DEMANDS)]
    row = {"topology": "random", "scheduler": "random", "collective": "demand"}
    yield row | compared(judges, changed_rows(drafts, 4, False), False)
    slow = gw.topology.named_faults.Faults(slow=("0-4=0.5",)).apply_to(gw.topology.star(4))
    for name, schedule in (
        ("star:4, one link slow", from_spec("planned").schedule(slow)),
        ("ring:4", from_spec("ring").schedule(gw.topology.ring(4))),
    ):
        found = compared(judges, changed_files(schedule), False)
        yield {"topology": name, "scheduler": "file", "collective": "all_reduce"} | found


Judged = tuple[dict[str, Any], Callable[[], bool]]
"""A file, and whether the verifier accepts what it holds."""


def changed_rows(drafts: list[Draft], most: int | None, adding: bool) -> Iterator[Judged]:
    """Schedules with one thing changed."""
    for draft in drafts:
        for _, mutant in mutants(draft, most):

            def valid(mutant: Draft = mutant) -> bool:
                return verdict_on(mutant, aggregating_switches=adding) is None

            yield as_file(mutant), valid


def changed_files(schedule: gw.Schedule) -> Iterator[Judged]:
    """Files with a share, a capacity, a bandwidth or another number changed."""
    draw, whole = random.Random(0), json.loads(to_bytes(schedule.replace(certificates=())))
    rank = list(range(len(schedule.root)))
    shares = whole.setdefault("shares", {"numerators": [1] * len(rank), "denominator": len(rank)})
    whole["version"] = 2
    for _ in range(FILES):
        content = copy.deepcopy(whole)
        links, numbers = content["topology"]["links"], content["shares"]["numerators"]
        kind = draw.randrange(4)
        if kind == 0:  # from one piece to another, or out of nothing
            one, other = draw.choice(rank), draw.choice(rank)
            numbers[one] -= draw.choice((1, numbers[one], numbers[one] + 1))
            numbers[other] += shares["numerators"][one] - max(numbers[one], 0)
        elif kind == 1:
            row = draw.randrange(len(links["capacity"]))
            links["capacity"][row] = draw.choice((0, -1, 1, 2, links["capacity"][row] + 1))
        elif kind == 2:
            name = draw.choice(("bandwidth_bytes_per_s", "latency_s"))
            row = draw.randrange(len(links[name]))
            links[name][row] *= draw.choice((-1, 0, 2, 0.5))
        else:
            _change(content["transfers"], draw, schedule.topology.num_nodes)
        text = json.dumps(content).encode()
        yield content, lambda text=text: _file_is_valid(text)


def _file_is_valid(text: bytes) -> bool:
    try:
        return gw.verify(from_bytes(text, "mutant")).valid
    except GradweaveError:
        return False


def compared(judges: Judges, files: Iterator[Judged], adding: bool) -> dict[str, int]:
    """Of all mutants: how many are valid, and of how many the three do not say the same."""
    counts: Counter[str] = Counter()
    waiting: list[tuple[dict[str, Any], str]] = []

    def ask() -> None:
        for (content, known), second in zip(
            waiting, judges.second([one for one, _ in waiting], adding), strict=True
        ):
            if second[:1] != known:
                print("disagreed", known, second, json.dumps(content)[:4000], flush=True)
            counts["disagreed"] += second[:1] != known
        waiting.clear()

    for content, judge in files:
        valid = judges.verifies(judge)
        counts["mutants"] += 1
        counts["valid"] += valid
        first = judges.first(content, adding)[0]
        if first != str(int(valid)):
            print("disagreed", valid, first, json.dumps(content)[:4000], flush=True)
            counts["disagreed"] += 1
            continue
        waiting.append((content, first))
        if len(waiting) == TOGETHER:
            ask()
    ask()
    return {name: counts[name] for name in ("mutants", "valid", "disagreed")}


def mutated_certificates(judges: Judges) -> Iterator[dict[str, Any]]:
    """What both checkers say of each certificate's mutants."""
    cases = list(certified())
    others = [json.dumps(certificate) for _, _, _, certificate, _ in cases]
    for number, (name, topology, demand, certificate, upper) in enumerate(cases):
        content: dict[str, Any] = {
            "collective": certificate["claim"]["collective"],
            "topology": topology_to_object(topology),
        }
        content |= {} if demand is None else {"demand": demand_to_object(demand)}
        network = checker.Network(content["topology"])
        asked = checker.Asked(content["collective"], content.get("demand"), network)
        draw, counts = random.Random(number), Counter[str]()
        known, seen = list[dict[str, Any]](), {json.dumps(certificate)}
        while len(known) < MUTANTS - NETWORKS:
            mutant = mutated(certificate, draw, others, topology.num_nodes)
            if (text := json.dumps(mutant)) not in seen:
                seen.add(text)
                known.append(mutant)
        (second,) = judges.second([{**content, "certificates": known}], False)
        for mutant, accepted in zip(known, second, strict=True):
            counts["mutants"] += 1
            begun = time.process_time()
            try:
                proof = checker.Proof(mutant, network, asked)
            except (checker.Wrong, RecursionError, *checker.BROKEN):
                proof = None
            judges.first_s += time.process_time() - begun
            if (proof is not None) != (accepted == "1"):
                print("disagreed", accepted, json.dumps(mutant)[:4000], flush=True)
                counts["disagreed"] += 1
            if proof is None:
                counts["refused"] += 1
                continue
            claimed = Fraction(mutant["claim"]["least"])
            # One that proves what it claims is sound; of a wider scope its claim is no more either.
            sound = claimed <= proof.least and claimed <= upper(proof)
            counts["sound" if sound else "wrongly_accepted"] += 1
        changed = [changed_network(content, certificate, draw) for _ in range(NETWORKS)]
        for one, second in zip(changed, judges.second(changed, False), strict=True):
            first = judges.first(one, False)
            counts["mutants"] += 1
            counts["refused"] += first == second == "0"
            counts["wrongly_accepted"] += "1" in first + second
            counts["disagreed"] += first != second
        kinds = "+".join(dict.fromkeys(step["kind"] for step in certificate["proof"]))
        names = ("mutants", "refused", "sound", "wrongly_accepted", "disagreed")
        row = {"case": name, "unit": certificate["claim"]["unit"], "kinds": kinds}
        yield row | {key: counts[key] for key in names}


def changed_network(
    content: dict[str, Any], certificate: dict[str, Any], draw: random.Random
) -> dict[str, Any]:
    """The certificate with a network of which a link is another."""
    changed = copy.deepcopy(content)
    links = changed["topology"]["links"]
    name = draw.choice(("capacity", "bandwidth_bytes_per_s", "latency_s"))
    row = draw.randrange(len(links[name]))
    links[name][row] = links[name][row] * draw.choice((2, 3, 4)) + draw.choice((0, 1, 2))
    return {**changed, "certificates": [certificate]}


Upper = Callable[[Any], Fraction | float]


def certified() -> Iterator[tuple[str, Any, Any, dict[str, Any], Upper]]:
    """Certificates, each with what a known schedule takes of which a mutant may speak."""
    for spec, collective, strategy in ROUNDS:
        topology = three_rings(9) if spec == "rings" else gw.topology.from_spec(spec)
        schedule = from_spec(strategy).schedule(topology, collective=collective)
        (found,) = gw.bounds.certificates_of(schedule)
        name = f"{spec} {collective}, {strategy}"
        yield name, topology, None, dict(found.certificate), rounds_of(schedule.rounds)
    yield from certified_trees()
    slow = gw.topology.named_faults.Faults(slow=("0-8=0.25",))
    for name, topology, strategy in (
        ("star:8, one link slow", slow.apply_to(gw.topology.star(8)), "planned"),
        ("bcube:n=3,k=1", gw.topology.bcube(n=3, k=1), "symmetric"),
        ("dcell:n=4,k=1", gw.topology.dcell(n=4, k=1), "symmetric"),
    ):
        schedule = from_spec(strategy).schedule(topology)
        for size in (1e3, 1e9):
            found = in_seconds(topology, size)
            taken = gw.simulator.seconds(schedule, size, "events")
            case = f"{name}, {size:g} bytes"
            yield case, topology, None, dict(found.certificate), per_byte(taken, size)
    yield from certified_messages()
    star = gw.topology.star(6)
    for name, root, strategy, size in (
        ("broadcast", 0, "chain", 10**7),
        ("reduce", 1, "chain", 100),
        ("all_reduce", None, "chain", 10**7),
        ("all_to_all", None, "direct", 10**7),
    ):
        demand = gw.schedules.collective(name, range(6), size, root=root)
        found = gw.bounds.certify(gw.bounds.demand_bound(star, demand))
        schedule = as_demand_strategies(strategy)[0].schedule(star, demand)
        seconds = gw.simulator.seconds(schedule, model="events")
        upper = of_demand(seconds, schedule.rounds)
        yield f"star:6 {name}, {size} bytes", star, demand, dict(found.certificate), upper


def certified_trees() -> Iterator[tuple[str, Any, Any, dict[str, Any], Upper]]:
    """Of given trees, and of a formula that nothing satisfies."""
    bcube = gw.topology.bcube(n=3, k=1)
    along = gw.bounds.certify_fixed_trees(gw.schedules.FlowTrees.shortest_path(bcube))
    assert along is not None
    given = along.certificate["claim"]["trees"]
    merged = from_spec("merged").schedule(bcube, collective="reduce_scatter")
    free = from_spec("symmetric").schedule(bcube, collective="reduce_scatter")

    def upper(proof: Any) -> Fraction | float:
        taken = {None: free.rounds, str(given): merged.rounds}
        known = taken.get(proof.trees and str(proof.trees))  # of other trees none is known
        return float("inf") if known is None else rounds_of(known)(proof)

    yield "bcube:n=3,k=1 reduce_scatter, merged", bcube, None, dict(along.certificate), upper
    ring = gw.topology.ring(4)
    refuted = gw.bounds.refute(ring, {"stage": "all_gather", "rounds": 1})
    found = gw.bounds.certify_refutation(ring, "all_gather", refuted)
    schedule = from_spec("grown").schedule(ring, collective="all_gather")
    name = "ring:4 all_gather, grown"
    yield name, ring, None, dict(found.certificate), rounds_of(schedule.rounds)


def in_seconds(
    topology: gw.Topology, size: float, collective: Any = "all_reduce", **options: Any
) -> gw.bounds.Certified:
    return gw.bounds.certify(gw.bounds.seconds_bound(topology, collective, size, **options))


def certified_messages() -> Iterator[tuple[str, Any, Any, dict[str, Any], Upper]]:
    """Of messages without bytes, late servers and slots of time."""
    small = 100.0
    for spec, collective, strategy in MESSAGES:
        topology = gw.topology.from_spec(spec)
        schedule = from_spec(strategy).schedule(topology, collective=collective)
        found = in_seconds(topology, small, collective, trees=False)
        taken = gw.simulator.seconds(schedule, small, "events")
        upper = per_byte(taken, small)
        yield f"{spec} {collective}, small", topology, None, dict(found.certificate), upper
    boxes = gw.topology.from_spec("a100:boxes=2")
    claim = {"unit": "seconds", "collective": "all_reduce", "bytes": "100", "least": "1/10000000"}
    relay = {
        "format": "gradweave-certificate",
        "version": 1,
        "network": checker.Network(topology_to_object(boxes)).hash,
        "claim": claim,
        "proof": [{"kind": "relay", "stage": "all_reduce", "server": 3}],
    }
    gw.bounds.check_certificate(relay, boxes)
    taken = gw.simulator.seconds(from_spec("merged").schedule(boxes), small, "events")
    yield "a100:boxes=2, relay", boxes, None, relay, per_byte(taken, small)
    ready = [0.07, 0.03, *[0.0] * 6]
    star = gw.topology.star(8)
    found = in_seconds(star, 1e9, ready_at_s=ready)
    schedule = from_spec("merged").schedule(star)
    taken = gw.simulator.seconds(schedule, 1e9, "events", ready_at_s=ready)
    yield "star:8, late", star, None, dict(found.certificate), per_byte(taken, 1e9)
    link = gw.topology.Link(bandwidth_bytes_per_s=1e9, latency_s=1e-3)
    for name, topology, size, slots in (
        ("ring:4, 1 ms", gw.topology.ring(4, link=link), 4e6, 64),
        ("mesh:2x3", gw.topology.mesh((2, 3)), 1e5, 32),
    ):
        found = in_seconds(topology, size, slots=slots)
        schedule = from_spec("grown").schedule(topology)
        taken = gw.simulator.seconds(schedule, size, "events")
        case = f"{name}, slots"
        yield case, topology, None, dict(found.certificate), per_byte(taken, size)


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


WORDS = tuple(dict.fromkeys(kind for kinds in checker.KINDS.values() for kind in kinds))
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
