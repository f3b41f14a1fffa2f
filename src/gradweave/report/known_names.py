"""Well-known names of some strategies, shown with their specifications."""

import contextlib
from collections.abc import Mapping
from typing import Any

from gradweave.errors import GradweaveError
from gradweave.schedulers.spec import demand_strategy, from_spec

_KNOWN: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("ring", {"order": "boxes"}, "NCCL's ring"),
    ("ring", {"directions": 2}, "bidirectional ring"),
    ("double_tree", {"chains": True}, "NCCL's tree"),
    ("double_tree", {}, "double binary tree"),
    ("halving_doubling", {}, "halving–doubling"),
    ("binomial", {"partners": "bine"}, "Bine tree"),
    ("binomial", {"radix": 2}, "binomial tree"),
    ("central_parameter_server", {}, "parameter server"),
    ("butterfly", {"partners": "bine"}, "Bine trees"),
    ("butterfly", {"radix": 2}, "recursive doubling, halving"),
    ("butterfly", {}, "recursive multiplying"),
    ("binomial_tree", {"radix": 2}, "binomial tree"),
    ("binomial_tree", {}, "k-nomial tree"),
    ("hierarchical_ring", {}, "2D ring"),
)
"""Name, required options, and well-known name; the first match counts."""


def known_as(name: str, options: Mapping[str, Any]) -> str:
    """The well-known name of a strategy with some options; empty if it has none.

    Args:
        name: name of the strategy.
        options: all its options, or those in a schedule's file.

    >>> known_as("ring", {"order": "boxes", "cycles": 8})
    "NCCL's ring"
    >>> known_as("packed", {})
    ''
    """
    return next(
        (
            known
            for strategy, needed, known in _KNOWN
            if strategy == name and all(options.get(key) == value for key, value in needed.items())
        ),
        "",
    )


def with_known_name(spec: str) -> str:
    """A strategy's specification, followed in parentheses by its well-known name, if any.

    >>> with_known_name("double_tree:chains=true"), with_known_name("portfolio")
    ("double_tree:chains=true (NCCL's tree)", 'portfolio')
    """
    for read in (from_spec, demand_strategy):
        with contextlib.suppress(GradweaveError):
            strategy = read(spec)
            break
    else:
        return spec
    known = known_as(strategy.name, vars(strategy))
    return f"{spec} ({known})" if known else spec
