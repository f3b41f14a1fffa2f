r"""Boxes of GPUs as ``nvidia-smi topo -m`` and ``rocm-smi --showtopo`` print them.

            GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity
    GPU0     X      NV12    PXB     0-63            0                NVLinks, or the way over PCIe
    GPU1    NV12     X      SYS     64-127          1
    NIC0    PXB     SYS      X
    NIC Legend:
      NIC0: mlx5_0

    GPU0   0            XGMI         PCIE                            rocm-smi's link types
    GPU[0]          : (Topology) Numa Node: 0

Tables of ``amd-smi topology`` name GPUs by PCI address, below titles such as LINK TYPE TABLE.

None of them prints speeds: they are those of `gpu_names`. A line with the GPU's name, as
``nvidia-smi -L`` or ``rocm-smi --showproductname`` prints it, may stand in the same file.

Sources: nvidia-smi(1), "topo"; amd-smi's documentation of hops and weights: a weight of 15 per
Infinity Fabric hop.
"""

import re
from collections.abc import Callable, Sequence

from gradweave.common.wording import counted
from gradweave.errors import FileError
from gradweave.topology.formats.box import Box
from gradweave.topology.formats.gpu_names import SPEEDS, BoxSpeeds, assumed_speeds, named_gpu

MAX_DEVICES = 512
"""Most GPUs and cards of one matrix."""
_MOST_NVLINKS = 18
"""Most NVLinks of a GPU (H100, B200); a GPU with more in its row shares them by NVSwitches."""
_WAYS = {"PIX": 0, "PXB": 1, "PHB": 2, "NODE": 2, "SYS": 3, "SOC": 3}
"""Ways over PCIe, the closest first: one switch, several, a processor, several processors."""
_DEVICE = r"(?:GPU|NIC)[0-9]{1,3}|[A-Za-z][A-Za-z0-9]*_[A-Za-z0-9_]*[0-9]"
_ROW = re.compile(rf"[ \t]*({_DEVICE})[ \t]+(\S.*)")
_CORNER = re.compile(r"^[ \t]*GPU0[ \t]+(X|0)(?:[ \t]|$)", re.MULTILINE)
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_CARD = re.compile(r"\s*(NIC[0-9]+):\s*(\S+)\s*")
_NUMA = re.compile(r"GPU ?\[?([0-9]{1,3})\]?\s*: \(Topology\) Numa Node: (-?[0-9]{1,4})")
_TABLES = ("Weight between two GPUs", "Hops between two GPUs", "Link Type between two GPUs")
_AMD_TITLES = {"WEIGHT TABLE:": _TABLES[0], "LINK TYPE TABLE:": _TABLES[2]}
_AMD_TABLE = re.compile(r"^[ \t]*LINK TYPE TABLE:[ \t\r]*$", re.MULTILINE)

Matrix = dict[tuple[str, str], str]
"""The entry of each pair of devices, in both orders."""


def is_nvidia_matrix(text: str) -> bool:
    """Whether a text holds the matrix of ``nvidia-smi topo -m``."""
    corner = _CORNER.search(_ESCAPES.sub("", text))
    return corner is not None and corner[1] == "X"


def is_rocm_matrix(text: str) -> bool:
    """Whether a text holds the link types of ``rocm-smi --showtopo`` or ``amd-smi topology``."""
    if _AMD_TABLE.search(text):
        return True
    corner = _CORNER.search(text)
    return corner is not None and corner[1] == "0" and "between two GPUs" in text


def parse_nvidia_matrix(text: str, name: str) -> Box:
    """Reads the matrix of ``nvidia-smi topo -m``.

    GPUs and cards below one PCIe switch (PIX, PXB) hang on a switch; those of one NUMA node (PHB,
    NODE, or the same NUMA affinity) on its processor; all processors are joined. NVLinks join GPUs
    directly, unless a row has more than a GPU can have: then they lead to NVSwitches, modelled as
    one switch.

    Args:
        text: the file's text.
        name: the network's name; not used.

    Raises:
        FileError: naming the line or the devices.
    """
    text = _ESCAPES.sub("", text)
    lines = text.splitlines()
    devices, first = _header(lines)
    entries, numa = _rows(lines, first, devices)
    gpus = [device for device in devices if device.startswith("GPU")]
    nvlinks = {pair: int(way[2:]) for pair, way in entries.items() if way.startswith("NV")}
    most = max((sum(nvlinks.get((a, b), 0) for b in gpus) for a in gpus), default=0)
    shared = most > _MOST_NVLINKS
    of_one = max(nvlinks.values(), default=0) if shared else most
    gpu, why = _which(text, of_one)
    box, speeds = Box(), SPEEDS[gpu]
    names = {match[1]: match[2] for line in lines if (match := _CARD.fullmatch(line))}
    for device in devices:
        if device.startswith("GPU"):
            box.add_gpu(device.lower())
        else:
            box.add_switch(device.lower())
            box.cards[device.lower()] = (names.get(device, device),)
    ways = {pair: _WAYS[way] for pair, way in entries.items() if way in _WAYS}
    _join_over_pcie(box, devices, ways, numa, speeds)
    if shared:
        box.add_switch("nvswitch")
        for each in gpus:
            count = max((nvlinks.get((each, other), 0) for other in gpus), default=0)
            if count:
                box.join(each.lower(), "nvswitch", count * speeds.gpu_link)
    else:
        for (a, b), count in nvlinks.items():
            box.add(a.lower(), b.lower(), count * speeds.gpu_link)
    box.assumed.append(assumed_speeds(gpu, why, "NVLink" if nvlinks else ""))
    return box


def parse_rocm_matrix(text: str, name: str) -> Box:
    """Reads the tables of ``rocm-smi --showtopo`` or ``amd-smi topology``; link types are enough.

    GPUs of type XGMI are joined by one Infinity Fabric link; if weights are given, only those of
    the smallest weight are, and others reach each other over these. Every GPU hangs on the
    processor of its NUMA node; without NUMA nodes all hang on one.

    Args:
        text: the file's text.
        name: the network's name; not used.

    Raises:
        FileError: naming the line or the GPUs.
    """
    lines = _as_rocm_smi(_ESCAPES.sub("", text).splitlines())
    tables: dict[str, tuple[list[str], Matrix]] = {}
    for number, line in enumerate(lines):
        title = next((title for title in _TABLES if title in line), None)
        if title:
            devices, first = _header(lines[number:])
            tables[title] = devices, _rows(lines, number + first, devices)[0]
    if _TABLES[2] not in tables:
        raise FileError(f"expected the table {_TABLES[2]!r}, as rocm-smi --showtopo prints it")
    gpus, types = tables[_TABLES[2]]
    weights = tables.get(_TABLES[0], (gpus, {}))[1]
    direct = [pair for pair, kind in types.items() if kind == "XGMI"]
    if weights:
        try:
            weight = {pair: int(weights[pair]) for pair in direct}
        except (KeyError, ValueError):
            raise FileError(f"{_TABLES[0]}: expected a number for every two GPUs") from None
        direct = [pair for pair in direct if weight[pair] == min(weight.values())]
    gpu = named_gpu(text)
    why = "named in the file" if gpu else "guessed; a line with the GPU's name decides"
    gpu = gpu if gpu and gpu.startswith("MI") else "MI300"
    if why.startswith("guessed") and len(direct) < len(gpus) * (len(gpus) - 1):
        gpu = "MI250"
    box, speeds = Box(), SPEEDS[gpu]
    for each in gpus:
        box.add_gpu(each.lower())
    numa = {f"GPU{number}": node for number, node in _NUMA.findall(text)}
    _join_over_pcie(box, gpus, {}, numa if numa else dict.fromkeys(gpus, "0"), speeds)
    for a, b in direct:
        box.add(a.lower(), b.lower(), speeds.gpu_link)
    box.assumed.append(assumed_speeds(gpu, why, "Infinity Fabric" if direct else ""))
    return box


def _as_rocm_smi(lines: list[str]) -> list[str]:
    """The tables of ``amd-smi topology``, with PCI addresses, as rocm-smi prints them."""
    at = next((n for n, line in enumerate(lines) if _AMD_TABLE.match(line)), None)
    if at is None:
        return lines
    buses = next((line.split() for line in lines[at + 1 :] if line.strip()), [])
    names = {bus: f"GPU{place}" for place, bus in enumerate(buses)} | {"SELF": "0"}
    made, inside = [], False
    for line in lines:
        title = line.strip()
        if title.endswith("TABLE:"):
            inside = title in _AMD_TITLES
            made.append(_AMD_TITLES.get(title, ""))
        elif inside:
            made.append(" ".join(names.get(word, word) for word in line.split()))
        else:
            made.append(line)
    return made


def _header(lines: Sequence[str]) -> tuple[list[str], int]:
    """The devices of the columns, and the place of the line after them."""
    for number, line in enumerate(lines, 1):
        words = line.partition("CPU")[0].split()
        if words[:1] != ["GPU0"] or words[1:2] in (["X"], ["0"]):
            continue
        for word in words:
            if not re.fullmatch(_DEVICE, word) or words.count(word) > 1:
                raise FileError(f"line {number}: expected devices once each, got {word!r:.20}")
        if len(words) > MAX_DEVICES:
            raise FileError(f"line {number}: more than {MAX_DEVICES} devices")
        return words, number
    raise FileError("expected a line with the names of the columns, GPU0 GPU1 …")


def _rows(
    lines: Sequence[str], first: int, devices: Sequence[str]
) -> tuple[Matrix, dict[str, str]]:
    """The entries of a matrix, and the NUMA node of each GPU that has one."""
    entries: Matrix = {}
    numa: dict[str, str] = {}
    seen: set[str] = set()
    for number, line in enumerate(lines[first:], first + 1):
        match = _ROW.fullmatch(line.rstrip())
        if not match:
            if seen and line.strip():
                break
            continue
        device, words = match[1], match[2].split()
        if device not in devices or device in seen:
            raise FileError(f"line {number}: {device} has no column, or two rows")
        seen.add(device)
        if len(words) < len(devices):
            raise FileError(
                f"line {number}: {device}: expected {counted(len(devices), 'entry', 'entries')}, "
                f"got {len(words)}"
            )
        for other, word in zip(devices, words, strict=False):
            if (word in ("X", "0")) != (other == device):
                raise FileError(f"line {number}: {device} to {other}: got {word!r:.20}")
            if other != device:
                entries[device, other] = _checked(number, device, other, word)
        affinity = words[len(devices) :]
        if len(affinity) > 1 and re.fullmatch("[0-9]{1,4}", affinity[1]):
            numa[device] = affinity[1]
        elif affinity and re.fullmatch("[0-9,-]{1,200}", affinity[0]):
            numa[device] = affinity[0]
    missing = [device for device in devices if device not in seen and device.startswith("GPU")]
    if missing:
        raise FileError(f"{missing[0]} has a column and no row; is the file whole?")
    for (a, b), word in [*entries.items()]:
        if entries.setdefault((b, a), word) != word:
            raise FileError(f"{a} to {b} is {word}, and {b} to {a} {entries[b, a]}")
    return entries, numa


def _checked(line: int, device: str, other: str, word: str) -> str:
    if word in _WAYS or word in ("XGMI", "PCIE") or re.fullmatch("NV[1-9][0-9]?|[0-9]{1,6}", word):
        return word
    raise FileError(
        f"line {line}: {device} to {other}: expected NV and a number, {', '.join(_WAYS)}, XGMI or "
        f"PCIE, got {word!r:.20}"
    )


def _which(text: str, nvlinks: int) -> tuple[str, str]:
    """The GPU whose speeds to take, and why."""
    gpu = named_gpu(text)
    if gpu is not None and not gpu.startswith("MI"):
        return gpu, "named in the file"
    guess = next((gpu for least, gpu in ((13, "H100"), (7, "A100")) if nvlinks >= least), "V100")
    had = f"{counted(nvlinks, 'NVLink')} per GPU" if nvlinks else "without NVLink"
    return guess, f"guessed: {had}; a line of nvidia-smi -L decides"


def _join_over_pcie(
    box: Box,
    devices: Sequence[str],
    ways: dict[tuple[str, str], int],
    numa: dict[str, str],
    speeds: BoxSpeeds,
) -> None:
    """Hangs devices on PCIe switches, and these on processors; nothing if no way is known."""
    if not ways and not numa:
        return
    at = {device: device for device in devices}  # the topmost node above each device so far
    for level, kind in enumerate(("pix", "pxb", "cpu")):
        group = {device: device for device in devices}

        def of(device: str, group: dict[str, str] = group) -> str:
            while group[device] != device:
                device = group[device]
            return device

        for (a, b), way in ways.items():
            if way <= level:
                group[of(a)] = of(b)
        if kind == "cpu":
            first: dict[str, str] = {}
            for device, node in numa.items():
                group[of(device)] = of(first.setdefault(node, device))
            _join_unknown(devices, ways, numa, group, of)
        made = 0
        for top in dict.fromkeys(map(of, devices)):
            below = dict.fromkeys(at[device] for device in devices if of(device) == top)
            if len(below) < 2 and kind != "cpu":
                continue
            node = f"{kind}{made}"
            made += 1
            box.add_switch(node)
            if kind == "cpu":
                box.cpus[node] = "", speeds.cpus
            for each in below:
                box.join(each.lower(), node, speeds.pcie)
            at |= {device: node for device in devices if of(device) == top}


def _join_unknown(
    devices: Sequence[str],
    ways: dict[tuple[str, str], int],
    numa: dict[str, str],
    group: dict[str, str],
    of: Callable[[str], str],
) -> None:
    """Puts groups without a NUMA node on the first processor that no way leads away from.

    NVLinks hide the ways over PCIe between GPUs, and old matrices have no affinities.
    """
    known = {of(device) for device in numa}
    tops = [*dict.fromkeys(map(of, devices))]
    members = {top: [device for device in devices if of(device) == top] for top in tops}
    for place, top in enumerate(tops):
        for other in tops[:place] if top not in known else ():
            apart = any(
                ways.get((a, b)) == _WAYS["SYS"] for a in members[top] for b in members[other]
            )
            if not apart and members[other]:
                group[top] = other
                members[other] += members.pop(top)
                members[top] = []
                break
