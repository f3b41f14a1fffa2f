"""Attributes of NCCL's topology XML, and the link speeds that follow from them."""

import re
from typing import Any

from gradweave.errors import FileError

_NVLINK = ((107, 31_200), (100, 40_100), (90, 20_600), (87, 20_000), (86, 12_000), (70, 20_000))
"""Least compute capability, and MB/s of one NVLink from there on."""
_OLDEST_NVLINK = 18_000

_GIGATRANSFERS = {"2.5": 15, "5": 30, "8": 60, "16": 120, "32": 240, "64": 480}
"""Hundreds of Mbit/s that a PCIe lane carries, by its signalling rate in GT/s."""


def gpu_link_mb_per_s(gpu: Any, kind: str, node: str) -> int:
    """MB/s of one NVLink or Infinity Fabric link of this GPU."""
    if kind == "xgmi":
        arch = gpu.get("gcn", "")
        if "90a" in arch or arch == "910":
            return 36_000
        return 48_000 if re.match(r"(gfx)?9[45]", arch) else 24_000
    return nvlink_mb_per_s(integer_attribute(gpu, node, "sm"))


def nvlink_mb_per_s(capability: int) -> int:
    """MB/s of one NVLink of a GPU with this compute capability, such as 90."""
    return next((speed for least, speed in _NVLINK if capability >= least), _OLDEST_NVLINK)


def pcie_mb_per_s(pci: Any, where: str) -> float:
    """MB/s of a device's link; 8 GT/s and 16 lanes where unknown, as NCCL assumes."""
    text = pci.get("link_speed", "").strip()
    number = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9])?) GT/s(?: PCIe)?", text)
    rate = _GIGATRANSFERS.get(number[1].removesuffix(".0")) if number else None
    if rate is None and text and not text.startswith("Unknown"):
        raise FileError(
            f"{where}: link_speed must be such as 16.0 GT/s PCIe, "
            f"with {', '.join(_GIGATRANSFERS)} GT/s known; got {text!r:.40}"
        )
    width = integer_attribute(pci, where, "link_width", default=0, most=255)
    return (rate or 60) * 100 * (width or 16) / 8


def cpu_link_mb_per_s(cpu: Any, where: str) -> int:
    """MB/s between processors."""
    arch, vendor = cpu.get("arch", ""), cpu.get("vendor", "")
    if arch == "ppc64":
        return 32_000
    if vendor == "AuthenticAMD":
        family = integer_attribute(cpu, where, "familyid", default=23)
        return 32_000 if family in (26, 0xBF) else 24_000 if family in (25, 0xAF) else 16_000
    if vendor == "GenuineIntel":
        model = integer_attribute(cpu, where, "modelid", default=0)
        if model >= 0xCF or model in (0xAD, 0xAE, 0xAF):
            return 40_000
        return 22_000 if model >= 0x8F else 10_000 if model >= 0x55 else 6_000
    return 6_000  # ARM and the rest


def net_latency_s(net: Any, where: str) -> float:
    """A port's latency in seconds; 0 if it is unknown."""
    text = net.get("latency", "0")
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,9})?", text):
        raise FileError(f"{where}: latency must be microseconds, got {text!r:.40}")
    return float(text) * 1e-6


def attribute(element: Any, where: str, name: str) -> str:
    """A required word.

    Raises:
        FileError: naming the element and the attribute.
    """
    value = element.get(name)
    if not value:
        raise FileError(f"{where}: {name} is missing")
    if len(value) > 64 or not value.isprintable():
        raise FileError(f"{where}: {name} must be a short word, got {value!r:.40}")
    return value


def link_count(element: Any, where: str) -> int:
    """The number of links that an element stands for."""
    return integer_attribute(element, where, "count", least=1, most=10_000)


def integer_attribute(
    element: Any, where: str, name: str, *, least: int = 0, most: int = 10**9, default: int = -1
) -> int:
    """A whole number; required unless a non-negative default is given.

    Raises:
        FileError: naming the element and the attribute.
    """
    text = element.get(name)
    if text is None:
        if default < 0:
            raise FileError(f"{where}: {name} is missing")
        return default
    if not re.fullmatch(r"-?[0-9]{1,10}", text) or not least <= int(text) <= most:
        raise FileError(f"{where}: {name} must be a whole number from {least}, got {text!r:.40}")
    return int(text)
