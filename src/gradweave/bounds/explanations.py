"""What a certificate says, in one sentence that an engineer reads once."""

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from gradweave.bounds.bound import inside_named, named
from gradweave.schedule.demand import Demand
from gradweave.topology.topology import Topology
from gradweave.topology.units import format_bandwidth, format_seconds, format_size
from gradweave.wording import counted, listed

SHOWN = 4
"""Nodes or links that are named in a sentence."""


def explained(
    certificate: Mapping[str, Any], least: Fraction, topology: Topology, demand: Demand | None
) -> str:
    """Why a certificate proves so much.

    Args:
        certificate: that has been recounted.
        least: what it proves.
        topology: its network.
        demand: its demand, if any.

    >>> import gradweave as gw
    >>> net = gw.topology.bcube(n=3, k=1)
    >>> print(gw.bounds.certify_rounds(net, gw.bounds.free_trees(net), "all_reduce").reason)
    8 pieces must leave server 0 at 2 a round, and come back in the all-gather: 8 rounds
    """
    claim, steps = certificate["claim"], certificate["proof"]
    words = _Words(topology, demand, claim)
    first = words.of(steps[0])
    if len(steps) > 1:
        mirrored = _reversed(steps[0]) == {**steps[1], "stage": steps[0]["stage"]}
        came = ", and come back in the all-gather" if steps[0]["kind"] == "cut" else ""
        first += (
            came or ", and the reverse in the all-gather"
            if mirrored
            else f"; then {words.of(steps[1])}"
        )
    if claim["unit"] == "rounds":
        return f"{first}: {counted(int(least), 'round')}"
    return f"{first}: {format_seconds(float(least))}"


def limiting_links(certificate: Mapping[str, Any], topology: Topology) -> list[int]:
    """The link directions that a certificate counts, of its first step; none where messages limit.

    Args:
        certificate: that has been recounted.
        topology: its network.
    """
    step, words = certificate["proof"][0], _Words(topology, None, certificate["claim"])
    kind = step["kind"]
    if kind == "crossings":
        step = max(step["sets"], key=lambda one: one["price"], default=step)
        leaving = step.get("stage") == "all_gather"
        found = words.crossed({**step, "leaving": leaving}) if "servers" in step else []
    elif kind in ("cut", "late_entry"):
        found = words.crossed({"leaving": step["stage"] == "reduce_scatter", **step})
    elif kind == "groups":
        found = words.between_groups(step)
    elif kind == "load":
        ends = step["source"], step["target"]
        source, target = ends if step["stage"] == "all_gather" else ends[::-1]
        found = (topology.source == source) & (topology.target == target)
    elif kind == "lengths":
        found = np.array(step["lengths"], object) > 0
    else:
        found = []
    return np.flatnonzero(found).tolist()


def _reversed(step: Mapping[str, Any]) -> dict[str, Any]:
    """The same of the other stage, all transfers reversed."""
    turned = dict(step)
    if step["kind"] == "depth":
        turned |= {"source": step["target"], "target": step["source"]}
    elif "leaving" in step:
        turned["leaving"] = not step["leaving"]
    return turned


class _Words:
    """Sentences about a network's nodes and links."""

    def __init__(self, topology: Topology, demand: Demand | None, claim: Mapping[str, Any]) -> None:
        self.topology, self.demand, self.claim = topology, demand, claim
        self.rounds = claim["unit"] == "rounds"
        self.size = format_size(float(Fraction(claim.get("bytes", "0"))))

    def of(self, step: Mapping[str, Any]) -> str:
        """A step of a proof that has been recounted."""
        return getattr(self, step["kind"])(step)

    def cut(self, step: Mapping[str, Any]) -> str:
        """Around some nodes."""
        verb = "leave" if step["leaving"] else "enter"
        around, rate = self._inside(step), self._rate(self.crossed(step))
        if self.rounds:
            return f"{counted(self._pieces(step), 'piece')} must {verb} {around} {rate}"
        if step["stage"] == "all_reduce":
            return f"the whole gradient ({self.size}) must {verb} {around}{self._once()} {rate}"
        share = self._pieces(step) / self.topology.num_servers
        size = format_size(share * float(Fraction(self.claim["bytes"])))
        return f"{size} must {verb} {around} {rate}"

    def _once(self) -> str:
        return ", once all are ready," if "ready_at_s" in self.claim else ""

    def groups(self, step: Mapping[str, Any]) -> str:
        """Of all servers, or groups of them."""
        groups, times = step["groups"], 2 if step["stage"] == "all_reduce" else 1
        single = all(len(group) == 1 for group in groups)
        what = "servers" if single else f"{len(groups)} groups of servers"
        rate = self._rate(self.between_groups(step))
        verb = "leave" if step["leaving"] else "enter"
        crossings = times * (len(groups) - 1)
        if self.rounds:
            pieces = sum(self.claim.get("pieces", [1] * self.topology.num_servers))
            moved = counted(crossings * pieces, "transfer")
            return f"{moved} in all must {verb} the {what} {rate}"
        return f"the gradient ({self.size}) must {verb} the {what} {crossings} times in all {rate}"

    def _server(self, server: int) -> str:
        return named("server", (server,), self.topology.id_name)

    def between_groups(self, step: Mapping[str, Any]) -> np.ndarray:
        """[L] whether a link direction leads out of a group, or into one."""
        group = {node: g for g, nodes in enumerate(step["groups"]) for node in nodes}
        of = np.array([group.get(node, -1) for node in range(self.topology.num_nodes)])
        ends = of[self.topology.source], of[self.topology.target]
        own, other = ends if step["leaving"] else ends[::-1]
        return (own >= 0) & (own != other)

    def depth(self, step: Mapping[str, Any]) -> str:
        """Of a piece's way."""
        return f"a piece must go {self._ends(step)}, one transfer a round"

    def reach(self, step: Mapping[str, Any]) -> str:
        """Of a server's bytes, and of the messages that take them to others, or to it."""
        server, leaving = self._server(step["server"]), step["leaving"]
        bytes_first = f"the last byte must leave {server} and reach"
        if not leaving:
            bytes_first = f"after the first byte enters {server}, all must, from"
        if not Fraction(step["seconds"]):
            return f"{bytes_first} the farthest server"
        far = "all others" if not Fraction(step["beyond_s"]) else "the far servers"
        ways = f"from {server} to {far}" if leaving else f"to {server} from {far}"
        return f"messages must spread {ways}, over links that carry few at once"

    def relay(self, step: Mapping[str, Any]) -> str:
        """Of two servers that have to hear of each other."""
        server = self._server(step["server"])
        return f"{server} cannot exchange with all others at once: some are two messages away"

    def meeting(self, step: Mapping[str, Any]) -> str:
        """Of sums that are complete somewhere, or nowhere, before the end."""
        return (
            "all contributions must meet at some server, and the sum be sent on, or at servers "
            "that exchange parts of it"
        )

    def crossings(self, step: Mapping[str, Any]) -> str:
        """Of sets of nodes that the gradient must leave and enter, each at a price."""
        sets = sorted(step["sets"], key=lambda one: -one["price"])
        late = max(Fraction(one["since_s"]) for one in sets) if sets else Fraction(0)
        since = f", part of it after {format_seconds(float(late))}" if late else ""
        around = self._inside(self._smaller_side(sets[0])) if sets else "no set"
        more = f" and {counted(len(sets) - 1, 'other set')}" if len(sets) > 1 else ""
        return f"the gradient ({self.size}) must cross the links around {around}{more}{since}"

    def _smaller_side(self, step: Mapping[str, Any]) -> Mapping[str, Any]:
        """The same boundary, around fewer nodes."""
        topology, inside = self.topology, {*step["servers"], *step["switches"]}
        if 2 * len(inside) <= topology.num_nodes:
            return step
        both = (topology.servers, topology.switches)
        rest = [[node for node in nodes.tolist() if node not in inside] for nodes in both]
        return {"servers": rest[0], "switches": rest[1]}

    def slots(self, step: Mapping[str, Any]) -> str:
        """Of links in slots of time."""
        charged: Counter[int] = Counter()
        for _, _, link, _, price in step["prices"]:
            charged[link] += price
        if not charged:
            return "contributions cannot come to any server, and the sum to all, any sooner"
        links = listed([self.topology.link_name(k) for k, _ in charged.most_common()], SHOWN)
        return (
            f"in {counted(step['slots'], 'slot')} of time sums and copies wait for what they are "
            f"made of, and links carry no more ({links})"
        )

    def root(self, step: Mapping[str, Any]) -> str:
        """Of sums and copies."""
        return "contributions must come to some server, and the sum go from there to all"

    def late_entry(self, step: Mapping[str, Any]) -> str:
        """Into some nodes, and on from there."""
        leaving = step["stage"] == "reduce_scatter"
        verb, when = ("leave", "meet before") if leaving else ("enter", "spread after")
        rate = self._rate(self.crossed({**step, "leaving": leaving}))
        pieces = counted(self._pieces({**step, "leaving": leaving}), "piece")
        return f"{pieces} must {verb} {self._inside(step)} {rate}, and {when} that inside it"

    def closing_cut(self, step: Mapping[str, Any]) -> str:
        """Into sets that close in on a server."""
        server = self._server(step["target"])
        way = "from" if step["stage"] == "reduce_scatter" else "to"
        rounds = counted(len(step["switches"]), "round")
        return f"in {rounds} not all pieces can come {way} {server}, past sets that close in on it"

    def refutation(self, step: Mapping[str, Any]) -> str:
        """By a formula that every schedule of so few rounds would satisfy."""
        stage, rounds = step["stage"].replace("_", "-"), counted(step["rounds"], "round")
        return f"no {stage} takes {rounds}, by a refutation whose proof was checked"

    def load(self, step: Mapping[str, Any]) -> str:
        """Of a link that given trees take."""
        (link,) = limiting_links({"claim": self.claim, "proof": [step]}, self.topology)
        rate = f"{int(self.topology.capacity[link]):,} a round"
        return f"the given trees load the link {self.topology.link_name(link)} most, at {rate}"

    def lengths(self, step: Mapping[str, Any]) -> str:
        """Of links: those around a server, or many."""
        length = np.array(step["lengths"], object)
        used = np.flatnonzero(length.astype(float) > 0)
        server = self._around_one(used)
        if server is not None and len({*length[used].tolist()}) == 1:
            return self._ports(server, used)
        names = sorted(used.tolist(), key=lambda k: -float(length[k]))
        links = listed([self.topology.link_name(k) for k in names], SHOWN)
        what = "the gradient" if self.demand is None else "the blocks"
        size = f" ({self.size})" if self.demand is None else ""
        return f"{what}{size} must cross {counted(len(used), 'link direction')} ({links}), weighted"

    def _around_one(self, links: np.ndarray) -> int | None:
        """The server all of whose links out, in or both these are."""
        topology, chosen = self.topology, set(links.tolist())
        source, target = topology.source, topology.target
        for node in {int(source[links[0]]), int(target[links[0]])} if len(links) else ():
            sides = [set(np.flatnonzero(end == node).tolist()) for end in (source, target)]
            if topology.is_server[node] and chosen in (*sides, sides[0] | sides[1]):
                return node
        return None

    def _ports(self, server: int, links: np.ndarray) -> str:
        topology, name = self.topology, named("server", (server,), self.topology.id_name)
        out = links[topology.source[links] == server]
        both = 0 < len(out) < len(links)
        rate = topology.bandwidth_bytes_per_s[out if both else links].sum()
        port = f"{name}'s {format_bandwidth(float(rate))} port"
        if both and self.demand is None:
            return f"{port} must carry the whole gradient ({self.size}) in and out once"
        way = "in and out" if both else "out" if len(out) else "in"
        return f"{port} must carry what its blocks need {way}"

    def _inside(self, step: Mapping[str, Any]) -> str:
        nodes: Sequence[Sequence[int]] = step["servers"], step["switches"]
        many = sum(map(len, nodes)) > 2 * SHOWN
        if many:
            counts = (("server", "servers", nodes[0]), ("switch", "switches", nodes[1]))
            return "a part of " + " and ".join(
                counted(len(ids), one, more) for one, more, ids in counts if len(ids)
            )
        return inside_named(tuple(nodes[0]), tuple(nodes[1]), self.topology.id_name)

    def _ends(self, step: Mapping[str, Any]) -> str:
        return f"from {self._server(step['source'])} to {self._server(step['target'])}"

    def crossed(self, step: Mapping[str, Any]) -> np.ndarray:
        """[L] whether a link direction leads out of a set, or into it."""
        topology = self.topology
        inside = np.zeros(topology.num_nodes, bool)
        inside[[*step["servers"], *step["switches"]]] = True
        start, end = inside[topology.source], inside[topology.target]
        return start & ~end if step["leaving"] else end & ~start

    def _rate(self, links: np.ndarray) -> str:
        if self.rounds:
            return f"at {int(self.topology.capacity[links].sum()):,} a round"
        return f"at {format_bandwidth(float(self.topology.bandwidth_bytes_per_s[links].sum()))}"

    def _pieces(self, step: Mapping[str, Any]) -> int:
        """That must cross, of those that servers root."""
        topology = self.topology
        pieces = np.array(self.claim.get("pieces", [1] * topology.num_servers))
        inside = np.isin(topology.servers, step["servers"])
        if step["stage"] == "all_reduce":
            return int(pieces.sum())
        within = step["leaving"] == (step["stage"] == "all_gather")
        return int(pieces[inside if within else ~inside].sum())
