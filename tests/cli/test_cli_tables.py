"""``gradweave ranks --table``: what is printed and written, and one line for bad input."""

import json
from pathlib import Path

import pytest

from gradweave.cli.main import main

HOSTS = "".join(f"rack{n % 2}:node{n}\n" for n in range(8))


@pytest.fixture
def hosts(tmp_path: Path) -> str:
    file = tmp_path / "cluster.hosts"
    file.write_text(HOSTS)
    return str(file)


def table(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["ranks", *arguments, "--oversubscription", "4"])
    return int(ended.value.code or 0)


def test_a_table_is_written_and_its_use_is_printed(hosts: str, tmp_path: Path, capsys):
    rules = tmp_path / "rules.conf"
    assert table(hosts, "--table", "openmpi", "--output", str(rules)) == 0
    printed = capsys.readouterr().out
    assert f"coll_tuned_dynamic_rules_filename {rules}" in printed
    assert "pml_monitoring_enable" in printed
    assert "ignores it without a message" in printed
    assert rules.read_text().startswith("# cluster.hosts, 8 ranks: predicted")


def test_the_order_found_may_be_used(hosts: str, capsys):
    assert table(hosts, "--table", "openmpi", "--numbered", "best", "--json") == 0
    best = json.loads(capsys.readouterr().out)
    assert table(hosts, "--table", "openmpi", "--numbered", "name", "--json") == 0
    by_name = json.loads(capsys.readouterr().out)
    assert by_name["ranks"] == list(range(8))
    assert {server % 2 for server in best["ranks"][:4]} in ({0}, {1})
    gains = [
        max(one["gain"] for one in found["points"] if one["collective"] == "all_gather")
        for found in (best, by_name)
    ]
    assert gains[0] > gains[1]  # rings within racks gain most


def test_measurements_may_decide(hosts: str, tmp_path: Path, capsys):
    times = tmp_path / "times.csv"
    times.write_text(
        "collective,bytes,algorithm,segment,seconds\n"
        "broadcast,1024,default,0,1e-3\nbroadcast,1024,binomial,,5e-4\n"
    )
    assert table(hosts, "--table", "openmpi", "--measured", str(times), "--json") == 0
    entries = json.loads(capsys.readouterr().out)["entries"]["broadcast"]
    assert [one["algorithm"] for one in entries] == [None, "binomial"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--table", "mpich"], "libmpi.so"),
        (["--table", "mpich", "--base", "HERE"], "expected MPICH's selection"),
        (["--table", "openmpi", "--mesh", "dp=2,tp=4"], "--mesh: expected no --table with it"),
        (["--table", "openmpi", "--format", "seq"], "--format: expected no --table with it"),
        (["--numbered", "best"], "--numbered: expected --table"),
        (["--base", "HERE"], "--base: expected --table"),
        (["--table", "openmpi", "--measured", "none.csv"], "No such file"),
        (["--table", "openmpi", "--measured", "HERE"], "expected the column algorithm"),
        (["--table", "openmpi", "--measured", "ROWS"], "line 2: expected numbers"),
        (["--table", "openmpi", "--measured", "SHORT"], "line 2: expected numbers"),
        (["--table", "openmpi", "--measured", "ROWS", "--runtime", "mpi"], "--runtime"),
        (["--table", "openmpi", "--runtime", "mpl"], "runtime: expected"),
    ],
)
def test_bad_input_gets_one_line(
    hosts: str, tmp_path: Path, capsys, arguments: list[str], says: str
):
    heads = "collective,bytes,algorithm,seconds\n"
    (tmp_path / "rows.csv").write_text(heads + "broadcast,1k,default,1\n")
    (tmp_path / "short.csv").write_text(heads + "broadcast\n")
    files = {
        "HERE": hosts,
        "ROWS": str(tmp_path / "rows.csv"),
        "SHORT": str(tmp_path / "short.csv"),
    }
    assert table(hosts, *(files.get(word, word) for word in arguments)) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if "warning" not in line]
    assert len(errors) == 1
    assert says in errors[0]
