"""Checks an implicit schedule without writing it out: its base, its group, and loads by orbits.

Why this suffices. Let the group G act by automorphisms of the network (servers go to servers, links
to links of the same properties), such that only the identity fixes a server, and let each server be
the image of exactly one root, by exactly one element. Then

- **Each image is a valid schedule of its pieces.** The rules for routes, for writes to the same
  place and for results speak only of nodes, links, rounds and one piece. An automorphism preserves
  them, so an image of the base breaks none if the base breaks none.
- **Pieces do not interact except by the links' capacities.** The images' roots are all servers,
  each once, so no two images are about the same piece, and every server has its piece.
- **A round's load is the same on all links of an orbit.** Let the base use links of orbit O n times
  in a round (a link used twice counts twice). Its images make n·|G| uses in O. G permutes the uses,
  so each link of O has equally many: n·|G| / |O|, which is n times the order of the stabiliser of a
  link. Capacities are equal in O. So one comparison for each orbit and round decides for all links.
"""

import numpy as np
from numpy.typing import NDArray

from gradweave.schedules.implicit import ImplicitSchedule
from gradweave.topology.topology import LINK_PROPERTIES, Topology
from gradweave.topology.translations import Translations
from gradweave.verifier.verdict import Violation


def symmetry_violation(plan: ImplicitSchedule) -> Violation | None:
    """Why the group is not one of automorphisms that moves the roots to each server once, if so."""
    for axis, move in zip(plan.symmetry.moving, plan.symmetry.generators(), strict=True):
        problem = _moved_wrongly(plan.topology, move)
        if problem is not None:
            return _violation(f"a step along axis {axis} {problem}")
    return _orbits_violation(plan)


def _moved_wrongly(topology: Topology, move: NDArray[np.int64]) -> str | None:
    """Why a relabelling [V] is no automorphism, if it is none."""
    if not np.array_equal(np.sort(move), np.arange(topology.num_nodes)):
        return "moves two nodes to one; expected a relabelling"
    changed = np.flatnonzero(topology.is_server[move] != topology.is_server)
    if changed.size:
        names = (topology.node_name(int(node)) for node in (changed[0], move[changed[0]]))
        return f"moves {' to '.join(names)}; expected servers to stay servers"
    nodes = np.int64(topology.num_nodes)
    key = topology.source * nodes + topology.target
    image = move[topology.source] * nodes + move[topology.target]
    order = np.argsort(image)
    # Both have as many directions, each once: they are the same links if sorted lists agree.
    wrong = image[order] != key
    if wrong.any():
        # The first difference is an image that is no link, or a link that is no image.
        first = int(wrong.argmax())
        joined = min(int(image[order][first]), int(key[first]))
        missing = int(image[order][first]) == joined
        pair = topology.pair_name(*divmod(joined, topology.num_nodes))
        return (
            f"moves a link to {pair}; expected a link there, the network has none"
            if missing
            else f"moves no link to {pair}; expected one, as the network has"
        )
    for field in LINK_PROPERTIES:
        column = getattr(topology, field)
        differ = column[order] != column
        if differ.any():
            link = int(differ.argmax())
            return (
                f"moves link {topology.link_name(int(order[link]))} to {topology.link_name(link)}; "
                f"expected the same {field}, got {column[order[link]]:g} and {column[link]:g}"
            )
    return None


def _orbits_violation(plan: ImplicitSchedule) -> Violation | None:
    topology, symmetry, root = plan.topology, plan.symmetry, plan.base.root
    for layer in np.unique(symmetry.layer_of(topology.servers)).tolist():
        kept = [axis for axis in symmetry.moving if axis not in symmetry.layers[layer]]
        if kept:
            server = topology.node_name(symmetry.first[layer])
            return _violation(
                f"a step along axis {kept[0]} keeps {server} in place; expected it to move "
                "every server"
            )
    # So each orbit of servers has as many as the group has elements.
    orbits = np.unique(symmetry.orbit[root])
    if len(orbits) < len(root):
        return _violation(
            f"two of the {len(root)} roots of the base are images of each other; expected one root "
            "for each orbit of servers"
        )
    if plan.pieces != topology.num_servers:
        return _violation(
            f"{symmetry.order:,} images of {len(root):,} roots are {plan.pieces:,} servers; "
            f"expected all {topology.num_servers:,}"
        )
    return None


def _violation(problem: str) -> Violation:
    return Violation("symmetry", f"symmetry: {problem}", None, "automorphisms", "others")


def load_violation(plan: ImplicitSchedule) -> Violation | None:
    """A link that all images together load beyond its capacity, in the first such round."""
    base, topology = plan.base_collective, plan.topology
    links, transfer = base.route_links
    if not links.size:
        return None
    orbit, kept = _orbits_of_links(topology, plan.symmetry, links)
    key = base.round[transfer] * np.int64(len(topology.source)) + orbit
    _, first, uses = np.unique(key, return_index=True, return_counts=True)
    load, capacity = uses * kept[first], topology.capacity[links[first]]
    over = np.flatnonzero(load > capacity)
    if not over.size:
        return None
    use, found, most = int(first[over[0]]), int(load[over[0]]), int(capacity[over[0]])
    link, row = int(links[use]), int(transfer[use])
    at, name = int(base.round[row]), topology.link_name(link)
    message = (
        f"round {at}: link {name}, like its images, carries {found} transfers; "
        f"expected at most {most}"
    )
    ends = int(topology.source[link]), int(topology.target[link])
    return Violation("capacity", message, at, most, found, row, ends, piece=int(base.piece[row]))


def _orbits_of_links(
    topology: Topology, symmetry: Translations, links: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """[M] the first link of each link's orbit, and [M] the order of each link's stabiliser.

    The source is moved to where its shifted coordinates are 0, then the target by the shifts that
    keep the source. A shift keeps a link if it is 0 along all axes of both ends' layers.
    """
    source, target = topology.source[links], topology.target[links]
    to_source = symmetry.shift_between(source, symmetry.orbit[source])
    source, target = symmetry.moved(source, to_source), symmetry.moved(target, to_source)
    rest = symmetry.shift_between(target, symmetry.orbit[target])
    order = np.ones(len(links), np.int64)
    ends = [symmetry.layer_of(nodes) for nodes in (source, target)]
    for place, axis in enumerate(symmetry.moving):
        has = np.array([axis in layer for layer in symmetry.layers])
        rest[has[ends[0]], place] = 0
        order *= np.where(has[ends[0]] | has[ends[1]], 1, symmetry.sizes[axis])
    return topology.find_links(source, symmetry.moved(target, rest)), order
