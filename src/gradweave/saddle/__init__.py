"""Saddle points and variational inequalities over a network: games, GANs, constrained problems.

Averaged gradient descent diverges on them. The methods here combine extra-gradient steps of each
worker with averages over neighbours, using the mixing matrices and messages of
`gradweave.aggregate`. Needs the extra ``train``.
"""

from typing import TYPE_CHECKING

from gradweave.common.lazy import lazily

if TYPE_CHECKING:
    from gradweave.saddle.corrected import ProxSkip, Tracked, TrackedAdam
    from gradweave.saddle.method import (
        ExtraAdam,
        ExtraGradient,
        GradientDescentAscent,
        Method,
        Optimistic,
        PastGradient,
    )
    from gradweave.saddle.problem import Problem
    from gradweave.saddle.problems import affine, bilinear, minty, residual
    from gradweave.saddle.running import find_saddle_point
    from gradweave.saddle.solver import Solver, SolverState, mesh_of
    from gradweave.saddle.validity import check_solver

__all__ = [
    "ExtraAdam",
    "ExtraGradient",
    "GradientDescentAscent",
    "Method",
    "Optimistic",
    "PastGradient",
    "Problem",
    "ProxSkip",
    "Solver",
    "SolverState",
    "Tracked",
    "TrackedAdam",
    "affine",
    "bilinear",
    "check_solver",
    "find_saddle_point",
    "mesh_of",
    "minty",
    "residual",
]

__getattr__, __dir__ = lazily(__name__, "train")
