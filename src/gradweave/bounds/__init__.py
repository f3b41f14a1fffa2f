"""Lower bounds on rounds, each with a certificate that a person can check."""

from gradweave.bounds.bound import Bound, Certificate, Cut, Distance, LinkLoad, Ports, TreeDepth
from gradweave.bounds.fixed_trees import fixed_trees
from gradweave.bounds.free_trees import free_trees

__all__ = [
    "Bound",
    "Certificate",
    "Cut",
    "Distance",
    "LinkLoad",
    "Ports",
    "TreeDepth",
    "fixed_trees",
    "free_trees",
]
