"""Implicit schedules: what they expand to, each rank's program, and their files."""

import json

import numpy as np
import pytest

import gradweave as gw
from gradweave.common.stop import UNLIMITED
from gradweave.errors import FileError, GradweaveError, ScheduleError
from gradweave.schedulers import Symmetric, implicit
from gradweave.schedules import COLLECTIVES, ImplicitSchedule, file, load_implicit
from gradweave.schedules.schedule import Collective
from gradweave.topology.translations import Translations, translations
from gradweave.verifier import verify
from tests.schedules.same import same, same_columns, transfers

SMALL = ("torus:3x4", "bcube:n=3,k=1", "hypercube:3", "ring:5", "circulant:n=8,jumps=1.3")
SMALL += ("fat_tree:k=4", "star:4", "h100:boxes=2,rails=8")
SYMMETRIC = ("torus:4x4", "torus:3x5", "bcube:n=4,k=1", "hypercube:4", "ring:8", "complete:6")
LARGE = ("torus:64x64", "torus:16x16x16", "bcube:n=64,k=1", "hypercube:12", "bcube:n=16,k=2")


def of_symmetric(spec: str, collective: Collective = "all_reduce") -> ImplicitSchedule:
    """The schedule of the strategy symmetric, as a base and translations."""
    network = gw.topology.from_spec(spec)
    base, _ = Symmetric().base(network, 0, UNLIMITED)
    group = translations(network)
    assert group is not None
    return ImplicitSchedule(base, group, collective)


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("spec", SYMMETRIC)
def test_it_expands_to_the_explicit_schedule_bit_for_bit(spec, collective):
    explicit = Symmetric().schedule(spec, collective=collective)
    assert same_columns(of_symmetric(spec, collective).expand(), explicit)


@pytest.mark.slow
@pytest.mark.parametrize("spec", LARGE)
def test_large_ones_expand_to_the_explicit_schedule_bit_for_bit(spec):
    assert same_columns(of_symmetric(spec).expand(), Symmetric().schedule(spec))
    made = implicit(spec)
    assert verify(made.expand(), forwarding_servers=False).valid


@pytest.mark.parametrize("spec", SMALL)
def test_a_rank_takes_part_in_what_the_expanded_schedule_says(spec):
    made = implicit(spec)
    whole, servers = made.expand(), made.topology.servers
    assert (made.num_transfers, made.rounds) == (whole.num_transfers, whole.rounds)
    for rank, server in enumerate(servers.tolist()):
        own = made.of_rank(rank)
        mine = np.flatnonzero((whole.source == server) | (whole.target == server))
        assert transfers(own) == transfers(whole.take(mine))
        assert (np.diff(own.round) >= 0).all()
    with pytest.raises(
        ScheduleError, match=f"expected 0 to {len(servers) - 1}, got {len(servers)}"
    ):
        made.of_rank(len(servers))


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("spec", SMALL)
def test_files_give_back_the_same(spec, collective, tmp_path):
    made, path = implicit(spec, collective=collective), tmp_path / "plan.json.gz"
    made.save(path)
    back = load_implicit(path)
    assert (back.symmetry, back.collective) == (made.symmetry, collective)
    assert same(back.base, made.base)
    assert same(gw.load(path), made.expand())


def test_several_roots_are_kept_as_well(tmp_path):
    """Half of the translations of a ring: two orbits, with a tree each."""
    network = gw.topology.ring(6)
    rotations = Translations((3, 2), ((0, 1),), fixed=(1,))
    whole = implicit("ring:6", collective="all_gather").expand()
    base = whole.take(np.flatnonzero(whole.piece < 2), root=network.servers[:2])
    made = ImplicitSchedule(base, rotations)
    assert verify(made).valid and made.symmetry.order == 3
    assert transfers(made.expand()) == transfers(implicit("ring:6").expand())
    made.save(tmp_path / "plan.json")
    assert same(load_implicit(tmp_path / "plan.json").base, base)
    own = [made.of_rank(rank) for rank in range(6)]
    assert sum(map(transfers, own), transfers(own[0]) - transfers(own[0])) == transfers(
        made.expand().take(np.tile(np.arange(made.num_transfers), 2))
    )


def test_what_does_not_fit_together_is_refused():
    made = implicit("ring:4")
    group, base = made.symmetry, made.base
    with pytest.raises(ScheduleError, match="expected an all_gather of equal pieces, got all_red"):
        ImplicitSchedule(made.base_collective, group)
    with pytest.raises(ScheduleError, match=r"its layers have 5 nodes; expected 4"):
        ImplicitSchedule(base, Translations((5,), ((0,),)))
    with pytest.raises(ScheduleError, match="collective: expected one of"):
        ImplicitSchedule(base, group, "broadcast")  # pyright: ignore[reportArgumentType]


def test_only_one_piece_per_server_is_expanded():
    made = implicit("ring:4")
    far = Translations((4, 1 << 20, 1 << 20), ((0,),))
    with pytest.raises(ScheduleError, match="4,398,046,511,104 pieces; expected 4, one per server"):
        ImplicitSchedule(made.base.take(np.zeros(0, np.int64)), far).expand()


def test_too_large_ones_are_not_expanded(tmp_path, monkeypatch):
    made, path = implicit("torus:64x32x32"), tmp_path / "plan.json.gz"
    with pytest.raises(ScheduleError, match="8,589,803,520 transfers; at most"):
        made.expand()
    made = implicit("torus:8x8")
    made.save(path)
    monkeypatch.setattr(file, "BYTES_PER_TRANSFER", 1 << 20)
    with pytest.raises(FileError, match="8,064 transfers, too many to write out"):
        gw.load(path)


def test_only_networks_with_a_name_and_trees_are_written(tmp_path):
    made = implicit("ring:4")
    moved = made.base.topology.with_server_order([0, 2, 1, 3])
    with pytest.raises(ScheduleError, match="does not make this network; expected a specification"):
        ImplicitSchedule(made.base.replace(topology=moved), made.symmetry).save(tmp_path / "a.json")
    twice = made.base.take(np.array([0, 1, 1, 2]))
    with pytest.raises(ScheduleError, match="transfer 2 from 0 to 3 is not part of a tree"):
        ImplicitSchedule(twice, made.symmetry).save(tmp_path / "a.json")


BROKEN = {
    "version": (lambda data: data.update(version=2), "version"),
    "network": (lambda data: data.update(network="ring:5"), "its layers have 4 nodes; expected 5"),
    "file": (lambda data: data.update(network="net.yaml"), "network: expected a specification"),
    "files": (lambda data: data.update(network="a.xml+b.csv"), "network: expected a specification"),
    "unknown": (lambda data: data.update(network="wheel:4"), "wheel"),
    "rounds": (lambda data: data.update(rounds=9), "rounds: is 9, but the transfers take 4"),
    "root": (lambda data: data.update(root=[4]), "root[0]: expected 0 to 3, got 4"),
    "layers": (lambda data: data["symmetry"].update(layers=[[0, 1]]), "each at most once"),
    "sizes": (lambda data: data["symmetry"].update(sizes=[-4]), "sizes must be 1 to 1,048,576"),
    "hop": (lambda data: data["transfers"]["hop"].__setitem__(0, 2), "hop[0]: expected 0 to 1"),
    "piece": (lambda data: data["transfers"]["piece"].__setitem__(0, 1), "piece[0]: expected"),
    "source": (lambda data: data["transfers"]["source"].__setitem__(1, 5), "source[1]: expected"),
    "later": (lambda data: data["transfers"]["source"].__setitem__(0, 1), "source[0]: expected 0"),
    "length": (lambda data: data["transfers"]["piece"].pop(), "piece: expected 3 entries"),
    "lengths": (lambda data: data["hops"].update(length=[2, 3]), "hops: expected as many nodes"),
    "nodes": (lambda data: data["hops"]["nodes"].__setitem__(0, 9), "hops.nodes[0]: expected"),
    "wide": (lambda data: data["hops"]["nodes"].__setitem__(0, 1 << 70), "64 bits"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_malformed_files_are_refused_in_a_line(name, tmp_path):
    path = tmp_path / "plan.json"
    implicit("ring:4").save(path)
    data = json.loads(path.read_text())
    change, message = BROKEN[name]
    change(data)
    path.write_text(json.dumps(data))
    for read in (load_implicit, gw.load):
        with pytest.raises(GradweaveError) as caught:
            read(path)
        assert message in str(caught.value)
        assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


def test_the_file_is_small(tmp_path):
    implicit("torus:32x32").save(tmp_path / "plan.json.gz")
    assert (tmp_path / "plan.json.gz").stat().st_size < 2_000
