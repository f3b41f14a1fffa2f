"""Readers of files by format, and the format of a file by its content and suffix."""

import functools
import io
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from gradweave.errors import FileError
from gradweave.topology.formats.astra_yaml import astra_cables, is_astra
from gradweave.topology.formats.attributes import reject_misspelt, shown
from gradweave.topology.formats.box import Box
from gradweave.topology.formats.cables import Cables
from gradweave.topology.formats.cloud import (
    aws_tree,
    gcp_tree,
    is_aws,
    is_gcp,
    is_kubernetes,
    kubernetes_tree,
)
from gradweave.topology.formats.containerlab import containerlab_cables, is_containerlab
from gradweave.topology.formats.csv_links import parse_csv
from gradweave.topology.formats.edge_list import parse_edge_list
from gradweave.topology.formats.gpu_matrix import (
    is_nvidia_matrix,
    is_rocm_matrix,
    parse_nvidia_matrix,
    parse_rocm_matrix,
)
from gradweave.topology.formats.graph import from_networkx
from gradweave.topology.formats.host_lines import are_host_lines, parse_host_lines
from gradweave.topology.formats.host_tree import HostTree
from gradweave.topology.formats.hwloc_xml import box_from_hwloc
from gradweave.topology.formats.ibnetdiscover import is_ibnetdiscover, parse_ibnetdiscover
from gradweave.topology.formats.launch_hosts import (
    are_launch_hosts,
    only_launch_hosts,
    parse_launch_hosts,
)
from gradweave.topology.formats.lldp import is_lldp, parse_lldp
from gradweave.topology.formats.msccl_json import topology_from_msccl
from gradweave.topology.formats.nccl_xml import (
    parse_xml,
    read_nccl_xml,
    topology_from_nccl_xml,
)
from gradweave.topology.formats.netq import is_netq, netq_cables
from gradweave.topology.formats.object import topology_from_object
from gradweave.topology.formats.simai import is_simai, parse_simai
from gradweave.topology.formats.slurm import is_slurm_yaml, parse_slurm_conf, slurm_hosts
from gradweave.topology.formats.sndlib import is_sndlib, parse_sndlib, sndlib_from_xml
from gradweave.topology.formats.topograph import (
    is_topograph,
    is_topograph_model,
    topograph_model,
    topograph_tree,
)
from gradweave.topology.formats.yaml_data import parse_yaml
from gradweave.topology.topology import Topology

if TYPE_CHECKING:
    import networkx as nx

Content = Topology | HostTree | Cables | Box
"""The content of a file: a network, hosts under switches, a fabric, or the inside of a host."""
Reader = Callable[[bytes, str], "Found | Content"]
"""Makes a file's content of its bytes and its name."""


class Found(NamedTuple):
    """The content of a file, and the format that it was recognised as."""

    format: str
    content: Content


class Text(NamedTuple):
    """A format of text that its lines show, whatever the file is called."""

    is_it: Callable[[str], bool]
    """Whether a file begins like this."""
    parse: Callable[[str, str], Content]
    """Reads the whole text; takes the network's name for warnings."""


TEXTS = {
    "ibnetdiscover": Text(is_ibnetdiscover, parse_ibnetdiscover),
    "nvidia_topo": Text(is_nvidia_matrix, parse_nvidia_matrix),
    "rocm_topo": Text(is_rocm_matrix, parse_rocm_matrix),
    "lldp": Text(is_lldp, parse_lldp),
    "sndlib": Text(is_sndlib, parse_sndlib),
}
"""Formats by name, in the order in which they are tried."""
DATA: dict[str, tuple[Callable[[Any], bool], Callable[[Any], Content]]] = {
    "slurm_yaml": (is_slurm_yaml, slurm_hosts),
    "topograph": (is_topograph, topograph_tree),
    "topograph_model": (is_topograph_model, topograph_model),
    "containerlab": (is_containerlab, containerlab_cables),
    "astra_sim": (is_astra, astra_cables),
    "netq": (is_netq, netq_cables),
    "aws": (is_aws, aws_tree),
    "gcp": (is_gcp, gcp_tree),
    "kubernetes": (is_kubernetes, kubernetes_tree),
}
"""Formats of decoded JSON and YAML, likewise: whether data is of this format, and its reader."""

TITLES = {
    "nvidia_topo": "nvidia-smi topo -m",
    "rocm_topo": "rocm-smi --showtopo or amd-smi topology",
    "hwloc_xml": "lstopo XML (hwloc)",
    "nccl_xml": "topology XML of NCCL or RCCL",
    "slurm": "topology.conf of Slurm",
    "slurm_yaml": "topology.yaml of Slurm",
    "topograph_model": "a model of topograph",
    "aws": "DescribeInstanceTopology of AWS",
    "gcp": "instances of Google Cloud with physical hosts",
    "kubernetes": "nodes of Kubernetes",
    "lldp": "show lldp neighbors",
    "netq": "a topology graph of NetQ",
    "astra_sim": "a network of ASTRA-sim",
    "sndlib": "SNDlib",
    "hosts": "a list of hosts",
    "edges": "an edge list",
}
"""Titles of formats whose names say too little."""
SUFFIXES = {
    ".graphml": "graphml",
    ".json": "json",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".csv": "csv",
    ".gml": "gml",
    ".edges": "edges",
    ".edgelist": "edges",
    ".txt": "edges",
    ".xml": "xml",
    ".conf": "slurm",
    ".hosts": "hosts",
}
"""The format of a file by its suffix; for JSON, YAML, edge lists and XML, content decides
further."""
_HEAD_BYTES = 1 << 16
"""Bytes from the start of a file by which its format is recognised."""
_YAML = re.compile(r"(?:\s*(?:#.*)?\n|---\n)*(?:- )?[A-Za-z][\w.-]*:(?:[ \t]|\r?\n)")
"""How a YAML file of keys and values begins."""
_GML = re.compile(r"(?:[ \t]*(?:(?:#|Creator\b|Version\b|comment\b).*|\r)?\n)*[ \t]*graph\s*\[")
"""How a GML file begins."""
_NODE_LINK = ("directed", "multigraph", "graph", "nodes", "links", "edges", "name")


def format_by_content(content: bytes, suffix: str) -> str | None:
    """The format that a file's first lines show, or None if its suffix decides.

    Args:
        content: the file's bytes.
        suffix: of its name, in lower case.

    Raises:
        FileError: the lines are no network, but another command's input.
    """
    by_suffix = SUFFIXES.get(suffix)
    if by_suffix not in (None, "edges", "slurm", "hosts"):
        return None
    head = content[:_HEAD_BYTES].decode("utf-8-sig", errors="replace")
    if re.match(r"\s*<[?!A-Za-z]", head):
        return "xml"
    if re.match(r"\s*(\{|\[\s*[\[{])", head):
        return "json"
    if _GML.match(head):
        return "gml"
    for name, text in TEXTS.items():
        if text.is_it(head):
            return name
    if "algbw" in head and "busbw" in head:
        raise FileError("times of nccl-tests, no network; gradweave topology explain reads them")
    if by_suffix is not None:
        return None
    if is_simai(head):
        return "simai"
    whole_lines = head if len(content) < _HEAD_BYTES else head.rpartition("\n")[0]
    if only_launch_hosts(whole_lines):
        return "hosts"
    return "yaml" if _YAML.match(head) else None


def _read_graphml(content: bytes, name: str) -> Topology:
    import networkx as nx

    parse_xml(content)  # rejects document types and entities, which networkx does not
    return from_networkx(nx.read_graphml(io.BytesIO(content)), name)


def _read_gml(content: bytes, name: str) -> Topology:
    import networkx as nx

    text = _text(content)
    if not re.search(r"^\s*multigraph\b", text, re.MULTILINE):
        # Files rarely state it, and networkx would refuse their parallel links.
        text = re.sub(r"\bgraph\s*\[", "graph [\n multigraph 1", text, count=1)
    return from_networkx(nx.parse_gml(text, label="id"), name)


def _read_xml(content: bytes, name: str) -> Found:
    root = parse_xml(content)
    tag = str(root.tag)
    if tag == "topology":
        return Found("hwloc_xml", box_from_hwloc(root))
    if tag.endswith("}network") and "sndlib" in tag:
        return Found("sndlib", sndlib_from_xml(root))
    if tag.endswith("}graphml"):
        return Found("graphml", _read_graphml(content, name))
    return Found("nccl_xml", read_nccl_xml(content, name))


def _read_json(content: bytes, name: str) -> Found:
    return _from_data(_decoded(content), name, "json")


def _read_yaml(content: bytes, name: str) -> Found:
    return _from_data(parse_yaml(content), name, "yaml")


def _from_data(data: Any, name: str, format: str) -> Found:
    for known, (is_it, parse) in DATA.items():
        if is_it(data):
            return Found(known, parse(data))
    return Found(format, _from_links(data, name))


def _from_links(data: Any, name: str) -> Topology:
    """Nodes and links, or msccl's capacities."""
    import networkx as nx

    if isinstance(data, dict) and isinstance(data.get("topology"), dict):
        data = data["topology"]
    if isinstance(data, dict) and "msccl_type" in data:
        return topology_from_msccl(data, name)
    if not isinstance(data, dict) or not data.keys() & {"nodes", "servers"}:
        raise FileError(
            "expected nodes and links as networkx writes them (node-link), or servers, switches "
            "and links"
        )
    if "servers" in data:
        return topology_from_object({**data, "name": name})
    edges = "edges" if "edges" in data else "links"
    for key in ("nodes", edges):
        if not isinstance(data.get(key), list):
            raise FileError(f"{key}: expected a list")
    reject_misspelt(data, _NODE_LINK)
    graph = nx.node_link_graph(data, edges=edges)
    if graph.number_of_edges() < len(data[edges]):
        _refuse_lost_links(graph, nx.node_link_graph({**data, "multigraph": True}, edges=edges))
    return from_networkx(graph, name)


def _refuse_lost_links(graph: "nx.Graph", every: "nx.MultiGraph") -> None:
    """Refuses parallel links in a file that declares none, since only the last would count."""
    for source, target, data in every.edges(data=True):
        if data != graph.edges[source, target]:
            raise FileError(
                f"link {shown(source)}→{shown(target)} is given twice with different properties; "
                "parallel links need multigraph: true"
            )


def _read_msccl(content: bytes, name: str) -> Topology:
    data = _decoded(content)
    if not isinstance(data, dict):
        raise FileError("expected an object with links, as msccl-tools writes it")
    return topology_from_msccl(data, name)


def _decoded(content: bytes) -> Any:
    import msgspec

    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FileError(f"not valid JSON: {error}") from None
    except RecursionError:
        raise FileError("not valid JSON: nested too deeply") from None


def _read_csv(content: bytes, name: str) -> Topology:
    return from_networkx(parse_csv(_text(content)), name)


def _read_slurm(content: bytes, name: str) -> HostTree:
    return parse_slurm_conf(_text(content))


def _read_hosts(content: bytes, name: str) -> HostTree:
    text = _text(content)
    return parse_launch_hosts(text) if are_launch_hosts(text) else parse_host_lines(text)


def _read_edges(content: bytes, name: str) -> Found | Topology:
    text = _text(content)
    if is_simai(text, whole=True):
        return Found("simai", parse_simai(text, name))
    if name.lower().endswith(".txt") and are_launch_hosts(text):
        return Found("hosts", parse_launch_hosts(text))
    if are_host_lines(text):
        return Found("hosts", parse_host_lines(text))
    return from_networkx(parse_edge_list(text), name)


def _read_text(parse: Callable[[str, str], Content], content: bytes, name: str) -> Content:
    return parse(_text(content), name)


def _read_simai(content: bytes, name: str) -> Topology:
    return parse_simai(_text(content), name)


def _text(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(f"not UTF-8 text: {error.reason} at byte {error.start}") from None


READERS: dict[str, Reader] = {
    "graphml": _read_graphml,
    "json": _read_json,
    "yaml": _read_yaml,
    "csv": _read_csv,
    "gml": _read_gml,
    "edges": _read_edges,
    "xml": _read_xml,
    "nccl_xml": read_nccl_xml,
    "nccl_xml_with_network": functools.partial(topology_from_nccl_xml, network=True),
    "nccl_xml_nvlink_only": functools.partial(topology_from_nccl_xml, pcie=False),
    "msccl_json": _read_msccl,
    "simai": _read_simai,
    **{name: functools.partial(_read_text, text.parse) for name, text in TEXTS.items()},
    "slurm": _read_slurm,
    "hosts": _read_hosts,
}
