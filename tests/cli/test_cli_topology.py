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
