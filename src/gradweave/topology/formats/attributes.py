"""Unknown attributes: likely misspellings are errors, others are listed in one warning."""

import difflib
import functools
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING

from gradweave.errors import FileError, InputWarning, TopologyError

if TYPE_CHECKING:
    import networkx as nx

KIND_KEYS = ("kind", "type", "role")
"""Node attributes that may hold the node's kind: server or switch."""
_NODE_KEYS = frozenset({*KIND_KEYS, "label", "name", "x", "y"})
_PROPERTY_KEYS = {
    "bandwidth": ("bandwidth", "bandwidth_bytes_per_s"),
    "latency": ("latency", "latency_s"),
    "capacity": ("capacity",),
    "overhead": ("overhead", "overhead_s"),
}
"""Link attributes by the property that they state."""
SPREADS = ("bandwidth_spread_bytes_per_s", "latency_spread_s")
"""Link attributes of measured networks, which say how far their figures spread; not read."""
SPEED_KEYS = ("LinkSpeedRaw", "LinkSpeed", "LinkSpeedUnits", "LinkLabel")
"""Link attributes of the Internet Topology Zoo from which bandwidths are read."""
_LINK_KEYS = frozenset(
    [
        *(key for keys in _PROPERTY_KEYS.values() for key in keys),
        *("id", "key", *SPREADS, *SPEED_KEYS),
    ]
)
_SYNONYMS = {
    **dict.fromkeys(("bw", "speed", "rate", "throughput"), "bandwidth"),
    **dict.fromkeys(("delay", "lat", "rtt"), "latency"),
    "lanes": "capacity",
}
_SIMILARITY = 0.75
"""difflib's ratio from which a name counts as a misspelling of another."""
_MAX_LISTED = 8


def check_attributes(graph: "nx.Graph", name: str) -> None:
    """Rejects misspellings of known attributes, and warns of other unknown ones.

    A misspelt attribute would silently be replaced by its default. Where the known attribute is
    present too, one that resembles it only counts as unknown.

    Args:
        graph: any graph.
        name: the network's name, for the warning.

    Raises:
        TopologyError: naming the node or link, and the attribute probably intended.
    """
    unknown: dict[str, None] = {}
    for node, data in graph.nodes(data=True):
        for key in data.keys() - _NODE_KEYS:
            intended = closest(key, KIND_KEYS)
            if intended and not data.keys() & set(KIND_KEYS):
                raise TopologyError(f"node {shown(node)}: {_did_you_mean(key, intended)}")
            unknown[str(key)] = None
    for source, target, data in graph.edges(data=True):
        for key in data.keys() - _LINK_KEYS:
            if "module" in str(key).lower() and not data.keys() & set(_PROPERTY_KEYS["bandwidth"]):
                raise TopologyError(
                    f"link {shown(source)}→{shown(target)}: {shown(key)}: modules, as in SNDlib, "
                    "have capacities without a unit; write bandwidth, such as 155Mbit/s"
                )
            intended = _intended_property(key)
            if intended and not data.keys() & set(_PROPERTY_KEYS[intended]):
                raise TopologyError(
                    f"link {shown(source)}→{shown(target)}: {_did_you_mean(key, intended)}"
                )
            unknown[str(key)] = None
    if unknown:
        names = sorted(unknown)
        listed = ", ".join(map(shown, names[:_MAX_LISTED])) + ", …" * (len(names) > _MAX_LISTED)
        warnings.warn(
            f"{name}: unknown attributes are ignored: {listed}; links may have "
            f"{', '.join(_PROPERTY_KEYS)}, nodes {', '.join(sorted(_NODE_KEYS))}",
            InputWarning,
            stacklevel=3,
        )


def reject_misspelt(keys: Iterable[str], known: Iterable[str]) -> None:
    """Rejects a misspelling of a known key that is absent.

    Args:
        keys: the keys of an object in a file.
        known: keys that have a meaning.

    Raises:
        FileError: naming both.
    """
    known, keys = tuple(known), tuple(keys)
    present = frozenset(keys)
    for key in keys:
        intended = None if key in known else closest(key, known)
        if intended and intended not in present:
            raise FileError(_did_you_mean(key, intended))


@functools.lru_cache(maxsize=4096)
def closest(word: object, known: tuple[str, ...]) -> str | None:
    """The known word that a word probably misspells, ignoring case, or None."""
    if not isinstance(word, str) or len(word) > 100:
        return None
    plain = word.strip().lower().replace("-", "_").replace(" ", "_")
    matches = difflib.get_close_matches(plain, known, 1, _SIMILARITY)
    return matches[0] if matches else None


@functools.lru_cache(maxsize=4096)
def _intended_property(key: object) -> str | None:
    if not isinstance(key, str):
        return None
    plain = key.strip().lower()
    if plain in _SYNONYMS:
        return _SYNONYMS[plain]
    for name, keys in _PROPERTY_KEYS.items():
        if plain.startswith(name) or closest(key, keys):
            return name
    return None


def shown(value: object) -> str:
    """A value from a file, shortened for a message."""
    text = str(value) if isinstance(value, int) else repr(value)
    return text if len(text) <= 40 else f"{text[:37]}…"


def _did_you_mean(key: object, intended: str) -> str:
    return f"unknown attribute {shown(key)}; did you mean {intended}?"
