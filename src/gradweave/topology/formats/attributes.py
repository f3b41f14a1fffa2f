"""Attributes that mean nothing here: misspelt ones are refused, others named once."""

import difflib
import functools
import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from gradweave.errors import InputWarning, TopologyError

if TYPE_CHECKING:
    import networkx as nx

KIND_KEYS = ("kind", "type", "role")
"""Node attributes that may say whether a node is a server or a switch."""
_OF_NODES = frozenset({*KIND_KEYS, "label", "name", "x", "y"})
_OF_LINKS = {
    "bandwidth": ("bandwidth", "bandwidth_bytes_per_s"),
    "latency": ("latency", "latency_s"),
    "capacity": ("capacity",),
}
"""By property of a link: the attributes that state it."""
_ALL_OF_LINKS = frozenset(key for keys in _OF_LINKS.values() for key in keys) | {"id", "key"}
_OTHER_WORDS = {
    **dict.fromkeys(("bw", "speed", "rate", "throughput"), "bandwidth"),
    **dict.fromkeys(("delay", "lat", "rtt"), "latency"),
    "lanes": "capacity",
}
_ALIKE = 0.75
"""Ratio of difflib from which a name is taken for a misspelling of another."""
_MOST_SHOWN = 8


def check_attributes(graph: "nx.Graph", name: str) -> None:
    """Refuses attributes that are nearly known ones, and warns of others.

    A misspelt attribute would silently be replaced by its default. One that is like a known one is
    let pass where the known one is there too.

    Args:
        graph: any graph.
        name: the network's name, for the warning.

    Raises:
        TopologyError: naming the node or link, and the attribute that was meant.
    """
    unused: dict[str, None] = {}
    for node, data in graph.nodes(data=True):
        for key in data.keys() - _OF_NODES:
            if near(key, KIND_KEYS) and not data.keys() & set(KIND_KEYS):
                raise TopologyError(
                    f"node {shown(node)}: {_did_you_mean(key, near(key, KIND_KEYS))}"
                )
            unused[str(key)] = None
    for source, target, data in graph.edges(data=True):
        for key in data.keys() - _ALL_OF_LINKS:
            meant = _property_meant(key)
            if meant and not data.keys() & set(_OF_LINKS[meant]):
                raise TopologyError(
                    f"link {shown(source)}→{shown(target)}: {_did_you_mean(key, meant)}"
                )
            unused[str(key)] = None
    if unused:
        names = sorted(unused)
        listed = ", ".join(map(shown, names[:_MOST_SHOWN])) + ", …" * (len(names) > _MOST_SHOWN)
        warnings.warn(
            f"{name}: attributes that mean nothing here are left out: {listed}; links may have "
            f"bandwidth, latency and capacity, nodes {', '.join(sorted(_OF_NODES))}",
            InputWarning,
            stacklevel=3,
        )


def refuse_misspelt(data: Mapping[str, Any], known: Iterable[str], error: type[Exception]) -> None:
    """Refuses a key of a file's object that is nearly a known one which is not there.

    Args:
        data: the object.
        known: keys that mean something.
        error: what to raise.
    """
    known = tuple(known)
    for key in data:
        meant = None if key in known else near(key, known)
        if meant and meant not in data:
            raise error(_did_you_mean(key, meant))


@functools.lru_cache(maxsize=4096)
def near(word: object, known: tuple[str, ...]) -> str | None:
    """The known word that one is a misspelling of, in any case; None if there is none."""
    if not isinstance(word, str) or len(word) > 100:
        return None
    plain = word.strip().lower().replace("-", "_").replace(" ", "_")
    found = difflib.get_close_matches(plain, known, 1, _ALIKE)
    return found[0] if found else None


@functools.lru_cache(maxsize=4096)
def _property_meant(key: object) -> str | None:
    if not isinstance(key, str):
        return None
    plain = key.strip().lower()
    if plain in _OTHER_WORDS:
        return _OTHER_WORDS[plain]
    for meant, keys in _OF_LINKS.items():
        if plain.startswith(meant) or near(key, keys):
            return meant
    return None


def shown(value: object) -> str:
    """A value from a file as a message may show it."""
    text = str(value) if isinstance(value, int) else repr(value)
    return text if len(text) <= 40 else f"{text[:37]}…"


def _did_you_mean(key: object, meant: str | None) -> str:
    return f"unknown attribute {shown(key)}; did you mean {meant}?"
