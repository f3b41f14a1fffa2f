"""The statement of a certificate in one plain sentence."""

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from gradweave.bounds.bound import inside_named, named
from gradweave.common.wording import counted, listed
from gradweave.schedules.demand import Demand
from gradweave.topology.topology import Topology
from gradweave.topology.units import format_bandwidth, format_seconds, format_size

SHOWN = 4
"""Number of nodes or links that a sentence names."""


def explained(
    certificate: Mapping[str, Any], least: Fraction, topology: Topology, demand: Demand | None
) -> str:
    """Why a certificate proves its bound.

    Args:
        certificate: a recounted certificate.
        least: the bound that it proves.
        topology: its network.
        demand: its demand, if any.

    >>> import gradweave as gw
    >>> net = gw.topology.bcube(n=3, k=1)
    >>> print(gw.bounds.certify_rounds(net, gw.bounds.free_trees(net), "all_reduce").reason)
    8 pieces must leave server 0 at 2 per round, and come back in the all-gather: 8 rounds
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
    """The link directions of a certificate's first step; empty if messages are the limit.

    Args:
        certificate: a recounted certificate.
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
    """The step for the other stage, with all transfers reversed."""
    turned = dict(step)
    if step["kind"] == "depth":
        turned |= {"source": step["target"], "target": step["source"]}
    elif "leaving" in step:
        turned["leaving"] = not step["leaving"]
    return turned


class _Words:
    """Sentences about the nodes and links of a network."""

    def __init__(self, topology: Topology, demand: Demand | None, claim: Mapping[str, Any]) -> None:
        self.topology, self.demand, self.claim = topology, demand, claim
        self.rounds = claim["unit"] == "rounds"
        self.least = Fraction(claim["least"])
        self.size = format_size(float(Fraction(claim.get("bytes", "0"))))

    def of(self, step: Mapping[str, Any]) -> str:
        """The sentence for a step of a recounted proof."""
        return getattr(self, step["kind"])(step)

    def cut(self, step: Mapping[str, Any]) -> str:
        """A cut around some nodes."""
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
        """Crossings between all servers, or between groups of them."""
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
        """The distance that a piece must travel."""
        return f"a piece must go {self._ends(step)}, one transfer per round"

    def growth(self, step: Mapping[str, Any]) -> str:
        """What limits, per round, how many contributions join a sum, or how far one spreads."""
        topology = self.topology
        ends = topology.source if step["leaving"] else topology.target
        room = np.bincount(ends, topology.capacity, topology.num_nodes).astype(int)
        counts = room if step["switches"] else room[topology.servers]
        most = f"{int(counts.max())} {'others' if counts.max() > 1 else 'other'}"
        who = "node" if step["switches"] else "server"
        if step["leaving"]:
            return f"each {who} that has a contribution passes it to at most {most} per round"
        return f"the sum at a {who} takes in those of at most {most} per round"

    def reach(self, step: Mapping[str, Any]) -> str:
        """A server's bytes, and the messages that take them to the others, or from them."""
        server, leaving = self._server(step["server"]), step["leaving"]
        ends = self.topology.source if leaving else self.topology.target
        links = ends == step["server"]
        rate = float(self.topology.bandwidth_bytes_per_s[links].sum())
        size, verb = self._of_block(step["block"]), "leave" if leaving else "enter"
        if not Fraction(step["seconds"]) or 2 * size / rate > float(self.least):
            end = "the last byte reach" if leaving else "the first come from"
            first = f"{format_size(size)} must {verb} {server} {self._rate(links)}"
            return f"{first}, and {end} the farthest server"
        far = "all others" if not Fraction(step["beyond_s"]) else "the far servers"
        ways = f"from {server} to {far}" if leaving else f"to {server} from {far}"
        return f"messages must spread {ways}, over links that carry few at once"

    def _of_block(self, block: int) -> float:
        """The size of a block in bytes."""
        if self.demand is not None:
            return float(self.demand.bytes[block])
        parts = 1 if self.claim["collective"] == "all_reduce" else self.topology.num_servers
        return float(Fraction(self.claim["bytes"])) / parts

    def relay(self, step: Mapping[str, Any]) -> str:
        """Two servers that need a relay to hear from each other."""
        server = self._server(step["server"])
        return f"{server} cannot exchange with all others at once: some are two messages away"

    def meeting(self, step: Mapping[str, Any]) -> str:
        """Sums that are complete somewhere, or nowhere, before the end."""
        return (
            "all contributions must meet at some server, and the sum be sent on, or at servers "
            "that exchange parts of it"
        )

    def crossings(self, step: Mapping[str, Any]) -> str:
        """Sets of nodes that the gradient must leave and enter, each at a price."""
        sets = sorted(step["sets"], key=lambda one: -one["price"])
        late = max(Fraction(one["since_s"]) for one in sets) if sets else Fraction(0)
        since = f", part of it after {format_seconds(float(late))}" if late else ""
        around = self._inside(self._smaller_side(sets[0])) if sets else "no set"
        more = f" and {counted(len(sets) - 1, 'other set')}" if len(sets) > 1 else ""
        return f"the gradient ({self.size}) must cross the links around {around}{more}{since}"

    def _smaller_side(self, step: Mapping[str, Any]) -> Mapping[str, Any]:
        """The same boundary, described by the side with fewer nodes."""
        topology, inside = self.topology, {*step["servers"], *step["switches"]}
        if 2 * len(inside) <= topology.num_nodes:
            return step
        both = (topology.servers, topology.switches)
        rest = [[node for node in nodes.tolist() if node not in inside] for nodes in both]
        return {"servers": rest[0], "switches": rest[1]}

    def slots(self, step: Mapping[str, Any]) -> str:
        """Link prices in slots of time."""
        charged: Counter[int] = Counter()
        for _, _, link, _, price in step["prices"]:
            charged[link] += price
        if not charged:
            return "contributions cannot reach any server, and the sum all servers, any sooner"
        links = listed([self.topology.link_name(k) for k, _ in charged.most_common()], SHOWN)
        return (
            "sums and copies must wait for their inputs, and in "
            f"{counted(step['slots'], 'slot')} of time links carry no more ({links})"
        )

    def root(self, step: Mapping[str, Any]) -> str:
        """Sums to a root, and copies from it."""
        if step["stage"] != "all_reduce":
            way = "go from some root to all" if step["stage"] == "all_gather" else "come to a root"
            return f"contributions must {way}"
        return "contributions must reach some server, and the sum must reach all from there"

    def late_entry(self, step: Mapping[str, Any]) -> str:
        """Pieces that enter some nodes and must spread inside."""
        leaving = step["stage"] == "reduce_scatter"
        verb, when = ("leave", "meet before") if leaving else ("enter", "spread after")
        rate = self._rate(self.crossed({**step, "leaving": leaving}))
        pieces = counted(self._pieces({**step, "leaving": leaving}), "piece")
        return f"{pieces} must {verb} {self._inside(step)} {rate}, and {when} that inside it"

    def closing_cut(self, step: Mapping[str, Any]) -> str:
        """Nested sets that close in on a server."""
        server = self._server(step["target"])
        way = "from" if step["stage"] == "reduce_scatter" else "to"
        rounds = counted(len(step["switches"]), "round")
        return f"in {rounds} not all pieces can get {way} {server} past sets that close in on it"

    def refutation(self, step: Mapping[str, Any]) -> str:
        """A formula that any schedule of this few rounds would satisfy."""
        stage, rounds = step["stage"].replace("_", "-"), counted(step["rounds"], "round")
        return f"no {stage} takes {rounds}, by a refutation whose proof was checked"

    def load(self, step: Mapping[str, Any]) -> str:
        """The link that given trees load most."""
        (link,) = limiting_links({"claim": self.claim, "proof": [step]}, self.topology)
        rate = f"{int(self.topology.capacity[link]):,} per round"
        return f"the given trees load the link {self.topology.link_name(link)} most, at {rate}"

    def lengths(self, step: Mapping[str, Any]) -> str:
        """Weighted links: those around a server, or many."""
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
        """The server whose outgoing links, incoming links or both are exactly these, if any."""
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
            return f"at {int(self.topology.capacity[links].sum()):,} per round"
        return f"at {format_bandwidth(float(self.topology.bandwidth_bytes_per_s[links].sum()))}"

    def _pieces(self, step: Mapping[str, Any]) -> int:
        """Number of pieces that must cross, of those rooted at servers."""
        topology = self.topology
        pieces = np.array(self.claim.get("pieces", [1] * topology.num_servers))
        inside = np.isin(topology.servers, step["servers"])
        if step["stage"] == "all_reduce":
            return int(pieces.sum())
        within = step["leaving"] == (step["stage"] == "all_gather")
        return int(pieces[inside if within else ~inside].sum())
