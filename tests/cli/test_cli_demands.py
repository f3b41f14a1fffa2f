"""A schedule that has a demand: every verb takes it, or says in one line that it does not."""

import json
from pathlib import Path

import pytest

import gradweave as gw
from tests.schedules.small_demands import two_jobs

AMONG_ALL = "expected all_reduce, reduce_scatter or all_gather among all servers, got reduce + send"


@pytest.fixture
def files(here: Path) -> None:
    """Of two jobs, 13 bytes; of an all-reduce."""
    two_jobs().save("two.json")
    gw.schedulers.Ring().schedule(two_jobs().topology).save("ring.json")


TAKEN = {
    "verify two.json": "valid: reduce + send on mesh:1x4, 2 rounds, 3 transfers",
    "show two.json --output two.html": "two.html: 2 rounds; open it in a browser",
    "show two.json two.json --output both.html": "both.html: 2 rounds and 2 rounds",
    "show two.json --output two.svg --round 1": "two.svg: 2 rounds",
    "export two.json --format rankfile --hosts a,b,c,d --output hosts": "reduce + send on mesh:1x4",
    "export two.json --format perfetto --size 13 --output trace": "reduce + send on",
    "export two.json --format chakra-et --size 13 --element-bytes 1 --output et": (
        "written to et.0.et to et.3.et"
    ),
}


@pytest.mark.parametrize("command", TAKEN)
def test_verbs_that_take_it(gradweave, files, command: str):
    answer = gradweave(*command.split())
    assert answer.status == 0, answer
    assert TAKEN[command] in answer.stdout
    assert "bound in rounds" not in answer.stdout  # none is known


REFUSED = {
    "export two.json --format msccl-xml --output o": AMONG_ALL,
    "export two.json --format mscclpp-json --output o": AMONG_ALL,
    "export two.json --format msccl-xml --equal-pieces --output o": AMONG_ALL,
    "export two.json --format chakra-et --size 16 --output o": (
        "elements that fill blocks of 13 bytes in all"
    ),
    "bench two.json --backend torch": AMONG_ALL,
    "solve mesh:1x4 --start-from two.json": AMONG_ALL,
    "solve mesh:1x4 --start-from two.json --changed-at 1us": AMONG_ALL,
}


@pytest.mark.parametrize("command", REFUSED)
def test_verbs_that_do_not(gradweave, files, command: str):
    answer = gradweave(*command.split())
    assert answer.status == 2, answer
    assert answer.stderr.count("\n") == 1 and REFUSED[command] in answer.stderr, answer


def test_verify_names_what_is_wrong_for_machines(gradweave, here):
    schedule = two_jobs()
    schedule.replace(op=schedule.op * 0).save("wrong.json")
    answer = gradweave("verify", "wrong.json", "--json")
    assert answer.status == 1
    assert answer.json["collective"] == "reduce + send"
    assert answer.json["violation"]["kind"] == "result"
    assert (answer.json["violation"]["expected"], answer.json["violation"]["found"]) == (0, 1)


def test_the_page_marks_contributors_and_destinations(gradweave, files):
    gradweave("show", "two.json", "--output", "two.html")
    data = Path("two.html").read_text().split('id="data"')[1].split(">", 1)[1].split("</script")[0]
    (schedule,) = json.loads(data)["schedules"]
    assert json.loads(data)["gradientBytes"] == 13
    assert schedule["demand"]["blocks"] == 2
    assert schedule["bound"] is None
    assert schedule["time"]["least"] == pytest.approx(4.00064e-6, rel=1e-9)
