"""A library of two instances, made anew for each test that changes it."""

import json

import pytest

import gradweave as gw
from gradweave.bounds import with_certificates
from gradweave.library import Library, Record
from gradweave.library.instance import Instance
from gradweave.library.judging import identity
from gradweave.library.submission import first_record
from gradweave.schedules.file import to_bytes

SIZE = 10**6


def data_of(schedule):
    return json.loads(to_bytes(schedule))


def instance_of(name, data, model, size):
    found = identity(data)
    return Instance(
        id=name,
        name=data["topology"]["name"],
        kind="ring",
        collective=found.collective,
        model=model,
        bytes=size,
        network=found.network,
        demand=found.demand,
        servers=4,
        switches=0,
        links=4,
        record=Record(0.0, "0", "somebody", "by hand", "2026-11-27", ""),
    )


@pytest.fixture(scope="session")
def slow():
    """A schedule of ring:4 that is valid, and two rounds longer than need be."""
    return gw.schedulers.Ring().schedule(gw.topology.ring(4))


@pytest.fixture(scope="session")
def fast():
    schedule = gw.solve("ring:4", schedulers=["merged", "grown"]).schedule
    return with_certificates(schedule, SIZE)


@pytest.fixture
def library(tmp_path, slow):
    """The slow schedule, in rounds and in seconds."""
    (tmp_path / "schedules").mkdir()
    made = Library(tmp_path)
    data = data_of(with_certificates(slow, SIZE))
    rows = [("ring-4.rounds", "rounds", None), ("ring-4.cost", "message_cost", SIZE)]
    made.keep_all([first_record(data, instance_of(*row[:1], data, *row[1:])) for row in rows], "0")
    return made
