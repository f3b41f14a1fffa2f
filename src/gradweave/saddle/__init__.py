"""Saddle points and variational inequalities over a network: games, GANs, constrained problems.

Averaging gradient descent diverges on them. The methods here are extra-gradient steps by each
worker, and averages with neighbours by the mixing matrices and messages of `gradweave.aggregate`.
Needs the extra ``train``.
"""

from typing import TYPE_CHECKING

from gradweave.lazy import lazily

if TYPE_CHECKING:
    from gradweave.saddle.corrected import ProxSkip, Tracked, TrackedAdam
    from gradweave.saddle.method import (
        ExtraAdam,
        ExtraGradient,
        GradientDescentAscent,
        Method,
        Optimistic,
        PastGradient,
        Proposal,
    )
    from gradweave.saddle.problem import Problem
    from gradweave.saddle.problems import affine, bilinear, minty, residual
    from gradweave.saddle.running import Solution, solve
    from gradweave.saddle.solver import Solver, SolverState, mesh_of
    from gradweave.saddle.validity import Validity, check

__all__ = [
    "ExtraAdam",
    "ExtraGradient",
    "GradientDescentAscent",
    "Method",
    "Optimistic",
    "PastGradient",
    "Problem",
    "Proposal",
    "ProxSkip",
    "Solution",
    "Solver",
    "SolverState",
    "Tracked",
    "TrackedAdam",
    "Validity",
    "affine",
    "bilinear",
    "check",
    "mesh_of",
    "minty",
    "residual",
    "solve",
]

__getattr__, __dir__ = lazily(__name__, "train")
