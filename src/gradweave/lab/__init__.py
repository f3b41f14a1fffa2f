"""An emulated network on this machine, to compare `gradweave.simulator`'s predictions with reality.

It needs the extra ``lab``, and root.
"""

from typing import TYPE_CHECKING

from gradweave.common.lazy import lazily

if TYPE_CHECKING:
    from gradweave.lab import emulation, forwarding, measure, network
    from gradweave.lab.measure import Measurement, emulated, laboratory

__all__ = [
    "Measurement",
    "emulated",
    "emulation",
    "forwarding",
    "laboratory",
    "measure",
    "network",
]

__getattr__, __dir__ = lazily(__name__, "lab")
