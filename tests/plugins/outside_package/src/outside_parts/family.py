"""A family of networks: two rails with rungs between."""

from gradweave.topology import Link, Topology, spec_name


def ladder(rungs: int, twisted: bool = False, *, link: Link | None = None) -> Topology:
    """Two rails of servers with a rung between each pair; twisted, the ends join crosswise."""
    rails = [(2 * rung + side, 2 * rung + 2 + side) for rung in range(rungs - 1) for side in (0, 1)]
    steps = [(2 * rung, 2 * rung + 1) for rung in range(rungs)]
    ends = [(0, 2 * rungs - 1), (1, 2 * rungs - 2)] if twisted else []
    body = f"ladder:rungs={rungs}" + (",twisted=true" if twisted else "")
    return Topology.from_links(
        spec_name(body, link), servers=2 * rungs, switches=0, links=rails + steps + ends, link=link
    )
