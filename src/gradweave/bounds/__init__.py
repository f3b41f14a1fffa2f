"""Lower bounds on rounds, and on time, each with a certificate that a person can check."""

from gradweave.bounds.bound import (
    Bound,
    Certificate,
    ClosingCut,
    Cut,
    Distance,
    Exhausted,
    LateEntry,
    LinkLoad,
    Ports,
    TreeDepth,
)
from gradweave.bounds.fixed_trees import fixed_trees
from gradweave.bounds.free_trees import free_trees
from gradweave.bounds.throughput import Bottleneck, Throughput, throughput

__all__ = [
    "Bottleneck",
    "Bound",
    "Certificate",
    "ClosingCut",
    "Cut",
    "Distance",
    "Exhausted",
    "LateEntry",
    "LinkLoad",
    "Ports",
    "Throughput",
    "TreeDepth",
    "fixed_trees",
    "free_trees",
    "throughput",
]
