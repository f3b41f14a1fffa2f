"""The package `gradweave.verify` can be called, and is the package all the same."""

import importlib
import inspect

import gradweave as gw
import gradweave.verify as imported
from gradweave import verify
from gradweave.verify import Verdict
from gradweave.verify import verify as function


def test_calling_the_package_verifies():
    schedule = gw.schedulers.Ring().schedule("ring:4")
    for call in (gw.verify, verify, imported, gw.verify.verify, function):
        assert call(schedule).valid
    late = schedule.round.copy()
    late[0] += 1
    verdict = gw.verify(schedule.replace(round=late), forwarding_servers=False)
    assert not verdict.valid and isinstance(verdict, gw.verify.Verdict)


def test_it_is_the_package():
    assert inspect.ismodule(gw.verify) and gw.verify is verify is imported
    assert importlib.import_module("gradweave.verify") is gw.verify
    assert gw.verify.Verdict is Verdict and gw.verify.verify is function
    assert inspect.signature(gw.verify) == inspect.signature(function)
