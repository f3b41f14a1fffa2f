"""An emulated network on this machine, to measure what `gradweave.simulate` predicts.

Needs the extra ``lab``, and root.
"""

from typing import TYPE_CHECKING

from gradweave.lazy import lazily

if TYPE_CHECKING:
    from gradweave.lab import emulation, forwarding, measure, network
    from gradweave.lab.emulation import Emulation, measure_links
    from gradweave.lab.forwarding import Paths, schedule_paths, shortest_paths
    from gradweave.lab.measure import Experiment, Laboratory, Measurement, emulated, laboratory
    from gradweave.lab.network import EmulatedNetwork

__all__ = [
    "EmulatedNetwork",
    "Emulation",
    "Experiment",
    "Laboratory",
    "Measurement",
    "Paths",
    "emulated",
    "emulation",
    "forwarding",
    "laboratory",
    "measure",
    "measure_links",
    "network",
    "schedule_paths",
    "shortest_paths",
]

__getattr__, __dir__ = lazily(__name__, "lab")
