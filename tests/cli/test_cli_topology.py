"""``gradweave topology``: what is known about a network, and the families."""

UNEQUAL = "source,target,bandwidth,latency\na,b,100Mbit/s,1ms\nb,c,1Gbit/s,2ms\nc,d,1Gbit/s,2ms\n"


def test_a_network_is_described(gradweave, here):
    (here / "net.csv").write_text(UNEQUAL)
    held = gradweave("topology", "show", "net.csv", "--json").json
    assert (held["format"], held["servers"], held["switches"], held["links"]) == ("csv", 4, 0, 3)
    assert held["diameter"] == 3 and held["warnings"] == []
    kinds = {one["bandwidth_bytes_per_s"]: one for one in held["link_kinds"]}
    assert (kinds[12.5e6]["links"], kinds[125e6]["links"]) == (1, 2)
    assert kinds[125e6]["latency_s"] == 0.002
    lines = gradweave("topology", "show", "net.csv").stdout.splitlines()
    assert lines[0] == "net.csv: 4 servers, 0 switches, 3 links"
    assert "source: a file, read as csv" in lines
    assert "diameter: 3 transfers between the two most distant servers" in lines
    assert any(line.startswith("links: 2 of 1 Gbit/s, latency 2 ms") for line in lines)


NODE = """\
GPU0 GPU1 NIC0 CPU Affinity NUMA Affinity
GPU0  X   NV4 PIX 0-15 0
GPU1 NV4  X   SYS 16-31 1
NIC0 PIX SYS  X
NIC Legend:
  NIC0: mlx5_0
"""
FABRIC = 'Switch\t40 "S-00000000000000a1"\t# "leaf1" enhanced port 0 lid 7 lmc 0\n' + "".join(
    f'[{host}]\t"H-00000000000000c{host}"[1](c{host}) \t# "node{host} mlx5_0" lid 9 4x{speed}\n'
    for host, speed in enumerate(("NDR", "NDR", "HDR", "NDR"))
)


def test_two_files_are_one_network_with_its_bound_and_what_stands_out(gradweave, here):
    (here / "node.txt").write_text(NODE)
    (here / "fabric.out").write_text(FABRIC)
    shown = ("topology", "show", "node.txt", "fabric.out")
    lines = gradweave(*shown, "--size", "1GB", "--output", "net.json").stdout.splitlines()
    assert lines[0].startswith("node.txt+fabric.out: 8 servers, ")
    assert lines[1:3] == [
        "source: node.txt, read as nvidia-smi topo -m",
        "source: fabric.out, read as ibnetdiscover",
    ]
    [assumed] = [line for line in lines if line.startswith("assumed: ")]
    assert "node.txt is assumed for all 4 hosts" in assumed and "20 GB/s per NVLink" in assumed
    [bound] = [line for line in lines if line.startswith("all-reduce of 1 GB: at least ")]
    assert " for schedules that " in bound or " for every schedule: " in bound
    odd = "link node2/nic0→leaf1 has 200 Gbit/s, its 3 siblings at leaf1 have 400 Gbit/s"
    assert f"stands out: {odd}" in lines and lines[-1] == "written to net.json"
    again = gradweave("topology", "show", "node.txt+fabric.out", "--json").json
    assert again["format"] == "nvidia_topo+ibnetdiscover" and again["stands_out"] == [odd]
    assert [one["file"] for one in again["files"]] == ["node.txt", "fabric.out"]
    assert again["bound"]["gradient_bytes"] == 10**8 and again["bound"]["seconds"] > 0
    assert gradweave("topology", "show", "net.json", "--json").json["servers"] == 8


def test_assumed_links_of_hosts_are_said_and_set(gradweave, here):
    (here / "hosts.hosts").write_text("r1:a\nr1:b\nr2:c\nr2:d\n")
    shown = ("topology", "show", "hosts.hosts")
    assumed = gradweave(*shown, "--json").json["assumed"]
    assert len(assumed) == 1 and assumed[0].startswith("100 Gbit/s for the link of each host")
    given = gradweave(*shown, "--bandwidth", "8Gbit/s", "--oversubscription", "2", "--json").json
    kinds = {one["bandwidth_bytes_per_s"] for one in given["link_kinds"]}
    assert kinds == {1e9} and given["assumed"] == []


def test_files_that_do_not_fit_are_refused(refused, here):
    (here / "node.txt").write_text(NODE)
    (here / "cut.txt").write_text(NODE[:80])
    said = refused("topology", "show", "node.txt", "node.txt")
    assert "is given twice" in said
    assert "line 3: GPU1: expected 3 entries, got 2" in refused("topology", "show", "cut.txt")
    assert "for lists of hosts" in refused("topology", "show", "node.txt", "--bandwidth", "1Gbit/s")
    assert "No such file" in refused("topology", "show", "node.txt", "nowhere.out")


def test_faults_and_groups_are_counted(gradweave):
    slow = gradweave("topology", "show", "ring:4", "--slow", "0-1=0.5", "--json").json
    assert slow["format"] == "specification" and len(slow["link_kinds"]) == 2
    boxes = gradweave("topology", "show", "a100:boxes=2")
    assert boxes.status == 0 and "servers are in 2 groups" in boxes.stdout
    assert "diameter: 1 transfer" in boxes.stdout


def test_a_doubtful_file_is_shown_with_its_warnings(gradweave, here):
    (here / "net.edges").write_text("0 1 100\n1 2 100\n")
    answer = gradweave("topology", "show", "net.edges")
    assert answer.status == 0, answer
    told = gradweave("topology", "show", "net.edges", "--json").json["warnings"]
    assert [f"warning: {one}" for one in told] == [
        line for line in answer.stdout.splitlines() if line.startswith("warning: ")
    ]


def test_an_unknown_network_is_refused(refused):
    assert "unknown family of networks; did you mean torus?" in refused("topology", "show", "tors")
    assert "nowhere.yaml: No such file" in refused("topology", "show", "nowhere.yaml")


def test_networks_are_designed(gradweave, here):
    answer = gradweave("topology", "design", "8", "3", "100kB", "--json", "--output", "best.json")
    found = answer.json
    best, *others = found["networks"]
    assert best["diameter"] == 2 and best["degree"] == 3
    assert all(best["seconds"] <= other["seconds"] * (1 + 1e-9) for other in others)
    assert found["every_network"]["diameter"] == 2 and found["not_compared"] == []
    assert all(found["every_network"]["seconds"] <= one["seconds"] for one in found["networks"])
    shown = gradweave("topology", "show", "best.json", "--json").json
    assert (shown["servers"], shown["links"], shown["diameter"]) == (8, 12, 2)
    lines = gradweave("topology", "design", "8", "3", "100kB").stdout.splitlines()
    assert lines[0].startswith("every network of 8 servers, at most 3 links of 100 Gbit/s each way")
    assert lines[1].split() == "network links diameter mean hops time bound gap".split()
    assert any("faster than torus:4x2" in line for line in lines)
    assert any(line.startswith("no network can be more than") for line in lines)


def test_a_design_without_links_is_refused(refused):
    assert "expected a degree of 2 or more" in refused("topology", "design", "8", "1", "1MB")


TIMES = """\
# Collective test starting: all_reduce_perf
#       size         count      type   redop    root     time   algbw   busbw #wrong
  1000000000     250000000     float     sum      -1   200000    5.00    7.50      0
# Avg bus bandwidth    : 7.5
"""


def test_times_of_nccl_tests_are_explained(gradweave, here):
    """On a star at 10 GB/s, 1 GB takes four ranks 0.15 s."""
    (here / "times.log").write_text(TIMES)
    on = ("--network", "star:4,bandwidth=10GB/s,latency=0s")
    lines = gradweave("topology", "explain", "times.log", *on).stdout.splitlines()
    assert lines[0] == "all_reduce: 4 ranks"
    assert any(line.startswith("hardware's limit: 10 GB/s busbw, if ") for line in lines)
    assert "measured: 1.33 times the bound at 1 GB" in lines
    assert lines[-2].split("  ")[0] == "size" and lines[-1].split()[:4] == ["1", "GB", "200", "ms"]
    written = ("--write-runtime", "nccl.toml", "--json")
    held = gradweave("topology", "explain", "times.log", *on, *written).json
    (one,) = held["measurements"]
    assert (one["factor"], one["links_bus_bytes_per_s"]) == (1.5, 1e10)
    assert round(one["points"][0]["bound_s"], 4) == 0.15
    assert held["runtime"] == "nccl.toml"
    plan = ("solve", on[1], "--scheduler", "ring", "--size", "1GB", "--runtime", "nccl.toml")
    assert round(gradweave(*plan, "--json").json["seconds"], 3) == 0.2


def test_times_that_cannot_be_explained_get_one_line(refused, here):
    (here / "times.log").write_text(TIMES)
    for words, says in {
        "explain none.log": "none.log: No such file",
        "explain times.log --write-runtime a.toml": "--write-runtime: expected --network with it",
        "explain times.log --network star:3": "--network: expected 4 servers, one for each rank",
        "explain times.log --ranks 5": "all_reduce among 5 ranks: expected busbw to be 1.6",
        "show times.log": "times.log: times of nccl-tests, no network; gradweave topology explain",
    }.items():
        assert says in refused("topology", *words.split())
