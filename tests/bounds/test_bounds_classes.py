"""Classes of schedules that bounds hold for: their wording, and the table of all kinds."""

import copy
import itertools
import re
from pathlib import Path
from typing import get_args

import pytest

import gradweave as gw
import gradweave_check as checker
from gradweave.bounds import certify_each_class, certify_rounds_of_each_class
from gradweave.bounds.bound import _FORBIDDEN as CERTIFICATES
from gradweave.bounds.classes import LIBERTIES, class_of, holds_for
from gradweave.bounds.seconds.latency import Kind as LatencyKind
from gradweave.bounds.seconds_bound import seconds_bound
from gradweave.errors import InvalidCertificateError
from tests.test_gradweave_check import certificates_of_messages

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "bounds.md"
KIND_OF = {
    "Cut": "cut",
    "LateEntry": "late_entry",
    "ClosingCut": "closing_cut",
    "Distance": "depth",
    "LinkLoad": "link_load",
    "TreeDepth": "tree_depth",
    "Ports": "ports",
    "Exhausted": "exact",
}


def table() -> dict[tuple[str, str], str]:
    """The page's class of schedules, by kind and unit."""
    text = PAGE.read_text().partition("| kind | of | it holds for schedules that |\n")[2]
    text = text.partition("\n\n")[0]
    rows = [line.strip("|").split(" | ") for line in text.splitlines()[1:]]
    return {
        (kind, unit.strip()): cell
        for kinds, unit, cell in rows
        for kind in re.findall(r"`(\w+)`", kinds) or [kinds.strip()]
    }


def test_the_table_names_every_kind_that_exists():
    named = {kind for kind, _ in table()}
    of_files = {kind for kinds in checker.KINDS.values() for kind in kinds}
    of_rounds = {KIND_OF[each.__name__] for each in CERTIFICATES}
    of_messages, of_seconds = set(get_args(LatencyKind)), {"latency", "messages", "bandwidth"}
    of_trees = {"programme", "cuts"}
    assert of_files | of_rounds | of_messages | of_seconds | of_trees <= named


def test_the_table_says_of_each_kind_what_its_proof_forbids():
    """On BCube, whose servers have several links and whose switches could add; and on a ring."""
    known, said = set(), table()
    bcube = gw.topology.bcube(n=3, k=1)
    found = [proved for _, topology, proved in certificates_of_messages() if len(topology.switches)]
    found += certify_rounds_of_each_class(gw.topology.ring(8), "all_reduce")
    for collective in ("all_reduce", "all_gather"):
        found += certify_rounds_of_each_class(bcube, collective, overlap=True)
        found += certify_each_class(seconds_bound(bcube, collective, 1e6))
    for one in found:
        steps = one.certificate["proof"]
        if len(steps) == 1:
            cell = said[steps[0]["kind"], one.unit]
            for liberty in one.forbids:
                assert LIBERTIES[liberty].format("a piece") in cell, (steps[0]["kind"], liberty)
            known.add(steps[0]["kind"])
    assert known >= {"growth", "depth", "cut", "groups", "reach", "root"}


def test_a_class_is_one_sentence():
    few = {checker.FEWER}
    assert holds_for(()) == "every schedule" and class_of(()) == ""
    assert class_of(few) == " for schedules that root a piece at each server"
    assert class_of(few, [2, 2]) == " for schedules that root at least 2 pieces at each server"
    assert holds_for(few, [1, 2]) == "schedules that root the pieces claimed at each server"
    assert holds_for({checker.STRAYED}, trees="shortest") == "schedules that keep to shortest paths"
    assert holds_for({checker.SEVERAL, checker.PASSED, checker.ADDED}) == (
        "schedules that sum each piece at one server, route through no other server and add at "
        "servers alone"
    )


def test_a_certificate_that_claims_more_schedules_than_it_proves_is_refused():
    ring = gw.topology.ring(4)
    _, _, trees = certify_rounds_of_each_class(ring, "all_reduce")
    claimed = copy.deepcopy(dict(trees.certificate))
    assert claimed["claim"]["holds_unless"] == sorted(
        [checker.FEWER, checker.OVERLAP, checker.SEVERAL]
    )
    claimed["claim"]["holds_unless"].pop()
    with pytest.raises(InvalidCertificateError, match="it holds for schedules that root a piece"):
        gw.bounds.check_certificate(claimed, ring)
    claimed["claim"]["holds_unless"] = sorted(LIBERTIES.keys() & checker.CLASSES.keys())
    assert gw.bounds.check_certificate(claimed, ring).forbids == set(checker.CLASSES)
    del claimed["claim"]["holds_unless"]  # as files had it before
    assert gw.bounds.check_certificate(claimed, ring).forbids == trees.forbids


def test_a_certificate_of_an_older_file_is_not_attached_again():
    made = gw.bounds.with_certificates(gw.schedulers.Ring().schedule(gw.topology.ring(4)), 1e6)
    older = copy.deepcopy([dict(one) for one in made.certificates])
    for one in older:
        del one["claim"]["holds_unless"]
    again = gw.bounds.with_certificates(made.replace(certificates=tuple(older)), 1e6)
    assert [*again.certificates] == older


@pytest.mark.parametrize("spec", ["complete:3", "complete:4", "ring:4", "mesh:1x3", "star:3"])
def test_what_grows_is_not_above_what_any_exchange_can_do(spec: str):
    """Brute force over all sets of servers that can have heard of a contribution by each round."""
    topology = gw.topology.from_spec(spec)
    servers, room = topology.num_servers, {}
    for source, capacity in zip(topology.source.tolist(), topology.capacity.tolist(), strict=True):
        room[source] = room.get(source, 0) + capacity
    fewest = 0
    there = {frozenset({0})}
    while frozenset(range(servers)) not in there:
        more = set()
        for some in there:
            most = sum(room[int(topology.servers[s])] for s in some)
            rest = [s for s in range(servers) if s not in some]
            for told in itertools.combinations(rest, min(most, len(rest))):
                more.add(some | set(told))
        there, fewest = more, fewest + 1
    grown = [one for one in certify_rounds_of_each_class(topology, "all_reduce")
        if one.certificate["proof"][0]["kind"] == "growth"]  # fmt: skip
    assert 0 < max(one.least for one in grown) <= fewest


def test_what_decides_is_what_the_reason_names():
    """50 MB over 10 Mbit/s take 40 s; the latency is negligible."""
    star = gw.topology.from_spec("star:3,bandwidth=10Gbit/s,latency=2us")
    slow = gw.topology.slowed(star, {(2, 3): 1e-3}).topology
    bound = seconds_bound(slow, "all_reduce", 50e6)
    assert (bound.seconds, bound.kind) == (pytest.approx(40.0, rel=1e-6), "bandwidth")
    assert bound.reason() == "50 MB must leave server 2 at 10 Mbit/s" and not bound.holds_unless
    reason = certify_each_class(seconds_bound(slow, "all_reduce", 50e6))[0].reason
    assert "50 MB" in reason and "10 Mbit/s" in reason and "latency" not in str(bound)
    broadcast = gw.schedules.collective("broadcast", range(3), 50 * 10**6, root=2)
    said = str(gw.bounds.demand_bound(slow, broadcast))
    assert "50 MB must leave server 2 at 10 Mbit/s" in said


def test_where_latency_decides_the_reason_says_so():
    """1 kB crosses in 1 us or less; a message is under way for 1 ms."""
    three = gw.topology.from_spec("complete:3,bandwidth=10Gbit/s,latency=1ms")
    bound = seconds_bound(three, "all_reduce", 1e3, trees=False)
    assert (bound.kind, bound.seconds) == ("latency", pytest.approx(1.0015e-3, rel=1e-3))
    assert bound.reason().endswith(", and messages take 1.001 ms on top of their bytes")
