"""The order of ranks that makes stock libraries quick on a network."""

from typing import TYPE_CHECKING

from gradweave.lazy import lazily

if TYPE_CHECKING:
    from gradweave.ordering.bound import OrderBound, any_bound, ring_bound
    from gradweave.ordering.libraries import LIBRARIES, OwnAllReduce, own_all_reduces
    from gradweave.ordering.mesh import Mesh
    from gradweave.ordering.ordering import Order, order
    from gradweave.ordering.pattern import Pattern, Routes, routes_of

__all__ = [
    "LIBRARIES",
    "Mesh",
    "Order",
    "OrderBound",
    "OwnAllReduce",
    "Pattern",
    "Routes",
    "any_bound",
    "order",
    "own_all_reduces",
    "ring_bound",
    "routes_of",
]

__getattr__, __dir__ = lazily(__name__)
