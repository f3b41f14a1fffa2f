"""Ctrl-C while CP-SAT searches, and after: Python hears it; a flag ends a search, too."""

import subprocess
import sys

import pytest

from tests.patience import PATIENCE_S

pytest.importorskip("ortools")

PROGRAM = """
import os, signal, threading
import numpy as np
from ortools.sat.python import cp_model
from gradweave.common import cp_sat
from gradweave.common.stop import Stop

def holes(count):
    model = cp_model.CpModel()
    at = [[model.new_bool_var("") for _ in range(count)] for _ in range(count + 1)]
    for pigeon in at:
        model.add_bool_or(pigeon)
    for hole in zip(*at):
        for one in range(count + 1):
            for other in range(one):
                model.add_bool_or(~hole[one], ~hole[other])
    return model

def interrupted(call):
    try:
        call()
    except KeyboardInterrupt:
        print("heard")

def solver(kind=cp_model.CpSolver):
    made = kind()
    made.parameters.num_workers = 1
    made.parameters.cp_model_presolve = False
    made.parameters.symmetry_level = 0
    return made

class Tells(cp_model.CpSolver):
    def solve(self, model):
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        return super().solve(model)

assert cp_sat.solve(solver(), holes(3)) == cp_model.INFEASIBLE
flag = np.zeros(1, np.bool_)
threading.Timer(0.2, flag.fill, [True]).start()
assert cp_sat.solve(solver(), holes(60), Stop(flag=flag)) == cp_model.UNKNOWN
interrupted(lambda: os.kill(os.getpid(), signal.SIGINT))
interrupted(lambda: cp_sat.solve(solver(Tells), holes(60)))
"""


def test_ctrl_c_is_heard_while_it_searches_and_after():
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (ran.returncode, ran.stdout) == (0, "heard\n" * 2), ran.stderr
