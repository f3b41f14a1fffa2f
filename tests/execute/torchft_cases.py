"""Replicas under torchft's manager, forked from one process, the last of which dies.

    python -m tests.execute.torchft_cases FOLDER N

Each trains `STEPS` steps and writes FOLDER/RANK.json: for what replicas a schedule was asked, and
for every try of a step its number, how many replicas took part, and whether it was committed.
"""

import hashlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torchft import DistributedDataParallel, Manager, Optimizer  # pyright: ignore
from torchft.coordination import LighthouseServer  # pyright: ignore

import gradweave as gw
from gradweave.schedulers import Ring
from gradweave.schedules import Schedule
from gradweave.torch import torchft_process_group

STEPS, DIES_AT = 8, 3
PATIENT, IMPATIENT = timedelta(minutes=5), timedelta(seconds=10)


def replica(folder: Path, rank: int, replicas: int, address: str) -> None:
    asked = []

    def plan(there: Sequence[int]) -> Schedule:
        asked.append(list(there))
        return Ring().schedule(gw.topology.complete(len(there)))

    group = torchft_process_group(plan, IMPATIENT)
    torch.manual_seed(0)
    module = torch.nn.Linear(300, 30)
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)  # pyright: ignore
    manager = Manager(
        pg=group,
        load_state_dict=module.load_state_dict,
        state_dict=module.state_dict,
        min_replica_size=2,
        use_async_quorum=False,
        timeout=PATIENT,
        quorum_timeout=PATIENT,
        replica_id=f"replica_{rank}",
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        lighthouse_addr=address,
        hostname="localhost",
    )
    model = DistributedDataParallel(manager, module)
    optimizer = Optimizer(manager, torch.optim.SGD(model.parameters(), lr=0.05))
    steps = []
    while (step := manager.current_step()) < STEPS:
        optimizer.zero_grad()  # also asks who is there
        loss = model(torch.full((4, 300), 0.1 * (rank + step))).square().mean()
        if rank == replicas - 1 and step == DIES_AT:
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        optimizer.step()
        steps.append([step, manager.num_participants(), manager.current_step() > step])
    weights = b"".join(each.detach().numpy().tobytes() for each in module.parameters())
    digest = hashlib.sha256(weights).hexdigest()
    report = {"asked": asked, "steps": steps, "digest": digest}
    (folder / f"{rank}.json").write_text(json.dumps(report))
    manager.shutdown(wait=False)


def main(folder: Path, replicas: int) -> int:
    torch.set_num_threads(1)
    children, place = [], folder / "address"
    for rank in range(replicas):
        if child := os.fork():
            children.append(child)
            continue
        try:
            while not place.exists():
                time.sleep(0.01)
            replica(folder, rank, replicas, place.read_text())
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
    lighthouse = LighthouseServer(
        bind="127.0.0.1:0", min_replicas=2, join_timeout_ms=60_000, heartbeat_timeout_ms=1500
    )
    port = lighthouse.address().rpartition(":")[2]
    (folder / "address.new").write_text(f"http://127.0.0.1:{port}")
    (folder / "address.new").rename(place)
    ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    lighthouse.shutdown()
    return int(ends != [0] * (replicas - 1) + [-signal.SIGKILL])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
