"""Schedules as files of other programs: MSCCL and RCCL, MSCCL++, and Chakra for ASTRA-sim."""

from gradweave.export.chakra import save_chakra_et, to_chakra_et
from gradweave.export.msccl import save_msccl_xml, to_msccl_xml
from gradweave.export.mscclpp import save_mscclpp_json, to_mscclpp_json

FORMATS = ("msccl-xml", "mscclpp-json", "chakra-et")
"""The formats' names on the command line."""

__all__ = [
    "FORMATS",
    "save_chakra_et",
    "save_msccl_xml",
    "save_mscclpp_json",
    "to_chakra_et",
    "to_msccl_xml",
    "to_mscclpp_json",
]
