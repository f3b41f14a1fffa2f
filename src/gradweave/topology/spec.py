"""Specifications of networks: ``bcube:n=3,k=1``, ``torus:4x4``, or the path of a file."""

import dataclasses
import functools
import inspect
import os
import re
import types
import typing
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from gradweave.common import plugins
from gradweave.common.checks import did_you_mean
from gradweave.common.specification import UNNAMED, parse_spec, read_value
from gradweave.errors import InputWarning, OptionError, SpecError
from gradweave.topology.families.accelerator_tori import (
    TPU_LINKS,
    TRN2_LINK,
    tpu_torus,
    trn2,
)
from gradweave.topology.families.bcube import bcube
from gradweave.topology.families.circulant import circulant
from gradweave.topology.families.complete import complete
from gradweave.topology.families.dcell import dcell
from gradweave.topology.families.dragonfly import dragonfly
from gradweave.topology.families.dragonfly_plus import dragonfly_plus
from gradweave.topology.families.fat_tree import fat_tree
from gradweave.topology.families.hypercube import hypercube
from gradweave.topology.families.hyperx import hyperx
from gradweave.topology.families.jellyfish import jellyfish, jellyfish_reference
from gradweave.topology.families.leaf_spine import leaf_spine
from gradweave.topology.families.machines import BOXES, gpu_boxes
from gradweave.topology.families.places.cities import cities
from gradweave.topology.families.ring import ring
from gradweave.topology.families.slim_fly import slim_fly
from gradweave.topology.families.star import star
from gradweave.topology.families.torus import mesh, torus
from gradweave.topology.families.xpander import xpander
from gradweave.topology.formats.files import parts_of, read, read_together
from gradweave.topology.formats.readers import SUFFIXES
from gradweave.topology.topology import Link, Topology
from gradweave.topology.units import (
    ambiguous_bandwidth,
    ambiguous_time,
    parse_bandwidth,
    parse_latency,
    parse_overhead,
)

P = ParamSpec("P")
R = TypeVar("R")
TopologyLike = Topology | str | os.PathLike[str]
"""A network, its specification, or the path of a file."""


def as_topology(network: TopologyLike) -> Topology:
    """The given network, or the network that a specification or a file describes.

    Raises:
        OptionError: for any other type. Text raises as `from_spec` does.
    """
    if isinstance(network, Topology):
        return network
    if isinstance(network, str | os.PathLike):
        return from_spec(os.fspath(network))
    raise OptionError(
        "expected a network: a Topology, a specification such as 'ring:4', or the path of a file; "
        f"got {type(network).__name__}"
    )


def on_network(
    function: Callable[Concatenate[Topology, P], R],
) -> Callable[Concatenate[TopologyLike, P], R]:
    """The function for any network that `as_topology` takes.

    For functions on which `from_spec` stands, and which therefore cannot call it.
    """

    @functools.wraps(function)
    def called(topology: TopologyLike, *args: P.args, **kwargs: P.kwargs) -> R:
        return function(as_topology(topology), *args, **kwargs)

    called.__annotations__ = function.__annotations__ | {"topology": TopologyLike}
    return called


def from_spec(text: str, *, installed: bool = True) -> Topology:
    """Makes the network that a specification describes, or reads it from a file.

    In addition to its parameters, every family accepts ``bandwidth=10Gbit/s``, ``latency=5us``,
    ``capacity=2`` and ``overhead=20us``.

    Args:
        text: a specification, or the path of an existing file or one with a topology file's suffix;
            paths joined by ``+`` are files of hosts' insides and of their fabric.
        installed: whether families from installed packages also count; they must not if the text
            comes from a file.

    Raises:
        SpecError: the text is not a valid specification; the message names the error and the
            remedy.
        TopologyError: it is valid, but such a network cannot exist.
        FileError: the file cannot be read.

    >>> from_spec("bcube:n=3,k=1")
    Topology('bcube:n=3,k=1': 9 servers, 6 switches, 18 links)
    >>> from_spec("ring:8,bandwidth=10Gbit/s").name
    'ring:n=8,bandwidth=10Gbit/s'
    """
    if parts := parts_of(text):
        return read_together(parts)
    if os.path.isfile(text) or Path(text).suffix.lower() in SUFFIXES:
        return read(text)
    if re.search(r"[/\\.]", text.partition(":")[0]):
        raise SpecError(f"{text!r:.60}: no such file, and not a specification of a network")
    try:
        name, values = parse_spec(text)
    except SpecError as error:
        family = _FAMILIES.get(text.partition(":")[0].strip().lower().replace("-", "_"))
        if family is None:
            raise
        raise SpecError(f"{error}; write it as in {family.example}") from None
    family = _FAMILIES.get(name.lower().replace("-", "_")) or _installed(name, installed)
    if family.build is jellyfish and "reference" in values:
        family = _REFERENCE
    return _made(name, family, values)


def _made(name: str, family: "_Family", values: Mapping[str, str]) -> Topology:
    given = _by_parameter(name, family, values)
    link = _link(name, {key: given.pop(key) for key in _LINK_KEYS if key in given}, family.link)
    missing = [key for key in family.required if key not in given]
    if missing:
        lacking = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
        raise SpecError(f"{name}: {lacking}; write it as in {family.example}")
    arguments = {
        key: family.parameters[key](f"{name}: {key}", value) for key, value in given.items()
    }
    made = family.build(**arguments, link=link)
    if not isinstance(made, Topology):  # by a family of others
        raise OptionError(f"{name}: its family made a {type(made).__name__}, not a Topology")
    return made


def _integer(parameter: str, value: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", value):
        raise SpecError(f"{parameter} must be an integer of at most 18 digits, got {value!r:.60}")
    return int(value)


def _dimensions(parameter: str, value: str) -> tuple[int, ...]:
    sizes = value.split("x")
    if not all(re.fullmatch(r"[0-9]{1,18}", size) for size in sizes):
        raise SpecError(f"{parameter} must be sizes joined by x, such as 4x4, got {value!r:.60}")
    return tuple(map(int, sizes))


def _jumps(parameter: str, value: str) -> tuple[int, ...]:
    return tuple(_integer(parameter, jump) for jump in value.split("."))


def _word(parameter: str, value: str) -> str:
    return value


def _bandwidth(parameter: str, value: str) -> float:
    try:
        bandwidth = parse_bandwidth(value)
    except SpecError as error:
        raise SpecError(f"{parameter}: {error}") from None
    if doubt := ambiguous_bandwidth(value):
        warnings.warn(f"{parameter}: {doubt}", InputWarning, stacklevel=4)
    return bandwidth


def _time(name: str, quantity: str, value: str) -> float:
    seconds = (parse_latency if quantity == "latency" else parse_overhead)(value)
    if doubt := ambiguous_time(quantity, value):
        warnings.warn(f"{name}: {doubt}", InputWarning, stacklevel=4)
    return seconds


@dataclasses.dataclass(frozen=True)
class _Family:
    """The syntax of one family."""

    build: Callable[..., Topology]
    example: str
    parameters: Mapping[str, Callable[[str, str], Any]]
    """The parser of each parameter's value."""
    required: tuple[str, ...]
    unnamed: str | None = None
    """The parameter whose key may be left out."""
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    link: Link = dataclasses.field(default_factory=Link)
    """Default properties of its links."""
    summary: str = ""
    """If not given, the first line of the function's docstring."""


def _sized(build: Callable[..., Topology], example: str, key: str = "n", **rest: Any) -> _Family:
    """A family whose only parameter is an integer."""
    return _Family(build, example, {key: _integer}, (key,), unnamed=key, **rest)


def _grid(
    build: Callable[..., Topology],
    example: str,
    more: Any = types.MappingProxyType({}),
    **rest: Any,
) -> _Family:
    key = "dimensions"
    return _Family(build, example, {key: _dimensions, **more}, (key,), unnamed=key, **rest)


def _boxes(machine: str, nic: float | None = None, **rest: Any) -> Topology:
    return gpu_boxes(machine, nic_bytes_per_s=nic, **rest)


_FAMILIES: dict[str, _Family] = {
    "bcube": _Family(bcube, "bcube:n=3,k=1", {"n": _integer, "k": _integer}, ("n", "k")),
    "cities": _Family(
        cities,
        "cities:Oregon.Tokyo,each=4",
        {"names": lambda _, value: value.split("."), "each": _integer, "near": _bandwidth},
        (),
        unnamed="names",
    ),
    "circulant": _Family(
        circulant,
        "circulant:n=16,jumps=1.6",
        {"n": _integer, "jumps": _jumps},
        ("n", "jumps"),
    ),
    "complete": _sized(complete, "complete:8"),
    "dcell": _Family(dcell, "dcell:n=4,k=1", {"n": _integer, "k": _integer}, ("n", "k")),
    "dragonfly": _Family(
        dragonfly,
        "dragonfly:groups=9,routers_per_group=4,servers_per_router=2,global_links=2",
        dict.fromkeys(
            ("groups", "routers_per_group", "servers_per_router", "global_links"), _integer
        ),
        ("groups", "routers_per_group", "servers_per_router"),
    ),
    "dragonfly_plus": _Family(
        dragonfly_plus,
        "dragonfly_plus:groups=5,leaves_per_group=2,spines_per_group=2,servers_per_leaf=2,"
        "global_links=2",
        dict.fromkeys(
            (
                "groups",
                "leaves_per_group",
                "spines_per_group",
                "servers_per_leaf",
                "global_links",
            ),
            _integer,
        ),
        ("groups", "leaves_per_group", "spines_per_group", "servers_per_leaf"),
    ),
    "fat_tree": _sized(fat_tree, "fat_tree:k=4", "k"),
    "hypercube": _sized(
        hypercube, "hypercube:3", "dimension", aliases={"d": "dimension", "n": "dimension"}
    ),
    "hyperx": _grid(hyperx, "hyperx:4x4", {"servers_per_switch": _integer}),
    "jellyfish": _Family(
        jellyfish,
        "jellyfish:switches=10,degree=4,seed=0 or jellyfish:reference=J10,seed=0",
        dict.fromkeys(("switches", "degree", "servers_per_switch", "seed"), _integer),
        ("switches", "degree"),
    ),
    "leaf_spine": _Family(
        leaf_spine,
        "leaf_spine:leaves=4,spines=2,servers_per_leaf=4,oversubscription=2",
        {
            **dict.fromkeys(("leaves", "spines", "servers_per_leaf"), _integer),
            "oversubscription": _word,
        },
        ("leaves", "spines", "servers_per_leaf"),
    ),
    "mesh": _grid(mesh, "mesh:3x3"),
    "ring": _sized(ring, "ring:8"),
    "slim_fly": _Family(
        slim_fly,
        "slim_fly:q=5,servers_per_switch=4",
        dict.fromkeys(("q", "servers_per_switch"), _integer),
        ("q",),
        unnamed="q",
    ),
    "star": _sized(star, "star:8"),
    "torus": _grid(torus, "torus:4x4"),
    "xpander": _Family(
        xpander,
        "xpander:degree=4,lift=4",
        dict.fromkeys(("degree", "lift", "servers_per_switch", "seed"), _integer),
        ("degree", "lift"),
    ),
}

_MACHINES: dict[str, _Family] = {
    **{
        machine: _Family(
            functools.partial(_boxes, machine),
            machine if box.nic_bytes_per_s is None else f"{machine}:boxes=2",
            {
                **dict.fromkeys(
                    ("boxes", "nvswitches", "rails", "boxes_per_leaf", "spines"), _integer
                ),
                "oversubscription": _word,
                "nic": _bandwidth,
            },
            (),
            link=box.link,
            summary=box.summary,
        )
        for machine, box in BOXES.items()
    },
    **{
        f"tpu_{generation}": _grid(
            functools.partial(tpu_torus, generation=generation),
            f"tpu_{generation}:4x4",
            {"wrap": _word},
            link=link,
        )
        for generation, (_, link) in TPU_LINKS.items()
    },
    "trn2": _Family(trn2, "trn2", {"instances": _integer}, (), link=TRN2_LINK),
}
_FAMILIES |= _MACHINES

_SPELLINGS = {"fattree": "fat_tree", "leafspine": "leaf_spine"}
_FAMILIES |= {spelling: _FAMILIES[family] for spelling, family in _SPELLINGS.items()}

_REFERENCE = _Family(
    lambda reference, **rest: jellyfish_reference(reference, **rest),
    "jellyfish:reference=J10,seed=0",
    {"reference": _word, "seed": _integer},
    ("reference",),
)
"""Jellyfish with one of the reference graphs."""

_LINK_KEYS = ("bandwidth", "latency", "capacity", "overhead")


def own_families() -> dict[str, tuple[str, str]]:
    """For each of Gradweave's families by name, an example and a summary."""
    return {
        name: (family.example, family.summary or _summary(family.build))
        for name, family in _FAMILIES.items()
        if name not in _SPELLINGS
    }


def network_of(name: str, build: Callable[..., Topology], parameters: str = "") -> Topology:
    """A network of a function's family, from parameters in the form of a specification.

    Args:
        name: of the family.
        build: the function, as `family_of` takes it.
        parameters: such as ``rows=3,columns=4``.
    """
    values = parse_spec(f"{name}:{parameters}" if parameters else name)[1]
    return _made(name, family_of(name, build, name), values)


def read_plugin(plugin: plugins.Plugin) -> Callable[..., Topology]:
    """The function of an installed package's family, imported.

    Raises:
        OptionError: it cannot be imported or is refused.
    """
    build = plugin.load()
    family_of(plugin.name, build, plugin.label)
    return build


def example_of(name: str, build: Callable[..., Topology]) -> tuple[str, str]:
    """An example of a specification for a function's networks, and a summary of these."""
    return family_of(name, build, name).example, _summary(build)


def family_of(name: str, build: Any, label: str) -> _Family:
    """The syntax of a function that makes networks: its parameters by their annotations.

    Args:
        name: of the family.
        build: takes parameters by keyword, ``link`` among them, and returns a network.
        label: what it is called, for messages.

    Raises:
        OptionError: it is no such function.
    """
    if not callable(build) or isinstance(build, type):
        raise OptionError(
            f"{label}: expected a function that returns a Topology, got {build!r:.60}"
        )
    try:
        signature, kinds = inspect.signature(build).parameters, typing.get_type_hints(build)
    except (NameError, TypeError, ValueError) as error:
        raise OptionError(f"{label}: its annotations cannot be read: {error}") from error
    if "link" not in signature:
        raise OptionError(
            f"{label}: expected a parameter link: Link | None = None, for bandwidths and latencies"
        )
    given = [key for key in signature if key != "link"]
    bare = [key for key in given if key not in kinds]
    if bare:
        raise OptionError(f"{label}: {bare[0]} has no annotation, by which it would be read")
    parsers = {key: functools.partial(_by_kind, kinds[key]) for key in given}
    required = tuple(key for key in given if signature[key].default is inspect.Parameter.empty)
    written = ",".join(f"{key}={getattr(kinds[key], '__name__', 'value')}" for key in required)
    example = f"{name}:{written}" if written else name
    function: Any = build
    return _Family(
        function, example, parsers, required, required[0] if len(required) == 1 else None
    )


def _by_kind(kind: Any, parameter: str, value: str) -> Any:
    return read_value(parameter, kind, value)


def _summary(build: Callable[..., Topology]) -> str:
    """The first line of a function's docstring."""
    if isinstance(build, functools.partial):
        build = build.func
    return (inspect.getdoc(build) or "").partition("\n")[0]


def _installed(given: str, installed: bool) -> _Family:
    """The family that an installed package brings.

    Raises:
        SpecError: there is none.
    """
    name = given.lower().replace("-", "_")
    plugin = plugins.find(plugins.TOPOLOGY, name) if installed else None
    if plugin is None:
        raise SpecError(
            _unknown_family(given, plugins.names(plugins.TOPOLOGY) if installed else [])
        )
    return family_of(name, read_plugin(plugin), plugin.label)


def _unknown_family(name: str, others: list[str]) -> str:
    families = sorted([*(_FAMILIES.keys() - _SPELLINGS.keys() - _MACHINES.keys()), *others])
    families += sorted(_MACHINES)
    guess = did_you_mean(name, families)
    return f"{name!r:.60}: unknown family of networks; {guess}known are {', '.join(families)}"


def _by_parameter(name: str, family: _Family, values: Mapping[str, str]) -> dict[str, str]:
    """The values by their parameters' full names."""
    known = [*family.parameters, *_LINK_KEYS]
    given: dict[str, str] = {}
    for key, value in values.items():
        full = family.unnamed if key == UNNAMED else family.aliases.get(key, key)
        if full is None:
            raise SpecError(f"{name}: {value!r:.60} needs a key; write it as in {family.example}")
        if full not in known:
            guess = did_you_mean(key, known)
            raise SpecError(f"{name}: unknown parameter {key}; {guess}known are {', '.join(known)}")
        if full in given:
            raise SpecError(f"{name}: {full} is given twice")
        given[full] = value
    return given


def _link(name: str, values: Mapping[str, str], default: Link) -> Link | None:
    changes: dict[str, Any] = {}
    if "bandwidth" in values:
        changes["bandwidth_bytes_per_s"] = _bandwidth(name, values["bandwidth"])
    if "latency" in values:
        changes["latency_s"] = _time(name, "latency", values["latency"])
    if "capacity" in values:
        changes["capacity"] = _integer("capacity", values["capacity"])
    if "overhead" in values:
        changes["overhead_s"] = _time(name, "overhead", values["overhead"])
    return dataclasses.replace(default, **changes) if changes else None
