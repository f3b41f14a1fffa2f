"""Rank orders and tables of algorithms that make stock libraries fast on a network."""

from typing import TYPE_CHECKING

from gradweave.common.lazy import lazily

if TYPE_CHECKING:
    from gradweave.ranks.mesh import Mesh
    from gradweave.ranks.search import Order, optimize
    from gradweave.ranks.table_files import save_table, to_table
    from gradweave.ranks.tables import Table, measured_table, predict_table

__all__ = [
    "Mesh",
    "Order",
    "Table",
    "measured_table",
    "optimize",
    "predict_table",
    "save_table",
    "to_table",
]

__getattr__, __dir__ = lazily(__name__)
