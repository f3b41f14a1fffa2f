"""InfiniBand fabrics as ibnetdiscover prints them, in both forms."""

import itertools

import networkx as nx
import pytest

import gradweave as gw
from gradweave.errors import FileError, InputWarning

LEAVES = ("00000000000000a1", "00000000000000a2")
SPINE = "00000000000000b1"


def adapter(host: int, rail: int) -> str:
    return f"{0xC0 + 2 * host + rail:016x}"


HEADER = "#\n# Topology file: generated on Wed Aug  6 16:11:23 2025\n#\n\n"


def full(*, names=None, speed: str = "4xNDR") -> str:
    """Two leaves (rails), two cables of each to a spine, four hosts with an adapter on each."""
    names = names or {(h, r): f"node{h} mlx5_{r}" for h in range(4) for r in range(2)}
    sections = []
    for rail, leaf in enumerate(LEAVES):
        rows = [
            f'Switch\t65 "S-{leaf}"\t\t# "MF0;leaf{rail}:MQM9701/U1" enhanced port 0 lid 7 lmc 0'
        ]
        for host in range(4):
            guid = adapter(host, rail)
            rows.append(
                f'[{host + 1}]\t"H-{guid}"[1]({guid}) \t\t# "{names[host, rail]}" lid 9 {speed}'
            )
        for up in range(2):
            port = 1 + 2 * rail + up
            rows.append(f'[{60 + up}]\t"S-{SPINE}"[{port}]\t\t# "MF0;spine:X/U1" lid 2 4xNDR')
        rows.append('[65]\t"H-00000000000000f' + f'{rail}"[1](f{rail}) \t\t# ')
        rows[-1] += '"Mellanox Technologies Aggregation Node" lid 193 4xNDR'
        sections.append("vendid=0x2c9\ndevid=0xd2f2\nswitchguid=0x1(1)\n" + "\n".join(rows))
    rows = [f'Switch\t65 "S-{SPINE}"\t\t# "MF0;spine:X/U1" enhanced port 0 lid 2 lmc 0']
    for rail, up in itertools.product(range(2), range(2)):
        port = 1 + 2 * rail + up
        there = f'"S-{LEAVES[rail]}"[{60 + up}]'
        rows.append(f'[{port}]\t{there}\t\t# "MF0;leaf{rail}:MQM9701/U1" lid 7 4xNDR')
    sections.append("\n".join(rows))
    for host, rail in itertools.product(range(4), range(2)):
        guid = adapter(host, rail)
        sections.append(
            f'caguid=0x{guid}\nCa\t1 "H-{guid}"\t\t# "{names[host, rail]}"\n'
            f'[1]({guid}) \t"S-{LEAVES[rail]}"[{host + 1}]\t\t# lid 9 lmc 0 '
            f'"MF0;leaf{rail}:MQM9701/U1" lid 7 {speed}'
        )
    return HEADER + "\n\n".join(sections) + "\n"


def ports() -> str:
    """The same, one line per port, with two ports to which nothing is connected."""
    pairs = []
    for host, rail in itertools.product(range(4), range(2)):
        own = ("CA", f"{host}", "1", adapter(host, rail), f"node{host} mlx5_{rail}")
        pairs.append((own, ("SW", "7", f"{host + 1}", LEAVES[rail], f"leaf{rail}")))
    for rail, up in itertools.product(range(2), range(2)):
        leaf = ("SW", "7", f"{60 + up}", LEAVES[rail], f"leaf{rail}")
        pairs.append((leaf, ("SW", "2", f"{1 + 2 * rail + up}", SPINE, "spine")))
    lines = [
        f"{a[0]}  {a[1]}  {a[2]} 0x{a[3]} 4x NDR - {b[0]} {b[1]} {b[2]} 0x{b[3]} "
        f"( '{a[4]}' - '{b[4]}' )"
        for one, other in pairs
        for a, b in ((one, other), (other, one))
    ]
    lines.append(f"SW  7 37 0x{LEAVES[0]} 4x ???                                    'leaf0'")
    lines.append(f"SW  7 38 0x{LEAVES[0]} 4x SDR                                    'leaf0'")
    return "\n".join(lines) + "\n\n"


def read(tmp_path, text: str, name: str = "fabric.out") -> gw.topology.Topology:
    path = tmp_path / name
    path.write_text(text)
    return gw.topology.read(path)


def links(topology: gw.topology.Topology) -> dict[tuple[str, str], float]:
    labels = topology.labels
    ends = zip(topology.source.tolist(), topology.target.tolist(), strict=True)
    bandwidth = topology.bandwidth_bytes_per_s.tolist()
    return {
        (labels[a], labels[b]): each * 8e-9 for (a, b), each in zip(ends, bandwidth, strict=True)
    }


EXPECTED = {(f"node{h}", f"leaf{r}"): 400.0 for h in range(4) for r in range(2)} | {
    (f"leaf{r}", "spine"): 800.0 for r in range(2)
}


@pytest.mark.parametrize("text", [full(), ports()], ids=["full", "ports"])
@pytest.mark.parametrize("name", ["fabric.out", "fabric", "fabric.txt"])
def test_both_forms_are_recognised_and_give_the_same_network(tmp_path, text: str, name: str):
    """A host with two adapters is one server; two cables to the spine are one link of 800."""
    network = read(tmp_path, text, name)
    assert network.num_servers == 4 and len(network.switches) == 3
    assert links(network) == EXPECTED | {(b, a): rate for (a, b), rate in EXPECTED.items()}
    assert nx.is_connected(gw.topology.to_networkx(network).to_undirected())


def test_switches_that_share_a_name_are_told_apart(tmp_path):
    text = full().replace("MF0;leaf1:MQM9701/U1", "MF0;leaf0:MQM9701/U2")
    labels = set(read(tmp_path, text).labels)
    assert {"MF0;leaf0:MQM9701/U1", "MF0;leaf0:MQM9701/U2", "spine"} <= labels
    alike = full().replace("MF0;leaf1:MQM9701/U1", "MF0;leaf0:MQM9701/U1")
    assert {*LEAVES, "spine"} <= set(read(tmp_path, alike).labels)
    as_host = full().replace("MF0;spine:X/U1", "MF0;node0:X/U1")
    assert {"node0", SPINE} <= set(read(tmp_path, as_host).labels)


def test_adapters_without_a_host_are_left_out_with_a_warning(tmp_path):
    names = {(h, r): f"node{h} mlx5_{r}" for h in range(4) for r in range(2)}
    vendor = "MT4129 ConnectX7   Mellanox Technologies"
    with pytest.warns(InputWarning, match="1 adapter without a host's name, such as 'MT4129"):
        network = read(tmp_path, full(names=names | {(3, 1): vendor}))
    assert network.num_servers == 4 and ("node3", "leaf1") not in links(network)
    with pytest.raises(FileError, match="none of 8 adapters has a host's name"):
        read(tmp_path, full(names=dict.fromkeys(names, vendor)))


@pytest.mark.parametrize(
    ("speed", "gbits"),
    [("1xEDR", 25), ("4xHDR", 200), ("2xHDR", 100), ("4xFDR", 54.56), ("4xFDR10", 40),
     ("4xQDR", 32), ("12xSDR", 24), ("4xXDR", 800)],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*no useful common unit")
def test_rates_of_lanes(tmp_path, speed: str, gbits: float):
    rates = links(read(tmp_path, full(speed=speed)))
    assert rates["node0", "leaf0"] == pytest.approx(gbits)
    assert rates["leaf0", "spine"] == pytest.approx(800)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (full(speed="4xWDR"), "line 9: expected a width and rate such as 4xNDR, of SDR, .*'4xWDR'"),
        (full(speed="0xNDR"), "line 9: expected a width and rate .* got '0xNDR'"),
        (full(speed="9" * 5000 + "xNDR"), "line 9: expected a width and rate"),
        (full() + "surprise\n", "line [0-9]+: expected a device or a port .* got 'surprise'"),
        (full().replace("mlx5_", "mlx5_\x00"), ""),
        (HEADER + 'Ca\t1 "H-b8e92403009ca838"\t\t# "n01-c1 HCA-1"\n', "1 server"),
        (ports().replace("4x NDR", "4x ZDR"), "line 1: expected a width and rate .*'4x ZDR'"),
        (ports().replace(" - ", " = "), "line 1: expected a device or a port"),
    ],
)  # fmt: skip
def test_broken_files_are_one_line(tmp_path, text: str, message: str):
    if not message:
        assert read(tmp_path, text).num_servers == 4
        return
    with pytest.raises(FileError, match=message) as error:
        gw.topology.read(_written(tmp_path, text), "ibnetdiscover")
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


def _written(tmp_path, text: str):
    path = tmp_path / "fabric.out"
    path.write_text(text)
    return path
