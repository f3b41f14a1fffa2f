"""Schedules as files of MSCCL, legacy RCCL, MSCCL++, ASTRA-sim (Chakra), mpirun, Perfetto and CSV.

Orders of ranks as files of launchers.
"""

from gradweave.export.chakra import save_chakra_et, to_chakra_et
from gradweave.export.equal_pieces import in_equal_pieces
from gradweave.export.msccl import save_msccl_xml, to_msccl_xml
from gradweave.export.mscclpp import save_mscclpp_json, to_mscclpp_json
from gradweave.export.perfetto import save_perfetto, to_perfetto
from gradweave.export.rank_order import save_rank_order, to_rank_order
from gradweave.export.rankfile import save_rankfile, to_rankfile
from gradweave.export.table import save_csv, to_csv

FORMATS = ("msccl-xml", "mscclpp-json", "chakra-et", "rankfile", "perfetto", "csv")
"""The formats' names on the command line."""

__all__ = [
    "FORMATS",
    "in_equal_pieces",
    "save_chakra_et",
    "save_csv",
    "save_msccl_xml",
    "save_mscclpp_json",
    "save_perfetto",
    "save_rank_order",
    "save_rankfile",
    "to_chakra_et",
    "to_csv",
    "to_msccl_xml",
    "to_mscclpp_json",
    "to_perfetto",
    "to_rank_order",
    "to_rankfile",
]
