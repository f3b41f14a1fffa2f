"""Dragonfly: groups of routers, fully connected inside and evenly connected to one another."""

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import TopologyError
from gradweave.topology.drawing import MAX_DRAWN, circle, rotated
from gradweave.topology.families.family import check_size, integer, spec_name
from gradweave.topology.topology import Link, Topology


def dragonfly(
    groups: int,
    routers_per_group: int,
    servers_per_router: int,
    global_links: int = 1,
    *,
    link: Link | None = None,
) -> Topology:
    """Makes a dragonfly: g groups of a routers with p servers and h global links each.

    The routers of a group are fully connected. The a·h global links of a group are divided evenly
    among the other groups: ⌊a·h/(g−1)⌋ for each, one where g = a·h + 1, the largest network;
    remaining ports stay free. Port k of a group is on its router ⌊k/h⌋ and leads to the
    (k mod g−1)-th other group. Parallel links between two routers are one link of higher capacity.
    Servers are numbered router by router, group by group; routers follow.

    Args:
        groups: g, at least 1 and at most a·h + 1.
        routers_per_group: a, at least 1.
        servers_per_router: p, at least 1; a balanced dragonfly has a = 2p = 2h.
        global_links: h, at least 1: links of each router to other groups.
        link: properties of every link; `Link()` if not given.

    Raises:
        TopologyError: naming the parameter.

    Source: Kim, Dally, Scott and Abts, "Technology-driven, highly-scalable dragonfly topology",
        ISCA 2008, section 3.

    >>> dragonfly(groups=9, routers_per_group=4, servers_per_router=2, global_links=2)
    Topology('dragonfly:groups=9,routers_per_group=4,servers_per_router=2,global_links=2':
     72 servers, 36 switches, 162 links)
    """
    groups, routers, per_router, per_port = _parameters(
        groups, routers_per_group, servers_per_router, global_links
    )
    name = (
        f"dragonfly:groups={groups},routers_per_group={routers},"
        f"servers_per_router={per_router},global_links={per_port}"
    )
    switches = groups * routers
    servers = switches * per_router
    inside = groups * routers * (routers - 1) // 2
    check_size(name, servers + switches, servers + inside + switches * per_port // 2)
    server = np.arange(servers)
    access = np.stack([server, servers + server // per_router], axis=1)
    a, b = np.triu_indices(routers, 1)
    first = np.arange(groups)[:, None] * routers
    local = np.stack([(first + a).ravel(), (first + b).ravel()], axis=1)
    across, parallel = global_link_pairs(groups, routers, per_port)
    drawn = servers + switches <= MAX_DRAWN
    return Topology.from_links(
        spec_name(name, link),
        servers=servers,
        switches=switches,
        links=np.concatenate([access, servers + local, servers + across]),
        capacity=np.concatenate([np.ones(len(access) + len(local), np.int64), parallel]),
        link=link,
        positions=_positions(groups, routers, per_router) if drawn else None,
    )


def _parameters(
    groups: int, routers_per_group: int, servers_per_router: int, global_links: int
) -> tuple[int, int, int, int]:
    """The parameters of `dragonfly`, checked."""
    groups = integer("dragonfly", "groups", groups, least=1)
    routers = integer("dragonfly", "routers_per_group", routers_per_group, least=1)
    per_router = integer("dragonfly", "servers_per_router", servers_per_router, least=1)
    per_port = integer("dragonfly", "global_links", global_links, least=1)
    if groups > routers * per_port + 1:
        raise TopologyError(
            f"dragonfly: groups must be at most routers_per_group·global_links + 1 = "
            f"{routers * per_port + 1}, got {groups}"
        )
    return groups, routers, per_router, per_port


def global_link_pairs(
    groups: int, routers: int, per_port: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Links between groups, divided evenly as `dragonfly` describes.

    Args:
        groups: number of groups.
        routers: routers of each group with links to others, numbered group by group.
        per_port: links of each router to other groups.

    Returns:
        [links, 2] pairs of routers, and the number of parallel links in each.
    """
    if groups == 1:
        return np.zeros((0, 2), np.int64), np.zeros(0, np.int64)
    low, high = np.triu_indices(groups, 1)
    copies = routers * per_port // (groups - 1)
    offset = np.arange(copies)[:, None] * (groups - 1)
    # A group's ports count the other groups without itself: high is one less, seen from low.
    ends = [
        (low * routers + (offset + high - 1) // per_port).ravel(),
        (high * routers + (offset + low) // per_port).ravel(),
    ]
    return np.unique(np.stack(ends, axis=1), axis=0, return_counts=True)


def _positions(groups: int, routers: int, per_router: int) -> NDArray[np.float64]:
    """Groups on a circle, each a circle of routers with its servers around them."""
    ring = circle(routers) if routers > 1 else np.zeros((1, 2))
    # Servers fan out beyond their router.
    fan = (np.arange(per_router) + 0.5) / per_router - 0.5
    spread = 2 * np.pi / max(routers, 3) * 0.8
    outer = [rotated(circle(routers, 1.9), angle) for angle in fan * spread]
    servers = np.stack(outer, axis=1).reshape(-1, 2)
    apart = 0.0 if groups == 1 else 2.6 / np.sin(np.pi / max(groups, 2))
    centres = circle(groups, apart) if groups > 1 else np.zeros((1, 2))
    # Rotated by place, so that no two groups' links lie on one line.
    angles = 2 * np.pi * np.arange(groups) / groups + 0.3
    placed = [
        np.concatenate(
            [rotated(part, angle) + centre for angle, centre in zip(angles, centres, strict=True)]
        )
        for part in (servers, ring)
    ]
    return np.concatenate(placed)
