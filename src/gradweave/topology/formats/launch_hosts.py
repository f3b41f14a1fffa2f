"""Hosts as launchers list them: Open MPI's and MPICH's hostfiles, Slurm's node lists, plain names.

    node1 slots=4 max_slots=8      node1:4 ifname=ib0      node[1-4,7],login1      node1

Such a list names no racks, so all hosts are put on one switch.

Source: Open MPI 5's hostfile (its ``hostfile_lex.l``); MPICH's "Using the Hydra Process Manager".
"""

import re
from collections import Counter

from gradweave.errors import FileError
from gradweave.topology.formats.host_tree import ROOT, HostTree, unused
from gradweave.topology.formats.hostlist import hosts_of
from gradweave.topology.topology import MAX_NODES

_COUNT = r"slots?|cpus?|count"
_KEYS = rf"{_COUNT}|(?:max[-_]?)(?:slots|cpus)|(?:slots|cpus)[-_]max|user[-_]?name|user|port"
_KEYS += "|binding|ifname|map"
_HOST = r"(?:[\w.-]+@)?[A-Za-z0-9\[](?:[\w.,\[\]-]*[\w\]])?"
_LINE = re.compile(rf"({_HOST})(?::([0-9]+))?((?:\s+(?:{_KEYS})=\S+)*)", re.ASCII | re.IGNORECASE)
_SLOTS = re.compile(rf"\s(?:{_COUNT})=([0-9]+)(?!\S)", re.IGNORECASE)
_EXPECTED = "expected a host, as in node1, node1:4, node1 slots=4 or node[1-4]"


def are_launch_hosts(text: str) -> bool:
    r"""Whether a text is a launcher's list of hosts, judged by its first line with content.

    ``node1:4`` is a host with four slots, unless other lines show that it is host 4 of rack node1:
    then the names before the colon repeat, and the numbers after them do not.

    Args:
        text: the file's text.

    >>> are_launch_hosts("node1:4\nnode2:4"), are_launch_hosts("rack1:1\nrack1:2\nrack2:3")
    (True, False)
    >>> are_launch_hosts("node1 slots=4"), are_launch_hosts("a b 100Gbit/s")
    (True, False)
    """
    lines = [line for _, line in _lines(text)]
    first = _LINE.fullmatch(lines[0]) if lines else None
    if first is None:
        return False
    if first[2] is None or first[3]:
        return True
    pairs = [line.partition(":") for line in lines]
    if not all(number.isdecimal() for _, _, number in pairs):
        return all(map(_LINE.fullmatch, lines))
    names, numbers = ({pair[place] for pair in pairs} for place in (0, 2))
    return len(names) == len(lines) or len(numbers) < len(lines)


def only_launch_hosts(text: str) -> bool:
    """Whether every line of a text names a host.

    Args:
        text: the file's text, or its beginning up to the end of a line.
    """
    return are_launch_hosts(text) and all(_LINE.fullmatch(line) for _, line in _lines(text))


def parse_launch_hosts(text: str) -> HostTree:
    """Reads hosts, in the order of their first mention.

    Args:
        text: the file's text; # or // starts a comment.

    Raises:
        FileError: naming the line.
    """
    slots: Counter[str] = Counter()
    for number, line in _lines(text):
        where = f"line {number}"
        match = _LINE.fullmatch(line)
        if match is None:
            raise FileError(f"{where}: {_EXPECTED}, got {line!r:.60}")
        given = match[2] or next(iter(_SLOTS.findall(match[3])), "1")
        try:
            hosts = hosts_of(match[1].rpartition("@")[2])
        except FileError as error:
            raise FileError(f"{where}: {error}") from None
        for host in hosts:
            slots[host] += int(given[:9])
        if len(slots) > MAX_NODES:
            raise FileError(f"{where}: more than {MAX_NODES:,} hosts")
    if not slots:
        raise FileError(f"no hosts; {_EXPECTED}")
    note = (
        f"no racks are named: all {len(slots)} hosts are assumed to be on one switch, where every "
        "order of them is as good; write rack1:node7 for each host to say where it is"
    )
    host, most = slots.most_common(1)[0]
    if most > 1:
        note += f"; slots ({host} has {most}) are not kept: a host is one server"
    return HostTree(dict.fromkeys(slots, unused(ROOT, slots)), {}, note=note)


def _lines(text: str) -> list[tuple[int, str]]:
    """Numbered lines with content, without comments and without spaces around =."""
    lines = []
    for number, line in enumerate(text.lstrip("\ufeff").splitlines(), 1):
        content = re.split("#|//", line, maxsplit=1)[0].strip()
        if content:
            lines.append((number, re.sub(r"\s*=\s*", "=", content)))
    return lines
