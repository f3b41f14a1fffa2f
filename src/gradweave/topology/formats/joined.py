"""One network from several files: the insides of hosts, and the fabric between them.

``node.txt+fabric.out`` names both. A fabric is any network, list of hosts or table of cables;
several are added up. Hosts are joined by their names.
"""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from gradweave.common.wording import counted, listed
from gradweave.errors import AssumedWarning, FileError
from gradweave.topology.formats.box import Box, named_network
from gradweave.topology.formats.cables import Cable, Cables
from gradweave.topology.formats.host_tree import HostLinks, HostTree
from gradweave.topology.formats.readers import Found
from gradweave.topology.topology import Link, Topology

MOST_NODES = 1 << 17
"""Most nodes of a joined network: of some thousand hosts, in minutes."""


def joined(files: Mapping[str, Found], name: str, host_links: HostLinks | None = None) -> Topology:
    """The network of all GPUs, the inside of each host joined with the fabric at its cards.

    A card takes the cable of the adapter of its name, such as ``mlx5_0``. If the fabric names no
    adapters, or others, cables lead to the cards in their order, to those next to GPUs if there
    are enough; in a host without cards, to its processors. The file of one inside is taken for that
    of all hosts; with several, each is for the host that it names, or else for the one that the
    file is named after.

    Args:
        files: the content of each file, by the file's name.
        name: the network's name.
        host_links: the links of hosts, and bandwidths of cables, that the fabric does not tell.

    Raises:
        FileError: there is no fabric, or a host has no inside.
        TopologyError: such a network cannot exist.
    """
    boxes = {file: found.content for file, found in files.items() if isinstance(found.content, Box)}
    fabrics = [_cables(file, each, host_links) for file, each in files.items() if file not in boxes]
    if not fabrics:
        raise FileError(
            f"{counted(len(boxes), 'file')} of a host's inside and none of a fabric; add one, such "
            "as ibnetdiscover's output or a list of hosts"
        )
    fabric = _merged(fabrics)
    used = any(cable.bytes_per_s is None for cable in fabric.cables)
    if host_links is not None and not used:
        trees = any(isinstance(found.content, HostTree) for found in files.values())
        host_links = None if trees else host_links  # refused below
    if not boxes:
        return fabric.topology(name, host_links)
    insides = _insides(boxes, fabric)
    cables = fabric.with_speeds(name, host_links)
    nodes = len(fabric.switches) + sum(len(box.graph) for box in insides.values())
    if nodes > MOST_NODES:
        raise FileError(f"{nodes:,} nodes; at most {MOST_NODES:,} can be joined")
    network = _Joined(fabric, insides, cables)
    assumed = [each for box in boxes.values() for each in box.assumed]
    if len(boxes) == 1:
        [(file, box)] = boxes.items()
        of = f", that of {box.host}," if box.host else ""
        assumed.insert(0, f"the inside in {file}{of} is assumed for all {len(insides)} hosts")
    warnings.warn(
        f"{name}: {'; '.join(dict.fromkeys([*assumed, *network.assumed]))}",
        AssumedWarning,
        stacklevel=2,
    )
    graph = network.whole.graph
    labels = network.whole.gpus | {node: node for node in graph if node not in network.whole.gpus}
    return named_network(graph, labels, len(network.whole.gpus), name)


def _cables(file: str, found: Found, host_links: HostLinks | None) -> Cables:
    """A file's fabric by its cables."""
    if isinstance(found.content, Cables):
        return found.content
    tree = found.content if isinstance(found.content, HostTree) else None
    network = found.content if tree is None else tree.topology(file, host_links)
    if not isinstance(network, Topology):
        raise FileError(f"{file}: expected a fabric")
    fabric = Cables()
    names = [network.id_name(node) for node in range(network.num_nodes)]
    fabric.hosts = dict.fromkeys(names[node] for node in network.servers.tolist())
    fabric.switches = dict.fromkeys(names[node] for node in network.switches.tolist())
    speeds, back = network.bandwidth_bytes_per_s.tolist(), network.opposite.tolist()
    latencies = network.latency_s.tolist()
    ends = zip(network.source.tolist(), network.target.tolist(), strict=True)
    for link, (source, target) in enumerate(ends):
        if speeds[link] != speeds[back[link]]:
            raise FileError(
                f"{file}: link {network.link_name(link)} differs by direction; only fabrics of "
                "equal directions can be joined"
            )
        if source < target:
            pair = (names[source], names[target])
            fabric.add(Cable(pair, bytes_per_s=speeds[link], latency_s=latencies[link]))
    return fabric


def _merged(fabrics: Sequence[Cables]) -> Cables:
    """One fabric of all files; a cable that two list with its ports counts once."""
    if len(fabrics) == 1:
        return fabrics[0]
    whole = Cables()
    seen: set[frozenset[tuple[str, str]]] = set()
    for fabric in fabrics:
        whole.switches |= fabric.switches
        whole.hosts |= fabric.hosts
        whole.assumed += fabric.assumed
        for cable in fabric.cables:
            both = frozenset(zip(cable.ends, cable.ports, strict=True))
            if all(cable.ports) and both in seen:
                continue
            seen.add(both)
            whole.add(cable)
    whole.hosts = {host: None for host in whole.hosts if host not in whole.switches}
    return whole


def _insides(boxes: Mapping[str, Box], fabric: Cables) -> dict[str, Box]:
    """The inside of each host of the fabric."""
    if len(boxes) == 1:
        return dict.fromkeys(fabric.hosts, *boxes.values())
    found: dict[str, Box] = {}
    hosts = {_plain(host): host for host in fabric.hosts}
    for file, box in boxes.items():
        named = box.host or PurePath(file).stem
        host = hosts.get(_plain(named))
        if host is None or host in found:
            already = "has two files" if host else "is not in the fabric"
            raise FileError(
                f"{file}: its host {named!r:.60} {already}; with several insides, name each file "
                "after its host"
            )
        found[host] = box
    if missing := [host for host in fabric.hosts if host not in found]:
        raise FileError(
            f"no file has the inside of {listed([host[:60] for host in missing], 4)}; give one "
            "file for all hosts, or one for each"
        )
    return {host: found[host] for host in fabric.hosts}


def _plain(host: str) -> str:
    """A host's name without its domain, in lower case."""
    return host.partition(".")[0].lower()


class _Joined:
    """The graph of all insides and the fabric."""

    def __init__(self, fabric: Cables, insides: Mapping[str, Box], cables: Sequence[Cable]) -> None:
        self.whole = Box()
        self.assumed: list[str] = []
        ends: dict[str, list[tuple[int, str]]] = {host: [] for host in insides}
        for number, cable in enumerate(cables):
            for end, port in zip(cable.ends, cable.ports, strict=True):
                if end in ends:
                    ends[end].append((number, port))
        places: dict[tuple[int, str], list[str]] = {}
        for host, box in insides.items():
            nodes = self._places(box, [port for _, port in ends[host]])
            for (number, _), at in zip(ends[host], nodes, strict=True):
                places[number, host] = [f"{host}/{node}" for node in at]
            self._add_host(host, box, {node for at in nodes for node in at})
        for switch in fabric.switches:
            self.whole.add_switch(switch)
        for number, cable in enumerate(cables):
            one, other = (places.get((number, end), [end]) for end in cable.ends)
            parts = max(len(one), len(other))
            speed = (cable.bytes_per_s or 0.0) / 1e6 / parts
            delay = max((cable.latency_s or 0.0) - Link().latency_s, 0.0)
            for part in range(parts):
                self.whole.join(one[part % len(one)], other[part % len(other)], speed, delay)

    def _add_host(self, host: str, box: Box, cards: set[str]) -> None:
        """Adds the inside of a host, with the cards that have cables."""
        inside = box.inside([card for card in box.cards if card in cards])
        for gpu, label in box.gpus.items():
            self.whole.add_gpu(f"{host}/{gpu}", f"{host}/{label}")
        for node in inside:
            self.whole.graph.add_node(f"{host}/{node}", **inside.nodes[node])
        for source, target, data in inside.edges(data=True):
            self.whole.graph.add_edge(f"{host}/{source}", f"{host}/{target}", **data)

    def _places(self, box: Box, ports: Sequence[str]) -> list[list[str]]:
        """The nodes that each cable of a host leads to: one card, or several that share it."""
        card_of = {port: card for card, names in box.cards.items() for port in names}
        if all(port in card_of for port in ports):
            return [[card_of[port]] for port in ports]
        near = [card for card in box.cards if _is_near(box, card)]
        nodes = near if len(near) >= len(ports) else [*box.cards]
        if nodes:
            said = "the fabric does not name these cards: cables lead to them in order"
        else:
            used = box.inside()
            nodes = [cpu for cpu in box.cpus if cpu in used] or [*box.gpus]
            kind = "processors" if nodes[0] in box.cpus else "GPUs"
            said = f"no network card is listed: cables lead to the {kind}"
        self.assumed.append(said)
        count, cables = len(nodes), len(ports)
        return [
            nodes[n * count // cables : max((n + 1) * count // cables, n * count // cables + 1)]
            for n in range(cables)
        ]


def _is_near(box: Box, card: str) -> bool:
    """Whether a GPU hangs on a PCIe switch above the card."""
    seen, pending = {card}, [card]
    while pending:
        for node in box.graph.successors(pending.pop()):
            if node in box.gpus:
                return True
            if node not in seen and node not in box.cpus:
                seen.add(node)
                pending.append(node)
    return False
