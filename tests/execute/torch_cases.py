"""All processes of a torch.distributed job, forked from one that has imported what they need.

    python -m tests.execute.torch_cases FOLDER N conformance
    python -m tests.execute.torch_cases FOLDER 6 checks
    python -m tests.execute.torch_cases FOLDER 6 overlapping
    python -m tests.execute.torch_cases FOLDER 4 ddp
    python -m tests.execute.torch_cases FOLDER 4 ddp_gpu
    python -m tests.execute.torch_cases FOLDER 4 ddp_errors
    python -m tests.execute.torch_cases FOLDER N lost RANK-WHEN-STORE...
    python -m tests.execute.torch_cases FOLDER N ddp_lost RANK-WHEN-STORE...

Reads FOLDER/job.pickle; each process writes FOLDER/RANK.json. Jobs that lose a process are run one
after the other, each in processes of its own that write to FOLDER/RANK-WHEN-STORE.
"""

import datetime
import faulthandler
import functools
import importlib
import itertools
import json
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gradweave import torch as td
from gradweave.errors import GradweaveError, LostServerError, OptionError, RunError, ScheduleError
from gradweave.execute import play
from gradweave.execute.torch_distributed.ddp import State
from gradweave.execute.torch_distributed.demands import exchange_by
from gradweave.execute.torch_distributed.gloo_messages import pair
from gradweave.execute.torch_distributed.round_by_round import Rounds
from gradweave.execute.torch_distributed.shards import (
    all_gather_into,
    reduce_scatter_into,
    sharded,
)
from gradweave.schedules import COLLECTIVES, Schedule
from gradweave.schedules.schedule import OWN, Provenance
from tests.execute.cases import Case, Checks, contribution, digest, in_two, result_digest
from tests.execute.demands import ends
from tests.patience import PATIENCE_S

check = Checks()
Schedules = dict[tuple[str, str], Schedule]
BITS = {"bfloat16": torch.int16}
"""Types that NumPy does not have, by one of the same size."""
SHORT_S = 4.0
"""Timeout of a process group whose processes fall silent."""


def raised(kind: type[GradweaveError], call: Callable[[], object]) -> str:
    """The message of the error that a call raises."""
    try:
        call()
    except kind as error:
        assert type(error) is kind, error
        return str(error)
    raise AssertionError(f"raised no {kind.__name__}")


def to_torch(array: np.ndarray, dtype: str) -> torch.Tensor:
    if dtype in BITS:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.contiguous().view(torch.int16)
    return tensor.detach().numpy()


def brought(schedule: Schedule, elements: int, dtype: str = "float32") -> np.ndarray:
    servers = schedule.topology.num_servers
    return np.stack([contribution(rank, elements, dtype) for rank in range(servers)])


def same(got: torch.Tensor, expected: np.ndarray) -> None:
    assert got.detach().contiguous().numpy().tobytes() == expected.tobytes(), (got, expected)


@check
def few_elements(schedules: Schedules, rank: int) -> None:
    for name in ("merged", "ring", "central", "recursive doubling", "portfolio"):
        schedule = schedules[name, "all_reduce"]
        for elements in (0, 1, 2, 5, 7):
            for reduction in ("sum", "mean", "max"):
                whole = brought(schedule, elements)
                mine = torch.from_numpy(whole[rank].copy())
                td.all_reduce(mine, schedule, reduction=reduction)
                same(mine, play(schedule, whole, reduction)[rank])
    td.all_reduce(torch.empty(3, 0, 2), schedules["merged", "all_reduce"])
    one = torch.tensor(float(rank))
    td.all_reduce(one, schedules["merged", "all_reduce"])
    assert one.shape == () and one == 15


@check
def demands(schedules: Schedules, rank: int) -> None:
    for _, schedule in sorted(one for one in schedules.items() if one[0][1] == "demand"):
        by_rounds = td.Collective(schedule)
        by_rounds._run = Rounds(schedule, by_rounds.group)
        for reduction in ("sum", "mean", "max"):
            send, expected = ends(schedule, "float64", reduction)[rank]
            given, got = (
                torch.from_numpy(send.copy()),
                torch.zeros(len(expected), dtype=torch.double),
            )
            td.exchange(given, got, schedule, reduction=reduction)
            same(got, expected)
            same(given, send)
            several = list(got.fill_(-1).split(2)), list(given.split(3))
            exchange_by(by_rounds, several[1], several[0], reduction)
            same(got, expected)
    long = torch.zeros(9999, dtype=torch.double)
    schedule = schedules["0", "demand"]
    assert "got 9,999" in raised(OptionError, lambda: td.exchange(long, long, schedule))
    said = raised(OptionError, lambda: td.exchange(long.float(), long, schedule))
    assert said.endswith("torch.float32 on cpu, torch.float64 on cpu")
    ring = schedules["ring", "all_reduce"]
    assert "demand" in raised(ScheduleError, lambda: td.exchange(long, long, ring))


@check
def the_runtimes_own(schedules: Schedules, rank: int) -> None:
    ring = schedules["ring", "all_reduce"]
    for runtime, counted in (("gloo", False), ("mpi", True)):
        own = ring.replace(scheduler=Provenance("ring", {OWN: True, "runtime": runtime}))
        run = td.Collective(own)
        for reduction, value in (("sum", 15.0), ("mean", 2.5), ("max", 5.0), ("min", 0.0)):
            mine = torch.full((7, 2), float(rank)).T
            run(mine, reduction=reduction)
            assert (mine == value).all(), (reduction, mine)
        assert run.is_own is not counted and bool(run.sent_bytes.sum()) is counted
        mine = torch.full((9,), float(rank))
        assert (State(own).submit(mine).wait() == 2.5).all()
    said = raised(RunError, lambda: td.all_reduce(torch.ones(5 + (rank == 1)), own))
    assert "rank 1" in said


@check
def another_number_of_servers(schedules: Schedules, rank: int) -> None:
    four = schedules["ring of four", "all_reduce"]
    for call in (lambda: td.all_reduce(torch.zeros(3), four), lambda: td.Collective(four)):
        said = raised(ScheduleError, call)
        assert "4 servers" in said and "6 processes in the group" in said, said
    assert "4 servers" in raised(ScheduleError, lambda: State(four))


@check
def disagreement(schedules: Schedules, rank: int) -> None:
    merged, ring = schedules["merged", "all_reduce"], schedules["ring", "all_reduce"]
    whole = brought(merged, 50)
    for odd in (0, 1, 5):
        different = rank == odd
        named = f"rank {odd}" if odd else "rank 1"  # the first that differs from rank 0
        for length, dtype, reduction, schedule, said in (
            (51, torch.float32, "sum", merged, "51 elements of float32"),
            (50, torch.int32, "sum", merged, "50 elements of int32"),
            (50, torch.float32, "max", merged, "the max"),
            (50, torch.float32, "sum", ring, "a different schedule"),
        ):
            call = functools.partial(td.all_reduce, torch.ones(50), merged)
            if different:
                odd_one = torch.ones(length, dtype=dtype)
                call = functools.partial(td.all_reduce, odd_one, schedule, reduction=reduction)
            message = raised(RunError, call)
            assert said in message and named in message, message
            for each in (merged, ring):
                mine = torch.from_numpy(whole[rank].copy())
                td.all_reduce(mine, each)
                same(mine, play(each, whole)[rank])


@check
def strides(schedules: Schedules, rank: int) -> None:
    schedule = schedules["merged", "all_reduce"]
    whole = brought(schedule, 60, "float64")
    run = td.Collective(schedule)
    views: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
        lambda a: a[::2],
        lambda a: a.view(6, 10).T,
        lambda a: a.view(6, 10)[:, 2:5],
        lambda a: a.view(3, 4, 5).permute(1, 2, 0)[::3],
        lambda a: a[7],
        lambda a: a[10:],
        lambda a: a.view(1, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        lambda a: a.view(3, 20).T[3:5],
    )
    for view in views:
        rows = [view(torch.from_numpy(row.copy())) for row in whole]
        flat = np.stack([np.ascontiguousarray(row.numpy()).reshape(-1) for row in rows])
        expected = play(schedule, flat)[rank]
        for call in (run, functools.partial(td.all_reduce, schedule=schedule)):
            mine = torch.from_numpy(whole[rank].copy())
            part, rest = view(mine), mine.clone()
            call(part)
            same(part.reshape(-1), expected)
            if part.untyped_storage().data_ptr() == mine.untyped_storage().data_ptr():
                view(rest)[...] = torch.from_numpy(expected).view(part.shape)
                assert torch.equal(mine, rest)  # what lies between stays


@check
def with_gradients(schedules: Schedules, rank: int) -> None:
    schedule = schedules["merged", "all_reduce"]
    leaf = torch.full((4,), float(rank), requires_grad=True)
    td.all_reduce(leaf, schedule)
    assert leaf.requires_grad and leaf.is_leaf and leaf.tolist() == [15] * 4
    parameter = torch.nn.Parameter(torch.full((2, 3), float(rank)))
    td.all_reduce(parameter.T, schedule, reduction="mean")
    assert (parameter == 2.5).all()
    (parameter.sum() * rank).backward()
    assert parameter.grad is not None
    td.all_reduce(parameter.grad, schedule)
    assert (parameter.grad == 15).all()


@check
def refused_types(schedules: Schedules, rank: int) -> None:
    schedule = schedules["merged", "all_reduce"]
    for dtype in (torch.int8, torch.int64, torch.bool):
        said = raised(
            OptionError,
            lambda dtype=dtype: td.all_reduce(
                torch.zeros(3, dtype=dtype), schedule, reduction="mean"
            ),
        )
        assert "mean needs a floating-point type" in said, said
    said = raised(
        OptionError,
        lambda: td.all_reduce(torch.zeros(3), schedule, reduction="product"),  # type: ignore
    )
    assert "product" in said
    truth = torch.tensor([rank == 3, False])
    td.all_reduce(truth, schedule)
    assert truth.tolist() == [True, False]


@check
def types_without_an_order(schedules: Schedules, rank: int) -> None:
    schedule = schedules["merged", "all_reduce"]
    for _ in range(2):
        said = raised(
            OptionError,
            lambda: td.all_reduce(torch.zeros(3, dtype=torch.complex64), schedule, reduction="max"),
        )
        assert "complex" in said, said
    ones = torch.ones(3)
    td.all_reduce(ones, schedule)
    assert (ones == 6).all()


@check
def one_stage(schedules: Schedules, rank: int) -> None:
    for strategy in ("merged", "ring"):
        scatter, gather = (schedules[strategy, each] for each in ("reduce_scatter", "all_gather"))
        first, second = td.Collective(scatter), td.Collective(gather)
        for elements in (0, 1, 60, 61):
            whole = brought(scatter, elements)
            mine = torch.from_numpy(whole[rank].copy())
            first(mine, reduction="mean")
            between = play(scatter, whole, "mean")
            second(mine, reduction="mean")
            same(mine, play(gather, between, "mean")[rank])
    for stage in ("reduce_scatter", "all_gather"):
        wrong = schedules["ring", stage]
        assert stage in raised(
            ScheduleError, lambda wrong=wrong: td.all_reduce(torch.zeros(4), wrong)
        )
        assert stage in raised(ScheduleError, lambda wrong=wrong: State(wrong))


@check
def shards(schedules: Schedules, rank: int) -> None:
    for strategy, weights in (("merged", (2, 1)), ("ring", (1, 1))):
        scatter, gather = (
            sharded(in_two(schedules[strategy, each], weights)) for each in COLLECTIVES[1:]
        )
        first, second = td.Collective(scatter), td.Collective(gather)
        for shard in (0, 1, 2, 101):  # elements of a server, in two pieces
            for reduction in ("sum", "mean", "max"):
                whole = brought(scatter, 6 * shard)
                mine = torch.from_numpy(whole[rank].copy()).view(6, shard)
                part, back = torch.empty(shard, 1), torch.empty(6, shard)
                reduce_scatter_into(first, part, mine, reduction)
                assert mine.numpy().tobytes() == whole[rank].tobytes()
                reduced = getattr(whole, reduction)(axis=0).reshape(6, shard)
                np.testing.assert_allclose(part[:, 0], reduced[rank], rtol=1e-5, atol=1e-6)
                all_gather_into(second, back, part)
                np.testing.assert_allclose(back, reduced, rtol=1e-5, atol=1e-6)
                assert torch.equal(back[rank], part[:, 0])
                every = [torch.empty_like(back) for _ in range(6)]
                dist.all_gather(every, back)
                assert all(torch.equal(back, other) for other in every)
        for dtype in (torch.bool, torch.int16, torch.bfloat16, torch.complex64):
            numbers = torch.arange(6 * 7).view(6, 7)
            back = torch.zeros(6, 7, dtype=dtype)
            back[rank] = numbers[rank].to(dtype)
            all_gather_into(second, back, back[rank])
            assert torch.equal(back, numbers.to(dtype))
        one = torch.ones(6)
        reduce_scatter_into(first, one[:1], one, keep_input=False)
        assert one[0] == 6


@check
def shards_that_do_not_fit(schedules: Schedules, rank: int) -> None:
    scatter, gather = (
        td.Collective(sharded(schedules["merged", each])) for each in COLLECTIVES[1:]
    )
    whole, part = torch.ones(6), torch.ones(1)
    for wrong, said in (
        (lambda: all_gather_into(scatter, whole, part), "expected all_gather"),
        (lambda: all_gather_into(gather, whole, whole[:2]), "output: expected 12 elements"),
        (lambda: all_gather_into(gather, whole, part.half()), "elements of torch.float16"),
        (lambda: all_gather_into(gather, torch.ones(12)[::2], part), "contiguous"),
        (lambda: reduce_scatter_into(gather, part, whole), "expected reduce_scatter"),
        (lambda: reduce_scatter_into(scatter, whole[:2], whole), "input: expected 12"),
    ):
        assert said in raised(OptionError, wrong)


@check
def subgroups(schedules: Schedules, rank: int) -> None:
    # Two groups of three at the same time, and all six between.
    three = schedules["ring of three", "all_reduce"]
    halves = [dist.new_group([0, 2, 4]), dist.new_group([1, 3, 5])]
    for elements in (20, 21, 22):
        whole = brought(three, elements)
        mine = torch.from_numpy(whole[rank // 2].copy())
        td.all_reduce(mine, three, halves[rank % 2])
        same(mine, play(three, whole)[rank // 2])
        everyone = torch.ones(5)
        td.all_reduce(everyone, schedules["merged", "all_reduce"])
        assert (everyone == 6).all()
    for call in (td.Collective, State):
        said = raised(OptionError, lambda call=call: call(three, halves[1 - rank % 2]))
        assert "not in it" in said
    # Hooks in both groups at the same time; and one of which the other group knows nothing.
    for _ in range(3):
        assert (State(three, halves[rank % 2]).submit(torch.ones(9)).wait() == 1).all()
    if rank % 2:
        mine = torch.full((7,), float(rank))
        assert (State(three, halves[1]).submit(mine).wait() == 3).all()


@check
def rounds_are_the_same(schedules: Schedules, rank: int) -> None:
    group = dist.new_group(list(range(6)))
    assert isinstance(group, dist.ProcessGroup)
    for (_, collective), schedule in schedules.items():
        if schedule.topology.num_servers != 6 or schedule.demand is not None:
            continue
        by_rounds, by_messages = Rounds(schedule, group), td.Collective(schedule)
        for elements in (0, 3, 101):
            whole = brought(schedule, elements)
            at = schedule.piece_offsets(elements).tolist()
            for reduction in ("sum", "max"):
                one, other = (torch.from_numpy(whole[rank].copy()) for _ in range(2))
                by_rounds(one, tuple(itertools.pairwise(at)), reduction)
                by_messages(other, reduction=reduction)
                expected = play(schedule, whole, reduction)[rank]
                counts = slice(None)
                if collective == "reduce_scatter":
                    mine = np.repeat(schedule.topology.rank[schedule.root] == rank, np.diff(at))
                    counts = np.flatnonzero(mine)
                same(one[counts], expected[counts])
                same(other[counts], expected[counts])
        assert (by_rounds.sent_bytes == by_messages.sent_bytes).all()


@check
def many_runs_of_many_collectives(schedules: Schedules, rank: int) -> None:
    names = ("merged", "ring", "central", "recursive doubling")
    made = {name: td.Collective(schedules[name, "all_reduce"]) for name in names}
    for turn in range(5):
        for i, name in enumerate(names[:: 1 if turn % 2 else -1]):
            schedule = schedules[name, "all_reduce"]
            whole = brought(schedule, 100 + i) * np.float32(turn + 1)
            mine = torch.from_numpy(whole[rank].copy())
            if rank == turn:
                time.sleep(0.01)
            made[name](mine, reduction="mean")
            same(mine, play(schedule, whole, "mean")[rank])
    for dtype in (torch.float64, torch.float16, torch.int32):
        for elements in (100, 7, 3000):
            ones = torch.ones(elements, dtype=dtype)
            made["merged"](ones)
            assert (ones == 6).all() and ones.dtype == dtype
    # All at the same time, each on groups of its own.
    own = {name: td.Collective(schedules[name, "all_reduce"], dist.new_group()) for name in names}
    tensors = {name: torch.full((50_000,), float(rank)) for name in names}
    for _ in range(3):
        threads = [threading.Thread(target=own[name], args=(tensors[name],)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert all((tensor == 15 * 36).all() for tensor in tensors.values())


@check
def threads_end_with_their_collective(schedules: Schedules, rank: int) -> None:
    before = threading.active_count()
    schedule = schedules["merged", "all_reduce"]
    made = td.Collective(schedule)
    ones = torch.ones(60)
    made(ones)
    assert threading.active_count() > before
    del made
    until = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < until:
        time.sleep(0.01)
    assert threading.active_count() <= before


@check
def bytes_sent(schedules: Schedules, rank: int) -> None:
    servers, elements = 6, 600
    whole = 8 * elements

    def sent(name: str) -> np.ndarray:
        made = td.Collective(schedules[name, "all_reduce"])
        made(torch.ones(elements, dtype=torch.float64))
        every = [torch.empty(servers, dtype=torch.int64) for _ in range(servers)]
        dist.all_gather(every, torch.from_numpy(made.sent_bytes))
        return torch.stack(every).numpy()

    ring = sent("ring")
    assert (ring.sum(1) * servers == 2 * (servers - 1) * whole).all()
    assert (np.count_nonzero(ring, axis=1) == 1).all()
    central = sent("central")
    assert central[0].sum() == central[:, 0].sum() == (servers - 1) * whole
    assert (central[1:, 1:] == 0).all()
    assert sent("portfolio").sum() == ring.sum()


@check
def a_late_process(schedules: Schedules, rank: int) -> None:
    schedule = schedules["merged", "all_reduce"]
    whole = brought(schedule, 200_000)
    expected = play(schedule, whole)[rank]
    for late in range(6):
        mine = torch.from_numpy(whole[rank].copy())
        if rank == late:
            time.sleep(0.1)
        td.all_reduce(mine, schedule)
        same(mine, expected)


@check
def messages_of_others(schedules: Schedules, rank: int) -> None:
    # In the same group, collectives of torch's own between ours.
    schedule = schedules["merged", "all_reduce"]
    for turn in range(10):
        ours, theirs = torch.full((100,), rank + turn), torch.full((100,), rank + turn)
        work = dist.all_reduce(theirs, async_op=True)
        td.all_reduce(ours, schedule)
        assert work is not None
        work.wait()
        assert torch.equal(ours, theirs)


def conformance(schedules: Schedules, rows: list[tuple], rank: int) -> dict:
    # All share one pair of groups: connections take longer to make than these cases to run.
    channels = ([pair(dist.group.WORLD)], None)
    digests, made = [], {}
    for row in rows:
        case = Case(*row)
        schedule = schedules[case.strategy, case.collective]
        if schedule not in made:
            made = {schedule: td.Collective(schedule, channels=channels)}
        mine = to_torch(contribution(rank, case.elements, case.dtype), case.dtype)
        made[schedule](mine, reduction=case.reduction)
        digests.append(result_digest(rank, schedule, to_numpy(mine)))
    return {"digests": digests}


def checks(schedules: Schedules, rank: int) -> dict:
    wrong, seconds = {}, {}
    for name, run in check.by_name.items():
        begin = time.perf_counter()
        try:
            run(schedules, rank)
        except Exception:
            wrong[name] = traceback.format_exc()
            print(f"rank {rank}:", wrong[name], flush=True)  # the others may wait forever now
        dist.barrier()
        seconds[name] = round(time.perf_counter() - begin, 2)
    return {"wrong": wrong, "seconds": seconds}


def overlapping(schedules: Schedules, rank: int) -> dict:
    """Processes that are in different numbers of groups, and have made as many collectives."""
    four, all_six = (schedules[name, "all_reduce"] for name in ("ring of four", "merged"))
    members = [0, 2, 3, 5]
    part = dist.new_group(members)
    for elements in (33, 34):
        if rank in members:
            whole = brought(four, elements)
            mine = torch.from_numpy(whole[members.index(rank)].copy())
            td.all_reduce(mine, four, part)
            same(mine, play(four, whole)[members.index(rank)])
        everyone = torch.ones(5)
        td.all_reduce(everyone, all_six)
        assert (everyone == 6).all()
    return {}


class Model(torch.nn.Module):
    """Two types of parameters, of which one bucket each would not do."""

    def __init__(self, dtypes: tuple[torch.dtype, torch.dtype]) -> None:
        super().__init__()
        self.first = torch.nn.Sequential(
            torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 32)
        ).to(dtypes[0])
        self.second = torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Linear(32, 1)).to(dtypes[1])
        self.dtypes = dtypes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x.to(self.dtypes[0])).to(self.dtypes[1]))


def trained(
    rank: int,
    schedule: Schedule | None,
    dtypes: tuple[torch.dtype, torch.dtype],
    steps: int,
    device: str,
) -> tuple[list[torch.Tensor], int]:
    """Parameters after training, and the bytes that the schedule sent."""
    torch.manual_seed(0)
    model = Model(dtypes).to(device)
    model = DistributedDataParallel(model, bucket_cap_mb=0.002)  # type: ignore
    state = None
    if schedule is not None:
        state = td.ddp_hook(model, schedule)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.Generator().manual_seed(rank + 1)
    for _ in range(steps):
        x = torch.randn(8, 16, generator=data).to(device)
        loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    sent = 0 if state is None else int(state.collective.sent_bytes.sum())
    return [parameter.detach().cpu().clone() for parameter in model.parameters()], sent


def ddp(schedules: Schedules, rank: int, device: str = "cpu") -> dict:
    """How far training with the hook ends from training without, and whether all end alike."""
    report = {}
    plain_types = ((torch.float32, torch.float32),)
    mixed_types = ((torch.float32, torch.float64), (torch.bfloat16, torch.bfloat16))
    for name, schedule in schedules.items():
        for dtypes in plain_types + mixed_types if name[0] == "portfolio" else plain_types:
            steps = 50 if dtypes[0] == torch.float32 else 5
            ours, sent = trained(rank, schedule, dtypes, steps, device)
            plain, _ = trained(rank, None, dtypes, steps, device)
            gradient_bytes = sum(each.numel() * each.element_size() for each in ours)
            report[f"{name[0]}, {dtypes[0]}, {dtypes[1]}"] = {
                "apart": max(float((a - b).abs().max()) for a, b in zip(ours, plain, strict=True)),
                "moved": float(ours[0].abs().max()),
                "digest": digest(
                    np.concatenate([to_numpy(each.double()).ravel() for each in ours])
                ),
                "sent": sent,
                "gradients": gradient_bytes * steps,
            }
    return report


def ddp_gpu(schedules: Schedules, rank: int) -> dict:
    """The same with a model on a GPU, which all processes share."""
    for (name, _), schedule in schedules.items():
        whole = brought(schedule, 1001)
        mine = torch.from_numpy(whole[rank]).cuda()
        td.all_reduce(mine, schedule)
        assert mine.is_cuda
        assert mine.cpu().numpy().tobytes() == play(schedule, whole, "sum")[rank].tobytes(), name
    return ddp(schedules, rank, "cuda")


class Failing:
    """Stands for a collective that fails in the middle of a run."""

    def __call__(self, tensor: torch.Tensor, **_: object) -> None:
        tensor.fill_(7)  # what nobody should take for a gradient
        raise LostServerError(3, 3, "it failed")


def ddp_errors(schedules: Schedules, rank: int) -> dict:
    """What the hook's collective raises, ``backward`` raises, whatever DDP is told to do.

    The same module then trains in a new DDP model.
    """
    (schedule,) = schedules.values()
    for told in ({}, {"static_graph": True}, {"gradient_as_bucket_view": True}):
        torch.manual_seed(0)
        module = Model((torch.float32, torch.float32))
        broken = DistributedDataParallel(module, bucket_cap_mb=0.002, **told)  # type: ignore
        td.ddp_hook(broken, schedule).collective = Failing()  # type: ignore
        x = torch.full((4, 16), float(rank + 1))
        try:
            broken(x).sum().backward()
        except LostServerError as error:
            assert error.rank == 3
        else:
            raise AssertionError(f"{told}: backward raised nothing")
        for parameter in module.parameters():
            assert parameter.grad is None or not (parameter.grad == 7).all(), told
        del broken
        module.zero_grad()
        model = DistributedDataParallel(module, bucket_cap_mb=0.002, **told)  # type: ignore
        td.ddp_hook(model, schedule)
        model(x).sum().backward()
        ours = [to_numpy(parameter.grad).copy() for parameter in module.parameters()]  # type: ignore
        del model
        module.zero_grad()
        plain = DistributedDataParallel(module)
        plain(x).sum().backward()
        for mine, parameter in zip(ours, module.parameters(), strict=True):
            np.testing.assert_allclose(mine, parameter.grad, rtol=1e-5, atol=1e-6)
    return {}


def lost(schedule: Schedule, folder: Path, own: int, rank: int, when: str) -> dict:
    """Runs on until a process is lost, which is one that kills or stops itself."""
    mine = torch.ones(400_000, dtype=torch.float64)
    made = td.Collective(schedule, short_of_patience() if when == "stopped" else None)
    made(mine, reduction="max")
    if own == rank:
        in_the_middle(folder, when)
    if when == "idle":  # until it is dead, nobody calls anything
        if own == rank:
            die(folder)
        time.sleep(1)
    compare = when == "comparing"
    for turn in range(100_000):
        if own == rank and when in ("between", "comparing") and turn == 3:
            die(folder)
        try:
            made(mine, reduction="max", compare=compare or None)
        except LostServerError as error:
            report = {"kind": "lost", "rank": error.rank, "server": error.server, "at": time.time()}
            said = raised(RunError, lambda: made(mine, reduction="max"))
            assert "broken" in said
            return report
        except RunError as error:
            return {"kind": str(error), "at": time.time()}
    return {"kind": "never"}


def ddp_lost(schedule: Schedule, folder: Path, own: int, rank: int, when: str) -> dict:
    """Trains on until a process is lost, and catches what ``backward`` raises."""
    model = DistributedDataParallel(torch.nn.Linear(300, 300), bucket_cap_mb=0.1)  # type: ignore
    td.ddp_hook(model, schedule, short_of_patience())
    for _ in range(3):  # DDP arranges its buckets after the first, by a collective of its own
        model(torch.ones(4, 300)).sum().backward()
    if own == rank:
        in_the_middle(folder, when)
    for _ in range(100_000):
        loss = model(torch.ones(4, 300)).sum()
        try:
            loss.backward()
        except LostServerError as error:
            return {"kind": "lost", "rank": error.rank, "server": error.server, "at": time.time()}
    return {"kind": "never"}


def short_of_patience() -> dist.ProcessGroup:
    """All processes, in a group with a short timeout."""
    dist.barrier()
    group = dist.new_group(timeout=datetime.timedelta(seconds=SHORT_S))
    assert isinstance(group, dist.ProcessGroup)
    return group


def in_the_middle(folder: Path, when: str) -> None:
    """Has this process sleep, or kill or stop itself a little later."""
    if when == "asleep":
        (folder / "died").write_text(str(time.time()))
        time.sleep(3600)
    if when in ("during", "stopped"):
        number = signal.SIGKILL if when == "during" else signal.SIGSTOP
        threading.Timer(0.3, die, [folder, number]).start()


def die(folder: Path, number: int = signal.SIGKILL) -> None:
    (folder / "died").write_text(str(time.time()))
    os.kill(os.getpid(), number)


def process(folder: Path, rank: int, servers: int, job: str, loss: str) -> None:
    faulthandler.dump_traceback_later(0.75 * PATIENCE_S, exit=True)
    torch.set_num_threads(1)
    schedules, rows = pickle.loads((folder / "job.pickle").read_bytes())
    folder = folder / loss
    long = datetime.timedelta(seconds=PATIENCE_S / 2)
    if loss.endswith("tcp"):
        # The port is free for whoever asks first: rank 0 picks one and says which.
        place = folder / "port"
        if rank == 0:
            store = dist.TCPStore("127.0.0.1", 0, servers, True, long, wait_for_workers=False)
            (folder / "port.new").write_text(str(store.port))
            (folder / "port.new").rename(place)
        else:
            while not place.exists():
                time.sleep(0.01)
            store = dist.TCPStore("127.0.0.1", int(place.read_text()), servers, False, long)
    else:
        store = dist.FileStore(str(folder / "store"), servers)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=servers, timeout=long)
    if loss:
        (schedule,) = schedules.values()
        report = LOST_JOBS[job](schedule, folder, rank, victim(loss), loss.split("-")[1])
    else:
        report = JOBS[job](schedules, rows, rank)
    (folder / f"{rank}.json").write_text(json.dumps(report))
    if not loss:
        dist.barrier()
        dist.destroy_process_group()


JOBS: dict[str, Callable[[Schedules, list[tuple], int], dict]] = {
    "conformance": conformance,
    "checks": lambda schedules, _, rank: checks(schedules, rank),
    "overlapping": lambda schedules, _, rank: overlapping(schedules, rank),
    "ddp": lambda schedules, _, rank: ddp(schedules, rank),
    "ddp_gpu": lambda schedules, _, rank: ddp_gpu(schedules, rank),
    "ddp_errors": lambda schedules, _, rank: ddp_errors(schedules, rank),
}
LOST_JOBS: dict[str, Callable[[Schedule, Path, int, int, str], dict]] = {
    "lost": lost,
    "ddp_lost": ddp_lost,
}
"""Those that lose a process."""


def victim(loss: str) -> int:
    return int(loss.split("-")[0])


def main(folder: Path, servers: int, job: str, *losses: str) -> int:
    if job.startswith("ddp"):
        for name in ("torch.distributed.fsdp", "torch._dynamo"):
            importlib.import_module(name)  # DDP does: once, not in each process
    failed = False
    for loss in losses or ("",):
        (folder / loss).mkdir(exist_ok=True)
        processes = [start(folder, rank, servers, job, loss) for rank in range(servers)]
        lost = victim(loss) if loss else -1
        for rank, child in enumerate(processes):
            if rank != lost:
                failed |= bool(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        if loss:
            # One that was stopped goes on, one that is asleep does not wake up.
            os.kill(processes[lost], signal.SIGKILL if "asleep" in loss else signal.SIGCONT)
            os.waitpid(processes[lost], 0)
    return int(failed)


def start(folder: Path, rank: int, servers: int, job: str, loss: str) -> int:
    """Forks one of a job's processes."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        process(folder, rank, servers, job, loss)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]))
