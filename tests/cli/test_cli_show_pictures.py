"""``gradweave show`` where it writes pictures and films, or draws on the terminal."""

import pytest

from gradweave.cli import pictures


@pytest.fixture
def file(gradweave, here):
    gradweave("solve", "ring:4", "--scheduler", "ring", "--output", "s.json")
    return "s.json"


@pytest.mark.quick
def test_a_network_is_drawn_without_a_search(gradweave, here, monkeypatch):
    monkeypatch.setattr("gradweave.cli.commands.show.search", None)
    assert gradweave("show", "bcube:n=3,k=1", "--output", "n.svg").stdout == "n.svg: the network\n"
    assert "9 servers, 6 switches" in (here / "n.svg").read_text()
    answer = gradweave("show", "ring:5", "--without-server", "2", "--output", "n.svg", "--json")
    assert answer.json == {"file": "ring:5", "output": "n.svg"}
    assert "4 servers" in (here / "n.svg").read_text()


def test_a_round_is_drawn(gradweave, file, here):
    answer = gradweave("show", file, "--round", 5, "--width", 400, "--output", "r.svg", "--json")
    assert answer.json["output"] == "r.svg" and answer.json["rounds"] == 6
    text = (here / "r.svg").read_text()
    assert "Round 5 of 0–5 · all-gather" in text and 'width="400"' in text
    searched = gradweave(
        "show", "ring:4", "--scheduler", "ring", "--round", 5, "--width", 400, "--output", "x.svg"
    )
    assert searched.status == 0 and (here / "x.svg").read_text() == text


def test_a_film_is_written(gradweave, file, here):
    assert (
        gradweave("show", file, "--width", 240, "--output", "f.gif").stdout == "f.gif: 6 rounds\n"
    )
    assert (here / "f.gif").read_bytes().startswith(b"GIF89a")


def test_it_is_drawn_on_the_terminal(gradweave, file, here, monkeypatch):
    monkeypatch.setenv("COLUMNS", "90")
    answer = gradweave("show", file, "--round", 0, "--print")
    assert (answer.status, answer.stderr) == (0, "")
    lines = answer.stdout.splitlines()
    assert lines[0] == "Round 0 of 0–5 · reduce-scatter"
    assert sorted(lines[-4:]) == [
        "reduce  piece 0    server 1 → server 2",
        "reduce  piece 1    server 2 → server 3",
        "reduce  piece 2    server 3 → server 0",
        "reduce  piece 3    server 0 → server 1",
    ]
    assert all(f"({server})" in answer.stdout for server in range(4))
    assert max(map(len, lines)) <= 90 and "\x1b" not in answer.stdout
    assert not list(here.glob("*.html"))
    monkeypatch.setattr(pictures, "_MOST_LINES", 3)
    assert gradweave("show", file, "--round", 0, "--print").stdout.endswith("and 1 transfer more\n")
    assert gradweave("show", "ring:4", "--print").stdout.startswith("ring:n=4\n4 servers, 4 links")


def test_a_hostile_name_is_printed_harmlessly(gradweave, here):
    (here / "n.csv").write_text("source,target\na\x1b[m,b\nb,c\n")
    answer = gradweave("show", "n.csv", "--print")
    assert answer.status == 0 and "\x1b" not in answer.stdout


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["s.json", "--output", "a.bmp"], ".svg or .png or .pdf or .gif or .mp4"),
        (["s.json", "--round", "1"], "--round is for a picture or a film"),
        (["s.json", "--width", "400"], "--width is for a picture or a film"),
        (["s.json", "--by", "seconds", "--output", "a.svg"], "--by is for a film"),
        (["s.json", "--by", "seconds", "--round", "1", "--output", "a.gif"], "--round: expected"),
        (["s.json", "--round", "6", "--output", "a.svg"], "expected 0 to 5, got 6"),
        (["s.json", "--round", "6", "--output", "a.gif"], "expected 0 to 5, got 6"),
        (["s.json", "s.json", "--round", "1", "--output", "a.svg"], "a picture shows one"),
        (["s.json", "--title", "A", "--output", "a.svg"], "--title is for a page"),
        (["s.json", "--print", "--json"], "expected no --print with it"),
        (["ring:4", "--scheduler", "ring", "--output", "a.svg"], "add --round"),
        (["s.json", "--seed", "1", "--output", "a.svg"], "is for a NETWORK"),
        (["s.json", "--width", "10", "--output", "a.svg"], "is not in the range"),
        (["s.json", "--output", "no/a.svg"], "there is no directory no"),
    ],
)
def test_what_does_not_go_together_is_refused(file, refused, arguments, reason):
    assert reason in refused("show", *arguments)
