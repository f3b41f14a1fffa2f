"""Rank orders that make the all-reduces of stock libraries fast on a network."""

from typing import TYPE_CHECKING

from gradweave.lazy import lazily

if TYPE_CHECKING:
    from gradweave.ranks.mesh import Mesh
    from gradweave.ranks.search import Order, optimize

__all__ = [
    "Mesh",
    "Order",
    "optimize",
]

__getattr__, __dir__ = lazily(__name__)
