"""How many servers' contributions one server can have by some time, compiled."""

import numpy as np
from numpy.typing import NDArray

from gradweave.common.compiled import kernel
from gradweave.topology.topology import Floats


@kernel(inner=True, allocates=False)
def not_after(ascending: Floats, time: float) -> int:
    """Number of ascending times that are not after a given time."""
    low, high = 0, len(ascending)
    while low < high:
        middle = (low + high) // 2
        if ascending[middle] <= time:
            low = middle + 1
        else:
            high = middle
    return low


@kernel(inner=True, allocates=False)
def most_known(
    server: int,
    time: float,
    own: int,
    gathering: bool,
    distance: Floats,
    overhead: float,
    ports: float,
    spread: Floats,
    reached: Floats,
) -> int:
    """Maximum number of a set's contributions that one server can have by some time.

    The server's links carry at most `ports` messages concurrently, one after the other. The message
    that starts k-th from the end left its sender while k messages still had to hold the links. What
    the sender had by then is limited in two ways: by what messages without distances could have
    brought it, and by the members of the set that are near enough. Senders that can have nothing of
    the set in time are left out.

    Without gathering, time is reversed: the result is how many of the set the server's contribution
    can reach. Its messages start at 0, whatever their distances, and the k-th arrives that much
    later.

    Args:
        server: rank of the server.
        time: seconds.
        own: whether the set contains the server itself: 0 or 1.
        gathering: whether the server receives; otherwise it sends, and the other servers receive.
        distance: [N, N] minimum latency to each server from each other; reversed if not gathering.
        overhead: minimum seconds for which a message holds the server's links.
        ports: maximum number of messages that those links carry concurrently.
        spread: [N] ascending; the earliest times at which any server has one, two, … contributions.
        reached: [N, Z] for each server, ascending: earliest arrival times of the set's members.
    """
    near, latest = not_after(reached[server], time), -1.0
    for other in range(len(distance)):
        left = time - distance[server, other] - overhead
        if other != server and left >= reached[other, 0]:
            latest = max(latest, left)
    known = own
    for k in range(1, reached.shape[1] + 1):
        waited, most = overhead * (max(1.0, k / ports) - 1.0), 0
        for other in range(len(distance)):
            left = time - distance[server, other] - overhead
            left = min(left, latest - waited) if gathering else left - waited
            if other != server and left >= reached[other, 0]:
                most = max(most, min(not_after(spread, left), not_after(reached[other], left)))
        known += most
        if most == 0 or known >= near:
            break
    return min(known, near)


@kernel
def not_before(
    server: int,
    count: int,
    own: int,
    gathering: bool,
    distance: Floats,
    overhead: float,
    ports: float,
    spread: Floats,
    reached: Floats,
    halvings: int,
) -> float:
    """A time before which a server cannot have a given number of a set; see `most_known`.

    Args:
        server: rank of the server.
        count: the number, at least 1.
        own: as in `most_known`, like all arguments below except the last.
        gathering: whether it receives.
        distance: [N, N] seconds.
        overhead: seconds.
        ports: concurrent messages.
        spread: [N] seconds.
        reached: [N, Z] seconds.
        halvings: bisection steps.
    """
    low, high = reached[server, count - 1], distance[server].max() + overhead * (count + 1)
    high = max(low, high)
    known = most_known(server, low, own, gathering, distance, overhead, ports, spread, reached)
    if known >= count:
        return low
    for _ in range(halvings):
        middle = (low + high) / 2
        known = most_known(
            server, middle, own, gathering, distance, overhead, ports, spread, reached
        )
        if known >= count:
            high = middle
        else:
            low = middle
    return low


@kernel
def known_by(
    times: Floats,
    own: NDArray[np.int64],
    distance: Floats,
    overhead: Floats,
    ports: Floats,
    spread: Floats,
    reached: Floats,
) -> NDArray[np.int64]:
    """[N] maximum number of a set that each server has by its given time; see `most_known`.

    Args:
        times: [N] seconds; nothing is known before 0.
        own: [N] whether the set contains the server itself.
        distance: [N, N] seconds.
        overhead: [N] seconds.
        ports: [N] concurrent messages.
        spread: [N] seconds.
        reached: [N, Z] seconds.
    """
    known = np.zeros(len(times), np.int64)
    for server in range(len(times)):
        if times[server] >= 0.0:
            known[server] = most_known(
                server,
                times[server],
                own[server],
                True,
                distance,
                overhead[server],
                ports[server],
                spread,
                reached,
            )
    return known
