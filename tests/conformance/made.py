"""Schedules of the conformance table: whichever test or process wants one, it is made once."""

import functools
import os
import re
import time
from pathlib import Path

import gradweave as gw
from gradweave.schedules import Schedule
from gradweave.schedules.schedule import Collective, Provenance
from tests.conformance.networks import network
from tests.conformance.strategies import STRATEGIES

FOLDER = "GRADWEAVE_TESTS_MADE"
"""Environment variable: the directory of those that took long, of one run of the tests."""
LONG_S = 0.1
"""Making that takes longer is worth a file."""


@functools.cache
def made(name: str, strategy: str, collective: Collective = "all_reduce") -> Schedule:
    """The schedule of seed 0."""
    topology = network(name)
    scheduler = STRATEGIES[strategy].make(topology)
    words = re.sub(r"\W+", "_", f"{name}-{strategy}-{collective}")
    path = Path(os.environ[FOLDER], f"{words}.json") if FOLDER in os.environ else None
    if path and path.exists():
        # A file has neither infinity nor tuples among the options.
        provenance = Provenance(scheduler.name, scheduler.options(), 0)
        return gw.load(path).replace(topology=topology, scheduler=provenance)
    began = time.monotonic()
    schedule = scheduler.schedule(topology, collective=collective, seed=0)
    if path and time.monotonic() - began > LONG_S:
        schedule.save(path)
    return schedule
