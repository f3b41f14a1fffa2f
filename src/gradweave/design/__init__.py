"""Designing a network: which graph of servers is best for an all-reduce, and its bound."""

from gradweave.design.bound import EveryNetwork, every_network
from gradweave.design.candidates import Candidate, candidates
from gradweave.design.search import Design, Proposal, design

__all__ = [
    "Candidate",
    "Design",
    "EveryNetwork",
    "Proposal",
    "candidates",
    "design",
    "every_network",
]
