"""Topology files: round trips in every format, what they mean, and hostile ones."""

import dataclasses
import json
import warnings

import networkx as nx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gradweave.topology as gt
from gradweave.errors import FileError, InputWarning, TopologyError
from gradweave.topology import Link, Topology
from gradweave.topology.capacity import TOLERANCE, capacities_from_bandwidths
from gradweave.topology.formats.files import MAX_BYTES
from gradweave.topology.formats.object import topology_to_object
from gradweave.topology.formats.yaml_data import write_yaml
from gradweave.topology.units import parse_bandwidth

FORMATS = [".graphml", ".json", ".yaml", ".csv", ".edges"]


@st.composite
def topologies(draw, labels):
    """Connected networks of servers and switches whose link directions may all differ."""
    nodes = draw(st.integers(2, 9))
    pairs = {(draw(st.integers(0, node - 1)), node) for node in range(1, nodes)}
    more = st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1))
    pairs |= {
        tuple(sorted(pair)) for pair in draw(st.lists(more, max_size=6)) if pair[0] != pair[1]
    }
    is_server = draw(
        st.lists(st.booleans(), min_size=nodes, max_size=nodes).filter(lambda x: sum(x) > 1)
    )
    directed = draw(st.booleans())
    ends = sorted(pairs)
    columns = {}
    for field, values in (
        ("bandwidth_bytes_per_s", st.floats(1e-3, 1e15)),
        ("latency_s", st.floats(0, 1e3)),
        ("overhead_s", st.floats(0, 1e3)),
        ("capacity", st.integers(1, 10**6)),
    ):
        there = draw(st.lists(values, min_size=len(ends), max_size=len(ends)))
        back = draw(st.lists(values, min_size=len(ends), max_size=len(ends))) if directed else there
        columns[field] = np.array(there + back)
    names = draw(labels)
    return Topology(
        name="drawn",
        is_server=np.array(is_server),
        source=np.array([a for a, _ in ends] + [b for _, b in ends]),
        target=np.array([b for _, b in ends] + [a for a, _ in ends]),
        labels=() if names is None else tuple(f"{name}{i}" for i, name in enumerate(names[:nodes])),
        **columns,
    )


words = st.lists(st.text("abcé/-_ü漢", min_size=1, max_size=5), min_size=9, max_size=9)
lines = st.lists(
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=5), min_size=9, max_size=9
)


@pytest.mark.parametrize("suffix", FORMATS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(net=topologies(labels=st.none() | words))
def test_round_trip(tmp_path, suffix, net):
    path = tmp_path / f"net{suffix}"
    gt.save(net, path)
    read = gt.read(path)
    assert read.same_network(net)
    assert read.labels == net.labels
    assert read.name == str(path)


@pytest.mark.parametrize("suffix", [".json", ".yaml", ".graphml"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(net=topologies(labels=lines))
def test_any_label_survives(tmp_path, suffix, net):
    path = tmp_path / f"net{suffix}"
    try:
        gt.save(net, path)
    except FileError as error:  # XML has no way to write U+FFFE and U+FFFF
        assert suffix == ".graphml" and "cannot hold" in str(error)
        return
    ids = tuple(map(str, range(net.num_nodes)))
    assert (gt.read(path).labels or ids) == net.labels


@given(net=topologies(labels=st.none() | words))
def test_networkx_round_trip(net):
    graph = gt.to_networkx(net)
    assert isinstance(graph, nx.DiGraph)
    read = gt.from_networkx(graph)
    assert read.same_network(net)
    assert (read.name, read.labels) == (net.name, net.labels)


@pytest.mark.parametrize("suffix", [".graphml", ".json", ".yaml"])
def test_drawings_survive(tmp_path, suffix):
    net = gt.bcube(3, 1)
    gt.save(net, tmp_path / f"net{suffix}")
    assert np.array_equal(gt.read(tmp_path / f"net{suffix}").positions, net.positions)


def test_numbers_out_of_order_are_kept_as_labels(tmp_path):
    net = dataclasses.replace(gt.ring(3), labels=("10", "2", "7"))
    for suffix in (".graphml", ".json"):
        gt.save(net, tmp_path / f"net{suffix}")
        read = gt.read(tmp_path / f"net{suffix}")
        assert read.same_network(net) and read.labels == net.labels
    for suffix in (".edges", ".csv"):
        with pytest.raises(FileError, match="integers are ascending"):
            gt.save(net, tmp_path / f"net{suffix}")


@pytest.mark.parametrize(
    "labels", [("a", "a", "b"), ("a b", "c", "d"), ("#a", "b", "c"), ("", "b", "c")]
)
def test_an_edge_list_refuses_labels_that_it_cannot_hold(tmp_path, labels):
    for suffix in (".edges", ".csv"):
        with pytest.raises(FileError, match=r"save as \.json"):
            gt.save(dataclasses.replace(gt.ring(3), labels=labels), tmp_path / f"net{suffix}")
    assert not list(tmp_path.iterdir())


def test_the_object_of_a_schedule_file_is_a_topology_file(tmp_path):
    net = gt.jellyfish_reference("J10", link=Link(capacity=2))
    held = topology_to_object(net)
    for content in (held, {"format": "gradweave-schedule", "topology": held}):
        (tmp_path / "net.json").write_text(json.dumps(content))
        assert gt.read(tmp_path / "net.json").same_network(net)


@pytest.mark.parametrize("edges", ["links", "edges"])
def test_node_link_json_of_networkx(tmp_path, edges):
    data = nx.node_link_data(nx.petersen_graph(), edges=edges)
    (tmp_path / "net.json").write_text(json.dumps(data))
    net = gt.read(tmp_path / "net.json")
    assert (net.num_servers, net.num_links, net.labels) == (10, 15, ())


def load_text(tmp_path, text, suffix=".edges"):
    path = tmp_path / f"net{suffix}"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return gt.read(path)


def test_edge_list_by_hand(tmp_path):
    net = load_text(
        tmp_path,
        """
        # A small cluster.
        # switches: s0
        b s0 10Gbit/s 5us      # the slow one
        a s0 25Gbit/s
        c s0 40Gbit/s 1ms
        """,
    )
    assert net.labels == ("b", "s0", "a", "c")  # as they appear
    assert net.is_server.tolist() == [True, False, True, True]
    from_switch = net.source == 1
    assert net.bandwidth_bytes_per_s[from_switch].tolist() == [1.25e9, 3.125e9, 5e9]
    assert net.capacity[from_switch].tolist() == [2, 5, 8]
    assert net.latency_s[from_switch].tolist() == [5e-6, 1e-6, 1e-3]


def test_integers_are_ids_in_ascending_order(tmp_path):
    net = load_text(tmp_path, "10 2\n2 30\n")
    assert net.labels == ("2", "10", "30")
    assert net.source.tolist() == [0, 0, 1, 2] and net.target.tolist() == [1, 2, 0, 0]
    assert load_text(tmp_path, "2 1\n1 0\n").labels == ()
    assert load_text(tmp_path, "02 1\n1 2\n").labels == ("02", "1", "2")  # no plain integer: a name


def test_directed_edges_are_directions(tmp_path):
    net = load_text(tmp_path, "# directed\na b 10Gbit/s\nb a 20Gbit/s\n")
    assert net.bandwidth_bytes_per_s.tolist() == [1.25e9, 2.5e9]
    assert net.capacity.tolist() == [1, 2]
    with pytest.raises(FileError, match="has no opposite direction"):
        load_text(tmp_path, "# directed\na b\n")


def test_parallel_edges_merge(tmp_path):
    net = load_text(tmp_path, "a b 10Gbit/s 1us\nb a 10Gbit/s 3us\na c 10Gbit/s 1us\n")
    assert net.num_links == 2
    assert net.capacity.tolist() == [2, 1, 2, 1]
    assert net.bandwidth_bytes_per_s.tolist() == [2.5e9, 1.25e9, 2.5e9, 1.25e9]
    assert net.latency_s.tolist() == [3e-6, 1e-6, 3e-6, 1e-6]


def test_capacities_of_the_file_are_kept(tmp_path):
    net = load_text(tmp_path, "a b 10Gbit/s 1us 3\na c 25Gbit/s\n")
    assert net.capacity.tolist() == [3, 1, 3, 1]


def test_alike_links_carry_one(tmp_path):
    net = load_text(tmp_path, "a b 0.1B/s\na c 0.1B/s\n")
    assert net.capacity.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("slow", "capacities", "said"),
    [
        ("999999bit/s", [10_000, 1], "the slowest more than in proportion"),  # 100,000 times slower
        ("16999999bit/s", [5323, 1], "in proportion to within 5.0%"),  # 5,882 times slower
    ],
)
def test_bandwidths_far_apart_get_rounded_capacities(tmp_path, slow, capacities, said):
    with pytest.warns(InputWarning, match=f"links carry 1 to {capacities[0]} .*{said}"):
        net = load_text(tmp_path, f"a b 100Gbit/s\na c {slow}\n")
    assert net.capacity.tolist() == capacities * 2


@pytest.mark.parametrize(
    ("measured", "capacities", "within"),
    [
        (["97Gbit/s", "100.3Gbit/s", "33.333Gbit/s"], [3, 3, 1], "1.7%"),
        (["97Gbit/s", "99.9Gbit/s", "101.2Gbit/s"], [1, 1, 1], "2.1%"),
        (["97Gbit/s", "9.93Gbit/s", "24.1Gbit/s"], [19, 2, 5], "2.9%"),
        (["100Gbit/s", "9999999999bit/s", "100Gbit/s"], [10, 1, 10], "0.0%"),
    ],
)
def test_measured_bandwidths_get_few_lanes_and_a_warning(tmp_path, measured, capacities, within):
    lines = [f"a {node} {bandwidth}" for node, bandwidth in zip("bcd", measured, strict=True)]
    with pytest.warns(InputWarning) as caught:
        net = load_text(tmp_path, "\n".join(lines))
    (warning,) = caught
    said = str(warning.message)
    assert said.startswith(f"{tmp_path / 'net.edges'}: bandwidths ") and "\n" not in said
    assert "seconds use the bandwidths as they are" in said and f"within {within}" in said
    assert net.capacity[net.source == 0].tolist() == capacities
    exact = [parse_bandwidth(bandwidth) for bandwidth in measured]
    assert net.bandwidth_bytes_per_s[net.source == 0].tolist() == exact


@given(st.lists(st.floats(1e9, 1e12), min_size=2, max_size=30))
def test_rounded_capacities_are_in_proportion_to_what_is_said(bandwidths):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)
        capacities = capacities_from_bandwidths(np.array(bandwidths))
    ratio = capacities / np.array(bandwidths)
    assert np.ptp(ratio) / (ratio.max() + ratio.min()) <= TOLERANCE * 1.01
    assert capacities.min() >= 1 and capacities.max() <= 20 * max(bandwidths) / min(bandwidths) + 20


def test_bandwidths_of_a_common_unit_are_left_exact():
    for gbits in ([10, 25, 40], [16, 24, 25, 240], [100, 400], [1, 400], [50, 360]):
        exact = np.array(gbits) // np.gcd.reduce(gbits)
        assert (capacities_from_bandwidths(np.array(gbits) * 1e9 / 8) == exact).all()
    odd = np.array([97e9, 100.3e9]) / 8
    assert capacities_from_bandwidths(odd, rounded=False).tolist() == [970, 1003]


@pytest.mark.parametrize(
    ("edge", "understood"),
    [
        ({"bandwidth": "100"}, "bandwidth 100 has no unit: understood as 100 bytes/s; write 100G"),
        ({"bandwidth": 12.5}, "bandwidth 12.5 has no unit: understood as 12.5 bytes/s"),
        ({"latency": "5"}, "latency 5 has no unit: understood as 5 s; write 5us, or 5s for those"),
        ({"latency": 0.25}, "latency 0.25 has no unit: understood as 0.25 s; write 0.25us"),
        ({"overhead": "20"}, "overhead 20 has no unit: understood as 20 s; write 20us, or 20s"),
        ({"color": "red", "weight": 3}, "ignored: 'color', 'weight'; links may have bandwidth"),
        ({"bandwidth": 1e9, "bandwidth_used": 1}, "ignored: 'bandwidth_used'"),
    ],
)
def test_what_may_not_be_meant_is_told_once(edge, understood):
    graph = nx.Graph([("a", "b", edge), ("b", "c", edge), ("a", "c", edge)])
    with pytest.warns(InputWarning) as caught:
        net = gt.from_networkx(graph, name="cluster.json")
    (warning,) = caught
    assert str(warning.message).startswith("cluster.json: ") and understood in str(warning.message)
    assert warning.filename == __file__
    assert net.num_links == 3


@pytest.mark.parametrize("quiet", ["1e6", "100Gbit/s", "100B/s", 1e9])
def test_what_has_a_unit_or_is_large_is_not_told_of(quiet):
    gt.from_networkx(nx.Graph([("a", "b", {"bandwidth": quiet})]))


@pytest.mark.parametrize(
    ("edge", "meant"),
    [
        ("bandwith", "bandwidth"),
        ("Bandwidth", "bandwidth"),
        ("bandwidth_gbps", "bandwidth"),
        ("bandwidth_bytes_per_sec", "bandwidth"),
        ("bw", "bandwidth"),
        ("speed", "bandwidth"),
        ("latancy", "latency"),
        ("latency_us", "latency"),
        ("delay", "latency"),
        ("overhaed", "overhead"),
        ("capcity", "capacity"),
    ],
)
def test_a_misspelt_attribute_is_refused(edge, meant):
    with pytest.raises(TopologyError) as caught:
        gt.from_networkx(nx.Graph([("a", "b", {edge: "10Gbit/s"})]))
    assert str(caught.value) == f"link 'a'→'b': unknown attribute {edge!r}; did you mean {meant}?"


def test_a_misspelt_kind_is_refused():
    graph = nx.star_graph(3)
    graph.nodes[0]["knd"] = "switch"
    with pytest.raises(
        TopologyError, match=r"node 0: unknown attribute 'knd'; did you mean kind\?"
    ):
        gt.from_networkx(graph)
    graph.nodes[0]["kind"] = "switch"
    with pytest.warns(InputWarning, match="ignored: 'knd'"):
        gt.from_networkx(graph)


@pytest.mark.parametrize(
    ("suffix", "text", "says"),
    [
        (
            ".yaml",
            "nodes: [{id: tor}, {id: a}]\nlinks: [{source: a, target: tor}]\n",
            "node 'tor' is taken for a server, since no kind is given; if it only forwards, write ",
        ),
        (
            ".csv",
            "source,target\na,Leaf-1\nLeaf-1,spine\nb,spine\n",
            "nodes 'Leaf-1' and 'spine' are taken for servers, since no kind is given; if they ",
        ),
    ],
)
def test_a_node_with_a_switchs_name_and_no_kind_is_told_of(tmp_path, suffix, text, says):
    (tmp_path / f"net{suffix}").write_text(text)
    with pytest.warns(InputWarning) as caught:
        net = gt.read(tmp_path / f"net{suffix}")
    assert net.is_server.all() and len(caught) == 1
    assert says in str(caught[0].message)


@pytest.mark.parametrize(("links", "told"), [(1, False), (2, True)])
def test_links_whose_bandwidth_may_not_be_meant_are_counted_where_there_are_several(links, told):
    graph = nx.path_graph(links + 1)
    nx.set_edge_attributes(graph, 12.5, "bandwidth")
    with pytest.warns(InputWarning) as caught:
        gt.from_networkx(graph, name="cluster.json")
    (warning,) = caught
    assert str(warning.message).endswith(" (2 such links)") == told


def test_a_kind_and_the_name_of_a_server_are_believed():
    graph = nx.Graph([("tor", "a"), ("a", "switchboard"), ("a", "hubert"), ("a", "sw1")])
    graph.nodes["tor"]["kind"], graph.nodes["sw1"]["kind"] = "server", "switch"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert gt.from_networkx(graph).num_servers == 4


def test_nodes_may_have_names():
    graph = nx.path_graph(3)
    for node, name in enumerate(("gpu0", "leaf-1", "gpu1")):
        graph.nodes[node]["name"] = name
    graph.nodes[1]["kind"] = "switch"
    assert gt.from_networkx(graph).labels == ("gpu0", "leaf-1", "gpu1")


def test_csv_by_hand(tmp_path):
    net = load_text(
        tmp_path,
        "\ufeff# A small cluster,,\r\n"
        '"# switches: s0 s1",,,\r\n'
        "Target, SOURCE,latency,bandwidth\r\n"
        'b,s0,5us,"10Gbit/s"\r\n'
        ",,,\r\n"
        "a,s0,,25Gbit/s\r\n"
        "s1,s0,,\r\n"
        '"c, d",s1,1ms,40Gbit/s\r\n',
        ".csv",
    )
    assert net.labels == ("s0", "b", "a", "s1", "c, d")
    assert net.is_server.tolist() == [False, True, True, False, True]
    assert net.bandwidth_bytes_per_s[net.source == 0].tolist() == [1.25e9, 3.125e9, 12.5e9]
    assert net.capacity[net.source == 0].tolist() == [2, 5, 20]
    assert net.latency_s[net.source == 0].tolist() == [5e-6, 1e-6, 1e-6]


def test_yaml_by_hand(tmp_path):
    text = """
        nodes:
        - {id: gpu0}
        - {id: no}          # a name, not a truth value
        - {id: 1:30}        # nor a time
        - {id: leaf, kind: switch}
        links:
        - {source: gpu0, target: leaf, bandwidth: 100Gbit/s, latency: 1us}
        - {source: no, target: leaf, bandwidth: 1e9}
        - {source: 1:30, target: leaf, bandwidth_bytes_per_s: 2e9, capacity: 2}
    """
    net = load_text(tmp_path, text, ".yml")
    assert net.labels == ("gpu0", "no", "1:30", "leaf")
    assert net.bandwidth_bytes_per_s[net.source == 3].tolist() == [12.5e9, 1e9, 2e9]
    held = topology_to_object(gt.bcube(2, 1))
    (tmp_path / "schedule.yaml").write_text(write_yaml({"topology": held}))
    assert gt.read(tmp_path / "schedule.yaml").same_network(gt.bcube(2, 1))


@pytest.mark.parametrize(
    "line",
    ["# switch: s0", "#switch:s0", "# Switches: s0", "# swiches : s0", "# node: a", "# directed:",
     "# Directed", "# direct", "# switches s0", "a s0 1Gbit/s # switches: s0"],
)  # fmt: skip
def test_what_is_nearly_a_directive_is_refused(tmp_path, line):
    with pytest.raises(FileError, match=r"line 2: .*(did you mean|with a colon|of its own)"):
        load_text(tmp_path, f"# A cluster: mine\n{line}\na s0\nb s0\n")


@pytest.mark.parametrize(
    "line", ["# undirected", "# note: slow", "# switches are alike", "# 10: x", "#", "# nodes"]
)
def test_other_comments_are_comments(tmp_path, line):
    assert load_text(tmp_path, f"{line}\na b # to the left\n").num_links == 1


@pytest.mark.parametrize("key", ["kind", "type", "role"])
def test_kinds(key):
    graph = nx.star_graph(3)
    graph.nodes[0][key] = "Switch"
    graph.nodes[1][key] = "server"
    assert gt.from_networkx(graph).is_server.tolist() == [False, True, True, True]
    graph.nodes[0][key] = "router" if key == "kind" else "swich"
    with pytest.raises(TopologyError, match=f"node 0: {key} must be server or switch, got '"):
        gt.from_networkx(graph)


def kinds_of(graph) -> list[bool]:
    return gt.from_networkx(graph).is_server.tolist()


@pytest.mark.parametrize("key", ["type", "role"])
def test_free_text_as_type_or_role_is_a_warning(key):
    """As in 103 of the 276 networks of the Internet Topology Zoo."""
    graph = nx.star_graph(3)
    for node, text in enumerate(["Small Node", "Large Node", "Small Node", "switch"]):
        graph.nodes[node][key] = text
    said = f"nodes of {key} 'Small Node' and {key} 'Large Node' are taken for servers"
    with pytest.warns(InputWarning, match=said) as caught:
        assert kinds_of(graph) == [True, True, True, False]
    assert len(caught) == 1
    graph = nx.path_graph(3)
    graph.nodes[1].update(type="Core", role="switch")  # the first that says which decides
    assert kinds_of(graph) == [True, False, True]


SMALL_TYPE = """<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
<key attr.name="type" attr.type="string" for="node" id="n1"/>
<key attr.name="label" attr.type="string" for="node" id="n0"/><graph edgedefault="undirected">
<node id="0"><data key="n0">A</data><data key="n1">Small Node</data></node>
<node id="1"><data key="n0">B</data><data key="n1">Large Node</data></node>
<node id="2"><data key="n0">C</data></node>
<edge source="0" target="1"/><edge source="1" target="2"/></graph></graphml>"""


def test_a_network_of_the_zoo_has_its_nodes_as_servers(tmp_path):
    with pytest.warns(InputWarning) as caught:
        net = load_text(tmp_path, SMALL_TYPE, ".graphml")
    assert len(caught) == 1 and net.num_servers == 3 and net.labels == ("A", "B", "C")


def zoo(*edges: dict) -> nx.Graph:
    graph = nx.Graph()
    graph.add_edges_from((place, place + 1, data) for place, data in enumerate(edges))
    return graph


@pytest.mark.parametrize(
    ("edge", "bits_per_s"),
    [
        ({"LinkSpeedRaw": 20000000.0}, 20e6),
        ({"LinkSpeedRaw": "1e10", "LinkSpeed": "1", "LinkSpeedUnits": "M"}, 1e10),
        ({"LinkSpeed": "155", "LinkSpeedUnits": "M"}, 155e6),
        ({"LinkSpeed": "2.5", "LinkSpeedUnits": "G", "LinkLabel": "OC-48"}, 2.5e9),
        ({"LinkLabel": "10 Gbit/s"}, 1e10),
        ({"LinkLabel": "34Mbps"}, 34e6),
        ({"LinkSpeedRaw": 1e9, "bandwidth": "1MB/s"}, 8e6),  # ours comes first
    ],
)
def test_speeds_of_the_zoo_are_read(edge, bits_per_s):
    net = gt.from_networkx(zoo(edge))
    assert net.bandwidth_bytes_per_s.tolist() == [bits_per_s / 8] * 2


def test_speeds_of_the_zoo_are_read_from_csv(tmp_path):
    net = load_text(tmp_path, "source,target,linkspeedraw\na,b,20000000.0\n", ".csv")
    assert net.bandwidth_bytes_per_s.tolist() == [2.5e6] * 2


@pytest.mark.parametrize("label", ["OC-12", "10GE", "<10 Gbps", "2 x 10 Gbps", "10", "Fibre"])
def test_labels_that_are_no_speed_leave_the_default_with_a_warning(label):
    with pytest.warns(InputWarning, match="no speed can be read of 1 of 2 links, such as 1→2"):
        net = gt.from_networkx(zoo({"LinkSpeedRaw": 1e10}, {"LinkLabel": label}))
    assert net.bandwidth_bytes_per_s.tolist() == [1.25e9, 1.25e9, 12.5e9, 12.5e9]


@pytest.mark.parametrize(
    ("edge", "reason"),
    [
        ({"LinkSpeedRaw": "fast"}, "link 0→1: LinkSpeed: bandwidth 'fastbit/s'"),
        ({"LinkSpeedRaw": 0}, "link 0→1: LinkSpeed: bandwidth '0bit/s': expected more than zero"),
        ({"LinkSpeed": "10", "LinkSpeedUnits": "X"}, "unknown unit 'Xbit/s'"),
        ({"preInstalledModuleCapacity": 155.0}, "have capacities without a unit; write bandwidth"),
        ({"additionalModules": "155"}, "write bandwidth, such as 155Mbit/s"),
    ],
)
def test_speeds_that_cannot_be_read_are_refused(edge, reason):
    with pytest.raises(TopologyError, match=reason):
        gt.from_networkx(zoo(edge))


def test_the_last_of_parallel_links_does_not_count_alone(tmp_path):
    links = [{"source": 0, "target": 1, "bandwidth": f"{rate}Gbit/s"} for rate in (1, 10)]
    data = {"nodes": [{"id": 0}, {"id": 1}], "links": links}
    net = load_text(tmp_path, json.dumps(data), ".json")
    assert net.bandwidth_bytes_per_s.tolist() == [11e9 / 8] * 2
    with pytest.raises(FileError, match="link 0→1 is given twice with different properties"):
        load_text(tmp_path, json.dumps(data | {"multigraph": False}), ".json")
    data["links"] = [links[1], {**links[1], "source": 1, "target": 0}]
    net = load_text(tmp_path, json.dumps(data | {"multigraph": False}), ".json")
    assert net.bandwidth_bytes_per_s.tolist() == [1.25e9] * 2


@pytest.mark.parametrize(
    ("attributes", "field", "value"),
    [
        ({"bandwidth": "10Gbit/s"}, "bandwidth_bytes_per_s", 1.25e9),
        ({"bandwidth": 3e9}, "bandwidth_bytes_per_s", 3e9),
        ({"bandwidth_bytes_per_s": "7"}, "bandwidth_bytes_per_s", 7.0),
        ({}, "bandwidth_bytes_per_s", Link().bandwidth_bytes_per_s),
        ({"latency": "5us"}, "latency_s", 5e-6),
        ({"overhead": "5us"}, "overhead_s", 5e-6),
        ({"overhead_s": 0.5}, "overhead_s", 0.5),
        ({}, "overhead_s", Link().overhead_s),
        ({"latency_s": 0.5}, "latency_s", 0.5),
        ({}, "latency_s", Link().latency_s),
        ({"capacity": 4}, "capacity", 4),
        ({"capacity": "4"}, "capacity", 4),
        ({"capacity": 4.0}, "capacity", 4),
        ({}, "capacity", 1),
    ],
)
def test_edge_attributes(attributes, field, value):
    net = gt.from_networkx(nx.Graph([("a", "b", attributes)]))
    assert getattr(net, field).tolist() == [value, value]


@pytest.mark.parametrize(
    ("attributes", "culprit"),
    [
        ({"bandwidth": "fast"}, "bandwidth 'fast'"),
        ({"bandwidth": float("nan")}, "bandwidth nan"),
        ({"bandwidth": -1}, "bandwidth -1"),
        ({"bandwidth": [1]}, "bandwidth [1]"),
        ({"bandwidth": 1, "bandwidth_bytes_per_s": 1}, "has both"),
        ({"latency_s": float("inf")}, "latency inf"),
        ({"capacity": 0}, "capacity must be a positive integer, got 0"),
        ({"capacity": 1.5}, "capacity must be a positive integer, got 1.5"),
        ({"capacity": True}, "capacity must be a positive integer"),
        ({"capacity": 10**30}, "capacity must be a positive integer"),
    ],
)
def test_bad_edge_attributes_are_named(attributes, culprit):
    with pytest.raises(TopologyError) as caught:
        gt.from_networkx(nx.Graph([("a", "b", attributes)]))
    assert str(caught.value).startswith("link 'a'→'b': ")
    assert culprit in str(caught.value)


def graphml(body, nodes="ab", directed="undirected"):
    elements = "".join(f'<node id="{node}"/>' for node in nodes)
    return (
        '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">'
        '<key id="b" for="edge" attr.name="bandwidth_bytes_per_s" attr.type="double"/>'
        f'<graph edgedefault="{directed}">{elements}{body}</graph></graphml>'
    )


BOMB = """<?xml version="1.0"?>
<!DOCTYPE lolz [
<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;">]>
<graphml>&c;</graphml>"""
OUTSIDE = '<!DOCTYPE g [<!ENTITY x SYSTEM "file:///etc/passwd">]><graphml>&x;</graphml>'
EDGE = '<edge source="a" target="b"/>'
GOOD = {"servers": [0, 1], "switches": [], "links": {}}


@pytest.mark.parametrize(
    ("suffix", "content", "culprit"),
    [
        (".graphml", BOMB, "document type"),
        (".graphml", OUTSIDE, "document type"),
        (".graphml", "<!DOCTYPE graphml><graphml/>", "document type"),
        (".graphml", graphml(EDGE)[:-20], "not well-formed XML"),
        (".graphml", "", "not well-formed XML"),
        (".graphml", b"\x00\xff", "not well-formed XML"),
        (".graphml", "<html/>", "not a readable topology file"),
        (".graphml", graphml(""), "disconnected"),
        (".graphml", graphml(EDGE, nodes=""), None),  # nodes that only edges name
        (".graphml", graphml(EDGE, directed="directed"), "opposite"),
        (
            ".graphml",
            graphml('<edge source="a" target="b"><data key="b">NaN</data></edge>'),
            "bandwidth nan",
        ),
        (
            ".graphml",
            graphml('<edge source="a" target="b"><data key="b">x</data></edge>'),
            "not a readable",
        ),
        (
            ".graphml",
            graphml('<edge source="a" target="b"><data key="z">1</data></edge>'),
            "not a readable",
        ),
        (".graphml", graphml("<hyperedge/>"), "not a readable"),
        (".graphml", graphml("<edge/>"), "to itself"),
        (".graphml", graphml('<edge source="a" target="a"/>' + EDGE), "to itself"),
        (".json", "", "not valid JSON"),
        (".json", '{"nodes": [{"id": 0}', "not valid JSON"),
        (".json", '{"nodes": [], "links": [], "x": NaN}', "not valid JSON"),
        (".json", b'{"\xff": 1}', "not valid JSON"),
        (".json", "[" * 100_000, "not valid JSON"),
        (".json", "[]", "expected nodes and links"),
        (".json", "{}", "expected nodes and links"),
        (".json", '{"nodes": 3}', "nodes: expected a list"),
        (".json", '{"nodes": []}', "links: expected a list"),
        (".json", '{"nodes": [], "links": []}', "0 servers"),
        (".json", '{"nodes": [1, 2], "links": []}', "not a readable"),
        (".json", '{"nodes": [{"id": {}}], "links": []}', "not a readable"),
        (".json", '{"nodes": [{"id": 0}], "links": [{"source": 0}]}', "not a readable"),
        (
            ".json",
            '{"nodes": [], "links": [{"source": 0, "target": 1, "capacity": 1e400}]}',
            "JSON",
        ),
        (".json", json.dumps(GOOD), "links.source: missing"),
        (".json", json.dumps({"topology": {**GOOD, "name": "x"}}), "links.source: missing"),
        (".edges", "", "0 servers"),
        (".edges", "a\n", "line 1: expected two nodes"),
        (".edges", "a b\na b 1 1 1 1 1\n", "line 2: expected two nodes"),
        (".edges", "a b fast\n", "bandwidth 'fast'"),
        (".edges", "a b nan\n", "bandwidth 'nan'"),
        (".edges", "a b 1Gbit/s -5us\n", "latency '-5us'"),
        (".edges", "a b 1Gbit/s 5us many\n", "capacity must be a positive integer"),
        (".edges", "a b\na a\n", "to itself"),
        (".edges", "a b\nc d\n", "disconnected"),
        (".edges", "# switches: s\na b\n", "switches: no link leads to 's'"),
        (".edges", "# nodes: a b c\na b\n", "disconnected"),
        (".edges", b"a b\n\xff", "not UTF-8"),
        (".edges", "# switches: b\na b\n", "1 server in"),
        (".cfg", "a b\n", "unknown kind of file"),
        (".json", '{"nodes": [], "links": [], "direcetd": true}', "did you mean directed?"),
        (".json", json.dumps({**GOOD, "lables": ["a", "b"]}), "did you mean labels?"),
        (".csv", "", "expected a header"),
        (".csv", "a,b,100Gbit/s\n", "expected a header with source and target"),
        (".csv", "source;target\na;b\n", "expected a header with source and target"),
        (".csv", "source,taget\na,b\n", "did you mean target?"),
        (".csv", "source,target,bandwith\na,b,1Gbit/s\n", "did you mean bandwidth?"),
        (".csv", "source,target,target\na,b,c\n", "the header has 'target' twice"),
        (".csv", "source,target\n# fine\na,b\na\n", "line 4: expected 2 cells"),
        (".csv", "source,target\na,\n", "line 2: expected a source and a target"),
        (".csv", "source,target\na,b,c\n", "line 2: expected 2 cells"),
        (".csv", 'source,target\n"a,b\n', "line 2: unexpected end of data"),
        (".csv", 'source,target\na,"' + "x" * 200_000 + '"\n', "field larger than field limit"),
        (".csv", "# switch: s\nsource,target\na,s\nb,s\n", "did you mean '# switches:'?"),
        (".csv", "source,target\na,b\n\x00", "line 3: expected 2 cells"),
        (".csv", "source,target,bandwidth\na,b,fast\n", "bandwidth 'fast'"),
        (".csv", b"source,target\na,\xff\n", "not UTF-8"),
        (".csv", "source,target\n", "0 servers"),
        (".yaml", "", "expected nodes and links"),
        (".yaml", "nodes: [", "not valid YAML"),
        (".yaml", "nodes: &a [{id: 0}]\nlinks: *a\n", "line 2: aliases (*a) are rejected"),
        (".yaml", "a: &a [x]\nb: &b [*a,*a]\nc: [*b,*b]\n", "line 2: aliases"),
        (".yaml", "a: &a {b: *a}\n", "line 1: aliases"),
        (".yaml", "[" * 200_000, "nested too deeply"),
        (".yaml", "a: " * 2 + "b\n", "not valid YAML"),
        (".yaml", "!!python/object/apply:os.system ['true']", "not valid YAML"),
        (".yaml", "!!python/name:os.system", "not valid YAML"),
        (".yaml", "a: 1\n--- \nb: 2\n", "not valid YAML"),
        (".yaml", "nodes: [{id: a}, {id: b}]\nlinks: [{source: a, bandwith: 1}]", "not a readable"),
        (".yaml", f"nodes: [{{id: {'9' * 5000}}}]\nlinks: []\n", "not valid YAML"),
        (".yaml", "nodes: [{id: 1e999}]\nlinks: []\n", "too large"),
        (".yaml", b"a: \xff\n", "not UTF-8"),
        (".yaml", "a: \x07\n", "not valid YAML"),
        (".yaml", "{a: 1}: 2\n", "not valid YAML"),
        (".yaml", "a: " + "x" * (9 << 20), "larger than 8 MiB"),
    ],
)
def test_hostile_files_are_named_in_one_line(tmp_path, suffix, content, culprit):
    if culprit is None:
        assert load_text(tmp_path, content, suffix).num_links == 1
        return
    with pytest.raises(FileError) as caught:
        load_text(tmp_path, content, suffix)
    message = str(caught.value)
    assert message.startswith(str(tmp_path / f"net{suffix}"))
    assert culprit in message
    assert message.isprintable() and len(message) < 500


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_truncation_is_refused_or_a_network(tmp_path, suffix):
    path = tmp_path / f"net{suffix}"
    gt.save(gt.bcube(2, 1), path)
    whole = path.read_bytes()
    for end in range(0, len(whole), max(1, len(whole) // 60)):
        path.write_bytes(whole[:end])
        try:
            gt.read(path)
        except (FileError, InputWarning) as error:
            assert str(error).isprintable()


@pytest.mark.parametrize("suffix", FORMATS)
def test_too_large_files_are_refused_unread(tmp_path, suffix):
    path = tmp_path / f"net{suffix}"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + (1 << 20))
    with pytest.raises(FileError, match="larger than 64 MiB"):
        gt.read(path)


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(FileError, match=r"none\.json: No such file"):
        gt.read(tmp_path / "none.json")
    with pytest.raises(FileError, match="directory"):
        gt.read(tmp_path, format="json")
    with pytest.raises(FileError, match="unknown format 'toml'; known are graphml, json, yaml"):
        gt.read(tmp_path / "net.json", format="toml")
    with pytest.raises(FileError, match="cannot be written"):
        gt.save(gt.ring(3), tmp_path / "missing" / "net.json")


def test_format_can_be_given(tmp_path):
    gt.save(gt.ring(3), tmp_path / "net", format="edges")
    assert gt.read(tmp_path / "net", format="edges").same_network(gt.ring(3))


def test_links_alike_both_ways_are_written_once(tmp_path):
    gt.save(gt.star(3), tmp_path / "net.edges")
    assert (tmp_path / "net.edges").read_text().splitlines() == [
        "# star:n=3",
        "# switches: 3",
        "0 3 100Gbit/s 1us 1",
        "1 3 100Gbit/s 1us 1",
        "2 3 100Gbit/s 1us 1",
    ]


GML = """Creator "Topology Zoo Toolset"
graph [
  DateModified "4/7/11"
  node [
    id 0
    label "Wien"
  ]
  node [
    id 2
    label "Graz"
  ]
  edge [
    source 0
    target 2
    LinkSpeed "10"
    LinkSpeedUnits "G"
    LinkSpeedRaw 10000000000.0
  ]
  edge [
    source 0
    target 2
    LinkSpeedRaw 2500000000.0
  ]
]
"""


@pytest.mark.parametrize("suffix", [".gml", ".txt", ""])
def test_gml_with_parallel_links(tmp_path, suffix: str):
    """Files of the Topology Zoo do not state ``multigraph``, and have parallel links."""
    net = load_text(tmp_path, GML, suffix)
    assert net.labels == ("Wien", "Graz") and net.num_links == 1
    assert set(net.bandwidth_bytes_per_s.tolist()) == {12.5e9 / 8}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GML[:-40], "not a readable topology file"),
        (GML.replace("target 2", "target 7"), "undefined target"),
        (GML.replace("id 2", "id 0"), "duplicated"),
        (GML.replace("source 0", "source x", 1), "undefined source"),
        ("graph [" * 5000, "not a readable topology file"),
        ("graph [\n]", "at least"),
    ],
)
def test_broken_gml_is_one_line(tmp_path, text: str, message: str):
    with pytest.raises(FileError, match=message) as error:
        load_text(tmp_path, text, ".gml")
    assert "\n" not in str(error.value) and len(str(error.value)) < 400
