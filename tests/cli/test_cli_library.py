"""``gradweave library``: what is listed, shown, judged and recorded, and exit statuses."""

import pytest

import gradweave as gw
from tests.library.conftest import fast, library, slow  # noqa: F401


@pytest.fixture
def shelf(library, monkeypatch):  # noqa: F811
    monkeypatch.setenv("GRADWEAVE_LIBRARY", str(library.path))
    return library


def test_list_and_show(gradweave, refused, shelf, here):
    answer = gradweave("library", "list", "--model", "rounds", "--json").json
    assert (answer["instances"], answer["library"][0]["id"]) == (1, "ring-4.rounds")
    assert "2 instances" in gradweave("library", "list").stdout
    shown = gradweave("library", "show", "ring-4.rounds", "--output", "best.json.gz")
    assert "by somebody, 2026-11-27" in shown.stdout and "4 servers" in shown.stdout
    assert gw.verify(gw.load("best.json.gz")).valid
    assert "no such instance" in refused("library", "show", "ring-5")
    assert "expected one of ring, got 'star'" in refused("library", "list", "--kind", "star")
    assert "no library; give --library" in refused("library", "list", "--library", "none")


def test_a_submission_is_judged_recorded_and_frozen(gradweave, refused, shelf, fast, slow, here):  # noqa: F811
    fast.save("fast.json.gz")
    slow.save("slow.json")
    assert "equals" in gradweave("library", "submit", "slow.json").stdout
    answer = gradweave("library", "submit", "fast.json.gz", "--by", "me", "--write", "--json").json
    assert "ring-4.rounds" in answer["written"]
    assert {one["verdict"] for one in answer["outcomes"]} >= {"improves"}
    behind = gradweave("library", "submit", "slow.json", "--instance", "ring-4.rounds")
    assert behind.status == 1 and "behind" in behind.stdout
    shown = gradweave("library", "show", "ring-4.rounds").stdout
    assert "by me" in shown and "before: 6 rounds, by somebody" in shown
    frozen = gradweave("library", "freeze", "--output", "release.zip", "--json").json
    listed = gradweave("library", "list", "--library", "release.zip", "--json").json
    assert (len(frozen["sha256"]), listed["closed"]) == (64, 1)
    assert "expected --by with it" in refused("library", "submit", "slow.json", "--write")
    gw.export.save_msccl_xml(slow, "slow.xml")
    assert "give --instance" in refused("library", "submit", "slow.xml")
    foreign = gradweave("library", "submit", "slow.xml", "--instance", "ring-4.cost")
    assert foreign.status in (0, 1) and "valid" in foreign.stdout
