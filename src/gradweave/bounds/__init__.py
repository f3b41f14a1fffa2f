"""Lower bounds on rounds and on time, each with a certificate that a person can check."""

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
from gradweave.bounds.certificates import (
    Certified,
    certificates_in,
    certify,
    certify_rounds,
    check_certificate,
)
from gradweave.bounds.demands.demand_bound import demand_bound, demand_rounds
from gradweave.bounds.demands.demand_lengths import DemandLengths
from gradweave.bounds.demands.job_objectives import ObjectiveBound, objective_bound
from gradweave.bounds.each_class import (
    certify_each_class,
    certify_rounds_of_each_class,
)
from gradweave.bounds.of_schedule import certificates_of, of_schedule, with_certificates
from gradweave.bounds.refutations import certify_refutation, refute
from gradweave.bounds.rounds.fixed_trees import certify_fixed_trees, fixed_trees
from gradweave.bounds.rounds.free_trees import block_cuts, free_trees
from gradweave.bounds.seconds.cut_linear_program import Volumes
from gradweave.bounds.seconds.duals import Crossing, Duals, Toll
from gradweave.bounds.seconds.latency import LatencyBound, latency_bound
from gradweave.bounds.seconds.least_seconds import LeastSeconds, least_seconds
from gradweave.bounds.seconds.throughput import Bottleneck, Throughput, throughput
from gradweave.bounds.seconds.time_expanded import SlotPrices, time_expanded
from gradweave.bounds.seconds_bound import Part, SecondsBound, seconds_bound

__all__ = [
    "Bottleneck",
    "Bound",
    "Certificate",
    "Certified",
    "ClosingCut",
    "Crossing",
    "Cut",
    "DemandLengths",
    "Distance",
    "Duals",
    "Exhausted",
    "LateEntry",
    "LatencyBound",
    "LeastSeconds",
    "LinkLoad",
    "ObjectiveBound",
    "Part",
    "Ports",
    "SecondsBound",
    "SlotPrices",
    "Throughput",
    "Toll",
    "TreeDepth",
    "Volumes",
    "block_cuts",
    "certificates_in",
    "certificates_of",
    "certify",
    "certify_each_class",
    "certify_fixed_trees",
    "certify_refutation",
    "certify_rounds",
    "certify_rounds_of_each_class",
    "check_certificate",
    "demand_bound",
    "demand_rounds",
    "fixed_trees",
    "free_trees",
    "latency_bound",
    "least_seconds",
    "objective_bound",
    "of_schedule",
    "refute",
    "seconds_bound",
    "throughput",
    "time_expanded",
    "with_certificates",
]
