"""Halving and doubling, recursive doubling and binomial trees: textbook figures, any network."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradweave as gw
from gradweave.errors import NoScheduleError, OptionError
from gradweave.schedulers import Binomial, DoubleTree, HalvingDoubling, RecursiveDoubling, to_spec
from gradweave.schedulers.solving.variants import split
from gradweave.schedulers.spec import from_spec
from gradweave.schedulers.textbook.places import Places
from gradweave.schedules.schedule import COLLECTIVES, COPY, REDUCE
from gradweave.simulator import event_seconds, seconds, traffic
from tests.simulator.random_networks import networks

net = gw.topology.from_spec
STRATEGIES = (HalvingDoubling, RecursiveDoubling, Binomial)
LINK = "bandwidth=1GB/s,latency=1ms,overhead=0s"


@pytest.mark.parametrize("exponent", [1, 2, 3, 4])
def test_between_neighbours_the_textbooks_figures_come_out(exponent):
    """On a complete network: the times of Thakur, Rabenseifner and Gropp, from counts."""
    count = 2**exponent
    network = net(f"complete:{count},{LINK}")
    size, latency, rate = 1e6, 1e-3, 1e9
    share = (count - 1) / count

    halving = HalvingDoubling().schedule(network)
    assert traffic(halving, size).sent_bytes == pytest.approx(2 * share * size)
    textbook = 2 * exponent * latency + 2 * share * size / rate
    # Less if an exchange starts before the previous ends, on another port; latencies stay.
    least = 2 * exponent * (latency + size / count / rate)
    assert least * (1 - 1e-9) <= seconds(halving, size, "events") <= textbook * (1 + 1e-9)
    assert halving.rounds == 2 * (count - 1)  # one piece per round

    doubling = RecursiveDoubling().schedule(network)
    assert traffic(doubling, size).sent_bytes == pytest.approx(exponent * size)
    assert doubling.rounds == exponent and set(doubling.op.tolist()) == {REDUCE}
    for model in ("events", "rounds"):
        expected = exponent * (latency + size / rate)
        assert seconds(doubling, size, model) == pytest.approx(expected)

    tree = Binomial().schedule(network)
    assert tree.num_transfers == 2 * (count - 1) and tree.pieces == 1
    for model in ("events", "rounds"):
        expected = 2 * exponent * (latency + size / rate)
        assert seconds(tree, size, model) == pytest.approx(expected)


def test_several_pieces_to_one_partner_pay_one_latency_without_barriers():
    """The same with a barrier after each round: the guide's statement about the two models.

    The textbook's exchange starts when the previous exchange has ended: 3 latencies and 7 pieces,
    10 ms. Here server 0's last piece of the first exchange arrives at 5 ms, goes on immediately
    over another port, and once more: 5 + 2 + 2.
    """
    made = HalvingDoubling().schedule(net(f"complete:8,{LINK}"), collective="reduce_scatter")
    start, end = event_seconds(made, 8e6)
    assert end.max() == pytest.approx(9e-3)
    first_partner = end[(made.source == 0) & (made.target == 1)]
    assert sorted(first_partner.tolist()) == pytest.approx([0.002, 0.003, 0.004, 0.005])
    assert seconds(made, 8e6, "rounds") == pytest.approx(7 * (1e-3 + 1e-3))
    assert (start >= 0).all()


@pytest.mark.parametrize("count", [3, 5, 6, 7, 9, 12])
def test_other_numbers_of_servers_are_folded(count):
    network = net(f"complete:{count}")
    core = 1 << (count.bit_length() - 1)
    over, steps = count - core, int(math.log2(core))
    assert Binomial().schedule(network).num_transfers == 2 * (count - 1)
    assert Binomial().schedule(network).rounds == 2 * (steps + 1) == 2 * math.ceil(math.log2(count))
    doubling = RecursiveDoubling().schedule(network)
    assert doubling.num_transfers == core * steps + 2 * over
    assert doubling.rounds == steps + 2
    sent = traffic(HalvingDoubling().schedule(network), count).sent_bytes
    places = Places.of(network, "id", "test")
    assert sent[places.folded] == pytest.approx(count)  # all of it, once
    assert set(places.folded.tolist()) == set(range(1, 2 * over, 2))


@given(
    network=networks(max_servers=9),
    collective=st.sampled_from(COLLECTIVES),
    strategy=st.sampled_from([*STRATEGIES, DoubleTree]),
    order=st.sampled_from(["id", "near"]),
    seed=st.integers(0, 20),
)
def test_they_are_valid_on_any_network(network, collective, strategy, order, seed):
    made = strategy(order=order).schedule(network, collective=collective, seed=seed)
    assert (made.op == REDUCE).any() or collective == "all_gather"
    assert (made.op == COPY).any() or collective != "all_gather"


@given(network=networks(max_servers=9), strategy=st.sampled_from(STRATEGIES))
def test_partners_that_add_into_each_other_do_so_in_one_round(network, strategy):
    made = strategy().schedule(network)
    rows = list(
        zip(*(getattr(made, c).tolist() for c in ("round", "piece", "source", "target", "op"))
            , strict=True)
    )  # fmt: skip
    assert len(rows) == len(set(rows))
    if strategy is RecursiveDoubling:
        places = Places.of(network, "id", "test")
        core = set(places.core.tolist())
        for at, piece, source, target, op in rows:
            if {source, target} <= core and op == REDUCE:
                assert (at, piece, target, source, op) in rows


@pytest.mark.parametrize("spec", ["torus:8x8", "dcell:n=4,k=1", "jellyfish:reference=J15"])
def test_near_partners_save_rounds_and_seconds(spec):
    network = net(spec)
    by_id, near = (HalvingDoubling(order).schedule(network) for order in ("id", "near"))
    assert near.rounds < by_id.rounds
    assert seconds(near, 1e3, "events") < seconds(by_id, 1e3, "events")


@pytest.mark.parametrize("dimension", [2, 3, 4])
def test_on_a_hypercube_every_partner_is_a_neighbour(dimension):
    network = net(f"hypercube:{dimension}")
    for order in ("id", "near"):
        made = HalvingDoubling(order).schedule(network)
        assert (np.diff(made.route_offsets) == 2).all()
        assert RecursiveDoubling(order).schedule(network).rounds == dimension


def test_an_order_can_be_given():
    network = net("ring:4")
    made = RecursiveDoubling(order=(0, 2, 1, 3)).schedule(network)
    first = made.round == 0
    pairs = {(int(a), int(b)) for a, b in zip(made.source[first], made.target[first], strict=True)}
    assert pairs <= {(0, 2), (2, 0), (1, 3), (3, 1)}
    assert made.root.tolist() == [0]
    assert Binomial(order=(3, 2, 1, 0)).schedule(network).root.tolist() == [3]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("order", "reason"),
    [("far", "expected id, near or node ids, got 'far'"), ((0, 1, 1), "expected each of the 3")],
)
def test_orders_are_checked(strategy, order, reason):
    with pytest.raises(OptionError) as caught:
        strategy(order=order).schedule(net("ring:3"))
    assert str(caught.value).startswith(f"{strategy.name}: order: {reason}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_they_have_specifications(strategy):
    for scheduler in (strategy(), strategy(order="near"), strategy(order=(1, 0, 2))):
        assert from_spec(to_spec(scheduler)) == scheduler


@pytest.mark.parametrize(
    ("strategy", "given"),
    [
        (RecursiveDoubling, [{"radix": 1}]),
        (Binomial, [{"partners": "far"}, {"radix": 1}, {"radix": 4, "partners": "bine"}]),
    ],
)
def test_partners_and_radix_are_checked(strategy, given):
    for options in given:
        with pytest.raises(OptionError, match=strategy.name):
            strategy(**options)
    made = strategy(radix=4)
    assert from_spec(to_spec(made)) == made


@given(
    network=networks(max_servers=6),
    strategy=st.sampled_from(STRATEGIES),
    parts=st.integers(1, 5),
    collective=st.sampled_from(COLLECTIVES),
)
def test_finer_pieces_keep_a_schedule_valid_and_its_bytes(network, strategy, parts, collective):
    made = strategy().schedule(network, collective=collective)
    finer = split(made, parts)
    assert gw.verify(finer).valid
    assert finer.pieces == parts * made.pieces and finer.rounds == parts * made.rounds
    assert traffic(finer, 1e6).link_bytes == pytest.approx(traffic(made, 1e6).link_bytes)


def test_a_pipelined_chain_takes_the_textbooks_time():
    """A broadcast over H hops in c parts: (H + c − 1)·M/c."""
    made = Binomial(order=(0, 1)).schedule(net(f"complete:2,{LINK}"), collective="all_gather")
    assert seconds(split(made, 4), 1e6, "events") == pytest.approx(1e-3 + 1e-3)
    chain = gw.schedules.Schedule.from_rows(
        net("mesh:4,bandwidth=1GB/s,latency=0s,overhead=0s"),
        [(hop, 0, COPY, (hop, hop + 1)) for hop in range(3)],
        collective="all_gather",
        root=[0],
    )
    for parts in (1, 2, 5):
        expected = (3 + parts - 1) / parts * 1e-3
        assert seconds(split(chain, parts), 1e6, "events") == pytest.approx(expected)
    with pytest.raises(OptionError, match="split: parts: expected at least 1, got 0"):
        split(chain, 0)


def test_who_exchange_with_several_at_once_need_fewer_exchanges():
    """On a complete network of 16: groups of four need two exchanges, not four."""
    network = net(f"complete:16,{LINK}")
    for radix, exchanges in ((2, 4), (4, 2), (8, 2), (16, 1)):
        made = RecursiveDoubling(radix=radix).schedule(network)
        assert made.rounds == exchanges
        assert seconds(made, 1e3, "events") == pytest.approx(exchanges * (1e-3 + 1e-6))
    for count, radix, rounds in ((9, 3, 2), (6, 3, 2), (7, 3, 4), (5, 8, 1), (10, 4, 4)):
        made = RecursiveDoubling(radix=radix).schedule(net(f"complete:{count}"))
        assert made.rounds == rounds  # 7 and 10 with one or two folded
    with pytest.raises(NoScheduleError, match="not have enough links"):
        RecursiveDoubling(radix=4).schedule(net("star:16"))


@pytest.mark.parametrize(("count", "radix", "levels"), [(9, 3, 2), (14, 3, 3), (16, 4, 2)])
def test_a_tree_of_a_radix_has_as_many_levels_as_digits(count, radix, levels):
    """If messages hold no link, a level takes one latency, however many children there are."""
    made = Binomial(radix=radix).schedule(net(f"complete:{count},{LINK}"))
    assert made.num_transfers == 2 * (count - 1)
    assert seconds(made, 0.0, "events") == pytest.approx(2 * levels * 1e-3)


@pytest.mark.parametrize("count", [4, 8, 16, 32])
def test_bine_partners_are_nearer_on_a_ring(count):
    """The total number of hops of the tree's messages."""
    network = net(f"ring:{count}")
    hops = {}
    for partners in ("hypercube", "bine"):
        made = Binomial(partners=partners).schedule(network)
        assert made.num_transfers == 2 * (count - 1)
        hops[partners] = len(made.route_nodes) - made.num_transfers
    assert hops["bine"] <= hops["hypercube"]
    if count >= 16:
        assert hops["bine"] < 0.85 * hops["hypercube"]


@pytest.mark.parametrize("count", [2, 3, 7, 8, 12, 17])
def test_who_has_others_below_in_one_tree_has_none_in_the_other(count):
    made = DoubleTree().schedule(net(f"complete:{count}"), collective="all_gather")
    inner = [set(made.source[made.piece == piece].tolist()) for piece in (0, 1)]
    roots = set(made.root.tolist())
    assert len(roots) == 2
    assert inner[0] & inner[1] <= roots
    most = max(np.bincount(made.source[made.piece == piece]).max() for piece in (0, 1))
    assert most <= 2


def test_a_double_tree_with_chains_crosses_between_boxes_in_trees_alone():
    boxes = gw.topology.gpu_boxes("a100", boxes=4)
    made = DoubleTree(chains=True).schedule(boxes)
    crossing = made.source // 8 != made.target // 8
    # 8 channels of 2 trees of 4 boxes, up and down.
    assert crossing.sum() == 2 * 8 * 2 * 3
    assert (made.source[crossing] % 8 == made.target[crossing] % 8).all()
    assert made.pieces == 16
    flat = gw.topology.star(5)
    alike = DoubleTree(chains=True).schedule(flat), DoubleTree().schedule(flat)
    assert (alike[0].target == alike[1].target).all()
    with pytest.raises(OptionError, match="expected order=id"):
        DoubleTree(order="near", chains=True)
