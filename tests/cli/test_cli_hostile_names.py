"""Names from strangers, in every verb: on a terminal, in a page and in a table they stay text."""

import csv
import html.parser
import itertools
import json
import xml.etree.ElementTree
from pathlib import Path

import pytest

import gradweave as gw
from gradweave.errors import FileError, InputWarning, MissingExtraError
from gradweave.printable import in_one_line, printable
from gradweave.schedules.schedule import Provenance

HOSTILE = {
    "escape": "\x1b]0;owned\x07\x1b[31m",
    "line ends": "a\r\nb\x0b\x85\u2028c",
    "directions": "\u202e\u2066gpj.exe\u200f",
    "rich markup": "[red]a[/red][link=file:///etc]:bomb:",
    "HTML": "</script></title><img src=x onerror=alert(1)>",
    "SVG": "</text></svg><svg onload='alert(1)'>",
    "a template": "{{script}}${{data}}%(a)s",
    "a formula": "=cmd|'/c calc'!A0",
    "mathematics": r"$\frac{a}$_^{",
    "quotes": "\"';\\\u0000&amp;",
    "half a pair": "\ud800",
    "long": "x" * 5000,
}

IN_FILE_NAMES = ("escape", "line ends", "directions", "rich markup", "a template", "a formula",
                 "mathematics")  # fmt: skip
"""Those without a slash or a null character, and not too long."""

VERBS = {
    "solve": ["solve", "FILE", "--scheduler", "ring", "--output", "made.json"],
    "compare": ["compare", "FILE", "--scheduler", "ring", "--seeds", "1", "--output", "table"],
    "verify": ["verify", "SCHEDULE"],
    "show": ["show", "SCHEDULE", "--output", "page.html"],
    "export": ["export", "SCHEDULE", "--format", "msccl-xml", "--output", "made.xml"],
    "export, MSCCL++": ["export", "SCHEDULE", "--format", "mscclpp-json", "--output", "plan.json"],
    "export, Chakra": ["export", "SCHEDULE", "--format", "chakra-et", "--output", "trace",
                       "--size", "64"],
    "export, hosts": ["export", "SCHEDULE", "--format", "rankfile", "--output", "hosts.txt",
                      "--hosts", "a:4"],
    "place": ["place", "FILE", "--model", "transformer:layers=2,width=8", "--pipeline", "2",
              "--scheduler", "rank_order", "--no-step", "--output", "placed.html"],
}  # fmt: skip


class Elements(html.parser.HTMLParser):
    """The elements of a page, with their attributes' names."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: set[tuple[str, ...]] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add((tag, *sorted(name for name, _ in attrs)))


def write(folder: Path, name: str) -> None:
    """A schedule and its network in which everything has this name."""
    made = gw.schedulers.Ring().schedule(gw.topology.ring(4))
    topology = gw.topology.Topology(
        name,
        *(
            getattr(made.topology, field)
            for field in ("is_server", *gw.topology.topology.LINK_COLUMNS)
        ),
        labels=tuple(f"{name}{i}" for i in range(4)),
    )
    hostile = made.replace(topology=topology, scheduler=Provenance(name, {name: name}))
    hostile.save(folder / "schedule.json")
    gw.topology.save(topology, folder / "network.json")


def check_files(folder: Path) -> None:
    """What was written is plain text of its kind."""
    for path in folder.rglob("*"):
        if path.suffix == ".xml":
            xml.etree.ElementTree.fromstring(path.read_bytes())
        if path.suffix == ".html":
            text = path.read_text()
            assert "".join(text.split()).isprintable()
            assert not {tag for tag, *_ in Elements(text).seen} & {"img", "iframe", "object"}
            assert not {
                name for _, *names in Elements(text).seen for name in names if name[:2] == "on"
            }
        if path.suffix == ".txt":
            assert "".join(path.read_text().splitlines()).isprintable()
            assert len(path.read_bytes().split(b"\n")) == 6  # a remark, and a line for each rank
        if path.suffix == ".csv":
            for cell in itertools.chain(*csv.reader(path.read_text().splitlines())):
                assert cell.isprintable() and not cell.startswith(("=", "+", "@"))


@pytest.mark.parametrize("name", [name for name in HOSTILE if name != "half a pair"])
@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "compare"])
def test_a_hostile_name_stays_text(gradweave, here, verb, name):
    write(here, HOSTILE[name])
    files = {"FILE": "network.json", "SCHEDULE": "schedule.json"}
    answer = gradweave(*(files.get(argument, argument) for argument in VERBS[verb]))
    assert answer.status == 0, answer
    for line in (answer.stdout + answer.stderr).splitlines():
        assert line.isprintable(), line
    check_files(here)


@pytest.mark.parametrize("name", IN_FILE_NAMES)
@pytest.mark.parametrize("verb", ["solve", "compare"])
def test_a_hostile_file_name_stays_text(gradweave, here, verb, name):
    file = f"{HOSTILE[name].replace('/', '|')}.edges"
    (here / file).write_text("a b\nb c\n")
    answer = gradweave(*(file if argument == "FILE" else argument for argument in VERBS[verb]))
    assert answer.status == 0, answer
    for line in (answer.stdout + answer.stderr).splitlines():
        assert line.isprintable(), line
    check_files(here)
    if verb == "compare":
        shown = next(csv.DictReader((here / "table" / "comparison.csv").read_text().splitlines()))
        assert printable(file) in (shown["topology"], shown["topology"][1:])


MACHINE = """
start: "{0}0"
final: ["{0}1"]
moves: {{"{0}0": {{"{0}": "{0}1"}}}}
agents: {{"{0}2": ["{0}"]}}
name: "{0}"
"""


@pytest.mark.parametrize("name", ["rich markup", "HTML", "SVG", "a template", "a formula"])
@pytest.mark.parametrize("verb", ["check", "show"])
def test_a_hostile_machine_stays_text(gradweave, here, verb, name):
    (here / "machine.yaml").write_text(MACHINE.format(HOSTILE[name][:40]))
    answer = gradweave("machine", verb, "machine.yaml")
    assert answer.status == 0, answer
    for line in (answer.stdout + answer.stderr).splitlines():
        assert line.isprintable(), line
    check_files(here)
    assert HOSTILE[name][:40] in answer.stdout or verb == "show"


@pytest.mark.parametrize("name", ["escape", "line ends", "directions"])
def test_a_machine_with_such_names_is_refused_in_one_line(refused, here, name):
    text = MACHINE.format(json.dumps(HOSTILE[name])[1:-1])
    (here / "machine.yaml").write_text(text)
    assert "expected a name of 1 to 60 characters" in refused("machine", "check", "machine.yaml")


@pytest.mark.parametrize("name", HOSTILE)
def test_every_error_and_warning_is_one_printable_line(name):
    for kind in (FileError, MissingExtraError, InputWarning):
        said = str(kind(f"{HOSTILE[name]}: expected a name"))
        assert said.isprintable() and said.endswith(": expected a name")
    assert in_one_line("two  spaces stay") == "two  spaces stay"
