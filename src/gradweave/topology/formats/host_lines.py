"""Hosts by line, each after its racks: ``rack1:node7``, or ``pod1:rack1:node7``."""

import itertools
import re

from gradweave.errors import FileError
from gradweave.topology.formats.host_tree import MAX_LEVELS, HostTree, HostTreeBuilder

_LINE = re.compile(r"[^\s:#]+(?::[^\s:#]+)+")
_EXPECTED = "expected a rack and a host, as in rack1:node7"


def are_host_lines(text: str) -> bool:
    r"""Whether the first line that says anything is of a rack and a host.

    No edge list has such a line: its lines have at least two fields.

    Args:
        text: the file's text, or how it begins.

    >>> are_host_lines("# ours\nrack1:node7\n"), are_host_lines("a b 100Gbit/s")
    (True, False)
    """
    for line in text.lstrip("\ufeff").splitlines():
        content = line.partition("#")[0].strip()
        if content:
            return bool(_LINE.fullmatch(content))
    return False


def parse_host_lines(text: str) -> HostTree:
    """Reads hosts after their racks, and racks after what they are in.

    Racks of one name in different pods are different ones.

    Args:
        text: the file's text; what follows # on a line is a comment.

    Raises:
        FileError: naming the line.
    """
    builder = HostTreeBuilder()
    first: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        content = line.partition("#")[0].strip()
        if not content:
            continue
        if not _LINE.fullmatch(content):
            raise FileError(f"line {number}: {_EXPECTED}, got {content!r:.60}")
        *groups, host = content.split(":")
        if len(groups) > MAX_LEVELS:
            raise FileError(f"line {number}: at most {MAX_LEVELS} levels of racks")
        if host in first:
            raise FileError(
                f"line {number}: host {host!r:.60} is on line {first[host]} already; expected each "
                "once"
            )
        first[host] = number
        racks = [":".join(groups[: depth + 1]) for depth in range(len(groups))]
        builder.add_host(f"line {number}", host, racks[-1])
        for upper, lower in itertools.pairwise(racks):
            builder.add_switch(f"line {number}", lower, upper)
    if not builder.hosts:
        raise FileError(f"no hosts; {_EXPECTED}")
    return builder.tree(top_has_no_name=True)
