"""Plans that the backend gradweave of torch.distributed must not run: one line, and gloo's own."""

import gzip
import json
import os
import signal
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import gradweave as gw
from gradweave.errors import GradweaveError, OptionError
from gradweave.schedulers import Ring
from gradweave.schedulers.textbook.runtimes import Direct
from gradweave.schedules import Job, Provenance, Schedule, demand_of
from gradweave.schedules.file import to_bytes
from gradweave.schedules.schedule import REDUCE
from tests.execute.launch import run

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("needs torch.distributed", allow_module_level=True)

from torch.distributed import HashStore  # noqa: E402

from gradweave.torch import offers as offering  # noqa: E402
from gradweave.torch import plans as planning  # noqa: E402
from gradweave.torch.agreement import agreement  # noqa: E402
from gradweave.torch.calls import SizeClass  # noqa: E402
from gradweave.torch.measuring import kept_network  # noqa: E402
from gradweave.torch.offers import Offers  # noqa: E402
from gradweave.torch.planner import Planner, Weight  # noqa: E402
from gradweave.torch.plans import Plans, Sources, read_plan  # noqa: E402
from gradweave.torch.settings import Settings  # noqa: E402

NET = gw.topology.complete(4)
GOOD = Ring().schedule(NET)
OF = SizeClass("all_reduce", 4096)


def settings(folder: Path, topology: str | None = None, plans: tuple[Path, ...] = ()) -> Settings:
    return Settings(plans, topology, "gloo", folder)


def mixed() -> Schedule:
    """Valid: servers 0 and 3 end with ((0 + 1) + 2) + 3, 1 and 2 with (0 + 1) + (2 + 3)."""
    at_once = [(1, 0), (2, 0), (3, 0), (0, 3), (1, 3), (2, 3), (0, 1), (3, 2)]
    pairs = [*at_once, (1, 2), (2, 1)]
    source, target = map(np.array, zip(*pairs, strict=True))
    none = np.zeros(len(pairs), np.int64)
    return GOOD.replace(
        root=none[:1],
        round=np.repeat([0, 1], [len(at_once), 2]),
        piece=none,
        source=source,
        target=target,
        op=np.full(len(pairs), REDUCE, np.int8),
        route_nodes=np.array(pairs).ravel(),
        route_offsets=np.arange(0, 2 * len(pairs) + 1, 2),
        bound=None,
    )


def invalid() -> Schedule:
    """The last transfer sends a piece to a server that already has it whole."""
    piece = GOOD.piece.copy()
    piece[-1] = (piece[-1] + 1) % GOOD.pieces
    return GOOD.replace(piece=piece)


def edited(**fields: object) -> bytes:
    return json.dumps(json.loads(to_bytes(GOOD)) | fields).encode()


def of_size(size: int) -> Schedule:
    return GOOD.replace(scheduler=Provenance("ring", {"gradient_bytes": size}, None))


BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not a schedule file"),
    "truncated": (to_bytes(GOOD)[:-40], "not a schedule file"),
    "not text": (bytes(range(256)), "not a schedule file"),
    "packed": (gzip.compress(to_bytes(GOOD)), "not a schedule file"),
    "a future version": (edited(version=9), "version"),
    "another format": (edited(format="placement"), "format"),
    "columns of other lengths": (edited(pieces=3), "pieces"),
    "rejected by the verifier": (to_bytes(invalid()), "cannot run: "),
    "with other bits": (to_bytes(mixed()), "different bits"),
}
FOR_ELSE: dict[str, tuple[bytes, str]] = {
    "of another network": (to_bytes(Ring().schedule(gw.topology.ring(4))), "another network"),
    "of another collective": (
        to_bytes(Ring().schedule(NET, collective="all_gather")),
        "another collective",
    ),
    "of another size": (to_bytes(of_size(8192)), "planned for 8,192 bytes, not 4,096"),
    "of a demand": (
        to_bytes(Direct().schedule(NET, demand_of(NET, [Job("gather", 24, root=0)]))),
        "expected a plan of one of",
    ),
}
MAKERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a directory": (Path.mkdir, "got a directory"),
    "a named pipe": (os.mkfifo, "got a named pipe"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "got a device"),
    "a link to nothing": (lambda path: path.symlink_to("nowhere"), "No such file"),
    "a link to itself": (lambda path: path.symlink_to(path.name), "symbolic links"),
}


def plans_in(folder: Path) -> Plans:
    return Sources.read(settings(folder, topology="complete:n=4")).of_group(4)


def ways() -> dict[str, tuple[Callable[[Path], object], str]]:
    def writes(content: bytes) -> Callable[[Path], object]:
        return lambda path: path.write_bytes(content)

    return {name: (writes(content), said) for name, (content, said) in BAD.items()} | MAKERS


@pytest.mark.parametrize("kind", [*ways(), *FOR_ELSE])
def test_a_bad_plan_in_the_cache_is_set_aside(tmp_path: Path, lines: list[str], kind: str):
    plans = plans_in(tmp_path)
    path = plans.file(OF)
    make, said = ways().get(kind) or (
        lambda path: path.write_bytes(FOR_ELSE[kind][0]),
        FOR_ELSE[kind][1],
    )
    make(path)
    assert plans.kept(OF) is None
    assert len(lines) == 1 and said in lines[0] and "will be created again" in lines[0], lines
    assert not os.path.lexists(path) and os.path.lexists(f"{path}.aside")
    plans.keep(GOOD, OF)
    kept = plans.kept(OF)
    assert kept is not None and kept.num_transfers == GOOD.num_transfers and len(lines) == 1


@pytest.mark.parametrize("kind", ways())
def test_a_bad_plan_that_is_given(tmp_path: Path, kind: str):
    path = tmp_path / "plan.json"
    make, said = ways()[kind]
    make(path)
    with pytest.raises(GradweaveError, match=said) as failure:
        Sources.read(settings(tmp_path, plans=(path,)))
    line = str(failure.value)
    assert "plan.json" in line and "\n" not in line and os.path.lexists(path)


def test_a_plan_of_other_servers_that_is_given(tmp_path: Path):
    path = tmp_path / "plan.json"
    path.write_bytes(to_bytes(Ring().schedule(gw.topology.complete(5))))
    with pytest.raises(GradweaveError, match="5 servers"):
        Sources.read(settings(tmp_path, plans=(path,))).of_group(4)


def test_a_huge_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "plan.json"
    path.write_bytes(to_bytes(GOOD))
    assert read_plan(path).num_transfers == GOOD.num_transfers
    monkeypatch.setattr(planning, "MOST_BYTES", 1000)
    with pytest.raises(GradweaveError, match="larger than 1,000 bytes"):
        read_plan(path)


def test_what_cannot_be_set_aside_is_not_waited_for(
    tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
):
    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    plans = plans_in(tmp_path)
    os.mkfifo(plans.file(OF))
    monkeypatch.setattr(os, "replace", refused)
    assert plans.kept(OF) is None and "cannot be renamed" in lines.pop()
    plans.keep(GOOD, OF)
    assert "the plan is not kept" in lines[0] and "named pipe" in lines[0] and len(lines) == 1


def test_of_several_plans_that_are_given_the_fastest_for_the_size(tmp_path: Path):
    ring, central = tmp_path / "ring.json", tmp_path / "one.json"
    few = gw.schedulers.RecursiveDoubling().schedule(NET)
    ring.write_bytes(to_bytes(GOOD))
    central.write_bytes(to_bytes(few))
    given = Sources.read(settings(tmp_path, plans=(ring, central))).of_group(4)
    small, large = (given.find(SizeClass("all_reduce", size)) for size in (1 << 10, 1 << 30))
    assert small is not None and small.num_transfers == few.num_transfers
    assert large is not None and large.num_transfers == GOOD.num_transfers


class Given:
    """Plans by size, or the error to raise for a size."""

    def __init__(self, plans: dict[int, Schedule | Exception], hopeless: set[int]) -> None:
        self._plans, self._hopeless = plans, hopeless

    def find(self, of: SizeClass, given_up: Callable[[], str | None]) -> Schedule:
        found = self._plans[of.size]
        if isinstance(found, Exception):
            raise found
        return found

    def hopeless(self, plan: Schedule, of: SizeClass) -> str | None:
        return "it loses" if of.size in self._hopeless else None


def test_the_planner_answers_whatever_goes_wrong(lines: list[str]):
    plans: dict[int, Schedule | Exception] = {
        1: GOOD,
        2: OptionError("no\nplan"),
        3: OSError("disk"),
        4: MemoryError(),
        5: GOOD,
    }
    planner, answers, all_there = Planner(Given(plans, {5})), {}, threading.Event()  # type: ignore[arg-type]

    def publish(of: SizeClass, plan: Schedule | None) -> None:
        answers[of.size] = plan
        if len(answers) == len(plans):
            all_there.set()

    planner.start(publish)
    for size in plans:
        planner.want(SizeClass("all_reduce", size), lambda: Weight(True, 1))
    assert all_there.wait(20)
    planner.close()
    assert answers == {1: GOOD, 2: None, 3: None, 4: None, 5: None}
    assert len(lines) == 3 and not any("\n" in line for line in lines)
    assert "OSError: disk" in lines[1]


def test_what_matters_most_is_searched_for_first():
    """And a search is put off where its class is not called any more, while another waits."""
    began: list[int] = []
    waits = threading.Event()

    class Searched(Given):
        def find(self, of: SizeClass, given_up: Callable[[], str | None]) -> Schedule:
            began.append(of.size)
            while of.size == 1 and began.count(1) == 1:
                waits.set()
                if why := given_up():
                    raise OptionError(why)
            return GOOD

    planner, answers, all_there = Planner(Searched({}, set())), [], threading.Event()  # type: ignore[arg-type]

    def publish(of: SizeClass, plan: Schedule | None) -> None:
        answers.append(of.size)
        if len(answers) == 3:
            all_there.set()

    planner.want(SizeClass("all_reduce", 1), lambda: Weight(False, 1 << 40))
    planner.start(publish)
    assert waits.wait(20)
    planner.want(SizeClass("all_reduce", 2), lambda: Weight(True, 10))
    planner.want(SizeClass("all_reduce", 3), lambda: Weight(True, 20))
    assert all_there.wait(20)
    planner.close()
    assert sorted(began[1:3]) == [2, 3] and answers[-1] == 1 and began.count(1) == 2


class Group:
    """As much of a process group as offers need."""

    def __init__(self) -> None:
        self.store = HashStore()

    def get_group_store(self) -> object:
        return self.store

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 4


@pytest.fixture
def offers() -> Offers:
    group = Group()
    made = Offers(group, None)  # type: ignore[arg-type]
    made._keep = group  # type: ignore[attr-defined]
    return made


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_plan_in_the_store_is_refused(offers: Offers, lines: list[str], kind: str):
    content = bytes(8) + BAD[kind][0]
    offers._store.ask(lambda store: store.set(offering._key(OF), content)).result(20)
    offers._wanted[OF] = None
    offers._store.ask(offers._look).result(20)
    assert offers.state(OF) == -1
    assert len(lines) == 1 and "rank 0 cannot run the plan" in lines[0] and "\n" not in lines[0]


@pytest.mark.parametrize("plan", [invalid(), mixed()])
def test_a_plan_with_the_right_digest_is_checked_too(
    offers: Offers, lines: list[str], plan: Schedule
):
    content = offering.digest(plan).to_bytes(8, "little") + to_bytes(plan)
    offers._store.ask(lambda store: store.set(offering._key(OF), content)).result(20)
    offers._wanted[OF] = None
    offers._store.ask(offers._look).result(20)
    assert offers.state(OF) == -1 and len(lines) == 1
    assert "cannot run: " in lines[0] or "different bits" in lines[0]


def test_a_plan_that_the_store_does_not_take(
    offers: Offers, lines: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(offering, "MOST_BYTES", 100)
    offers._publish(OF, GOOD)
    assert offers._store.ask(lambda store: store.get(offering._key(OF))).result(20) == b"own"
    assert "but the job's store takes at most 100" in lines[0]


def test_a_rank_that_is_lost_during_a_trial_is_named(tmp_path: Path):
    Ring().schedule(gw.topology.complete(3)).save(tmp_path / "plan.json")
    module = (sys.executable, "-m", "tests.execute.torch_trial_cases", str(tmp_path))
    status, output = run(module, tmp_path)
    assert status == 0, output
    for rank in range(2):
        report = json.loads((tmp_path / f"{rank}.json").read_text())
        assert report["stage"] == "TRIAL" and report["kind"] == "LostServerError", report
        assert "server 2" in report["text"] or "rank 2" in report["text"], report


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # JAX's, if a test has started it
def test_a_search_leaves_no_folder_where_the_process_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plans = plans_in(tmp_path / "cache")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def never(arguments: list[str], said: Path, given_up: object, *, patient: bool) -> None:
        (tmp_path / "searching").write_text(str(said.parent))
        time.sleep(60)

    monkeypatch.setattr(planning, "run_command", never)
    child = os.fork()
    if not child:
        try:
            plans.searched(OF)
        finally:
            os._exit(1)
    until = time.monotonic() + 20
    while not (tmp_path / "searching").exists() and time.monotonic() < until:
        time.sleep(0.02)
    (folder,) = tmp_path.glob("gradweave-*")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while folder.exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert not folder.exists()


def test_a_measured_network_that_is_of_no_use_is_set_aside(tmp_path: Path, lines: list[str]):
    path = tmp_path / "measured.json"
    assert kept_network(path) is None and not lines
    for make in (lambda: path.write_text("{"), lambda: os.mkfifo(path), path.mkdir):
        make()
        assert kept_network(path) is None and "will be created again" in lines.pop()
        assert not path.exists()
        aside = tmp_path / "measured.json.aside"
        if aside.is_dir():
            break
        aside.unlink()
    gw.topology.save(NET, path)
    found = kept_network(path)
    assert found == path.read_text() and not lines


def test_a_group_without_plans_lists_none():
    from gradweave.torch.group import Group, GroupWrapper

    assert Group.choices.listed() == GroupWrapper.choices.listed() == []  # type: ignore[attr-defined]


def test_near_misses_of_variables_are_reported(lines: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GRADWEAVE_TOPOLGY", "star:n=4")
    options = types.SimpleNamespace(
        store=HashStore(), group_rank=0, group_size=1, global_ranks_in_group=[]
    )
    assert not agreement(options).plans
    assert lines == ["GRADWEAVE_TOPOLGY is not read; did you mean GRADWEAVE_TOPOLOGY?"]
