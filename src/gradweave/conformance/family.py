"""The promises of every family of networks, one function for each promise of a network."""

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from gradweave.conformance.finding import Findings, attempt, expect, refused_in_one_line
from gradweave.conformance.scheduler import is_not_better_than_possible, is_valid
from gradweave.errors import SpecError
from gradweave.processes.owned import temporary_folder
from gradweave.schedulers.trees.merged import Merged
from gradweave.topology.formats.files import read, save
from gradweave.topology.spec import family_of, network_of
from gradweave.topology.topology import Topology

BANDWIDTH_BYTES_PER_S = 1.25e9
_LINK = "bandwidth=10Gbit/s,latency=7us,capacity=3"
MAX_SCHEDULED = 64
"""Servers of the largest network for which a schedule is made; it takes a second."""


@dataclasses.dataclass(frozen=True)
class Given:
    """A family, and the parameters with which it is tried."""

    name: str
    build: Callable[..., Topology]
    parameters: str
    """As in a specification."""

    @property
    def topology(self) -> Topology:
        """A newly made network."""
        return network_of(self.name, self.build, self.parameters)


def is_made_again(given: Given) -> None:
    """The same parameters make the same network."""
    one, other = given.topology, given.topology
    expect(one.same_network(other) and one.name == other.name, "made twice, it differs")


def is_named_by_its_specification(given: Given) -> None:
    """Its name, which files and pages show, is the specification that makes it."""
    made = given.topology
    name, _, parameters = made.name.partition(":")
    expect(
        name == given.name,
        f"its name must begin with {given.name}, as spec_name makes it; got {made.name!r}",
    )
    again = network_of(given.name, given.build, parameters)
    expect(again.same_network(made), f"{made.name} makes another network")


def takes_link_properties(given: Given) -> None:
    """Bandwidth, latency and capacity can be given, change its links, and appear in its name."""
    plain, parameters = given.topology, ",".join(filter(None, (given.parameters, _LINK)))
    made = network_of(given.name, given.build, parameters)
    expect(np.array_equal(made.source, plain.source), "with other bandwidths it has other links")
    for column, value in (
        ("bandwidth_bytes_per_s", BANDWIDTH_BYTES_PER_S),
        ("latency_s", 7e-6),
        ("capacity", 3),
    ):
        got = getattr(made, column)
        expect(
            np.any(np.isclose(got, value, rtol=1e-12, atol=0.0))
            or not np.array_equal(got, getattr(plain, column)),
            f"link {column} does not come from its parameter link",
        )
    again = network_of(given.name, given.build, made.name.partition(":")[2])
    expect(again.same_network(made), f"{made.name} leaves out bandwidths, latencies or capacities")


def is_kept_by_a_file(given: Given) -> None:
    """A network is unchanged by saving and loading."""
    made = given.topology
    with temporary_folder() as folder:
        path = Path(folder, "network.json")
        save(made, path)
        expect(read(path).same_network(made), "a file of it holds another network")


def is_scheduled(given: Given) -> None:
    """A valid schedule is found that does not beat the bound."""
    topology = given.topology
    if topology.num_servers <= MAX_SCHEDULED:
        scheduler = Merged()
        schedule = scheduler.schedule(topology)
        is_valid(scheduler, schedule)
        is_not_better_than_possible(scheduler, schedule)


def refuses_in_one_line(given: Given) -> None:
    """Integers of 0 and below are accepted, or rejected by an error of `gradweave.errors`."""
    kept = dict(part.split("=") for part in given.parameters.split(",") if "=" in part)
    for key in kept:
        for value in ("-1", "0"):
            parameters = ",".join(f"{k}={v}" for k, v in (kept | {key: value}).items())
            refused_in_one_line(partial(network_of, given.name, given.build, parameters))


_PROMISES: dict[str, Callable[[Given], None]] = {
    "same parameters, same network": is_made_again,
    "name is its specification": is_named_by_its_specification,
    "link properties": takes_link_properties,
    "file": is_kept_by_a_file,
    "scheduled": is_scheduled,
    "bad parameters": refuses_in_one_line,
}


def check_family(name: str, build: Callable[..., Topology], parameters: str = "") -> Findings:
    """Checks every promise for one network of a family.

    Args:
        name: name of the family.
        build: makes a network; see `gradweave.topology.spec.family_of`.
        parameters: parameters of the network, such as ``rows=3,columns=4``.

    Raises:
        SpecError: parameters are missing.
    """
    family = family_of(name, build, name)
    if family.required and not parameters:
        raise SpecError(f"{name}: give a network to try, as in {family.example}")
    given = Given(name, build, parameters)
    case = f"{name}:{parameters}" if parameters else name
    for check, promise in _PROMISES.items():
        yield attempt(check, case, partial(promise, given))
