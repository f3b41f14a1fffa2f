"""Stock libraries: the algorithms that their tables may name, and those they use by default."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Literal

from gradweave.common.checks import did_you_mean
from gradweave.errors import OptionError
from gradweave.ranks import algorithms
from gradweave.ranks.algorithms import Maker
from gradweave.ranks.libraries import NCCL_STEP_BYTES
from gradweave.ranks.pattern import Phase

Named = Literal["all_reduce", "all_gather", "broadcast", "reduce_scatter", "all_to_all"]
"""The collectives of tables."""
_KIB, _MIB = 1 << 10, 1 << 20
_SEGMENTS = (8 * _KIB, 32 * _KIB, 128 * _KIB, 512 * _KIB, 2 * _MIB)
"""Segment sizes that are tried for pipelined trees."""
_LEAST_CUT = 16
"""Bytes per rank below which libraries do not cut a vector into a part per rank."""


@dataclasses.dataclass(frozen=True)
class StockAlgorithm:
    """One algorithm of a library for one collective."""

    name: str
    """The library's name for it."""
    maker: Maker
    """Its phases of messages."""
    number: int = 0
    """The library's number for it."""
    segments: tuple[int, ...] = (0,)
    """Bytes per segment that are tried; 0 if the message is not cut."""
    tried: bool = True
    """Whether a table may name it; otherwise it is only predicted as the default."""
    needs: Callable[[int], bool] = lambda ranks: True
    """Whether it supports a number of ranks."""
    cuts: bool = False
    """Whether it cuts the data into a part per rank, which tiny data are not."""

    def works(self, ranks: int, size: float) -> bool:
        """Whether the library runs it for a number of ranks and a size in bytes."""
        return self.needs(ranks) and not (self.cuts and size < _LEAST_CUT * ranks)


@dataclasses.dataclass(frozen=True)
class Library:
    """A library with tables of algorithms."""

    name: str
    runtime: str
    """The profile with its message costs; see `gradweave.simulator.runtime.NAMES`."""
    algorithms: Mapping[Named, tuple[StockAlgorithm, ...]]
    default: Callable[[Named, int, float], str | None]
    """Name of the algorithm that it uses by default for a collective, a number of ranks and a size
    in bytes; None if that is not known."""
    least_bytes: int = 0
    """Sizes below are left to the library."""

    def collective(self, name: str) -> Named:
        """The collective of that name, if the library has tables for it.

        Raises:
            OptionError: if not.
        """
        for one in self.algorithms:
            if str(one) == name:
                return one
        guess = did_you_mean(name, self.algorithms)
        raise OptionError(
            f"collective: {guess}expected {', '.join(self.algorithms)}, got {name!r:.60}"
        )

    def algorithm(self, collective: Named, name: str) -> StockAlgorithm:
        """The algorithm of that name.

        Raises:
            OptionError: if there is none.
        """
        known = {one.name: one for one in self.algorithms.get(collective, ())}
        if name not in known:
            guess = did_you_mean(name, known)
            raise OptionError(
                f"{self.name}: {collective}: {guess}expected {', '.join(known) or 'no algorithm'}, "
                f"got {name!r:.60}"
            )
        return known[name]


def _power_of_two(ranks: int) -> bool:
    return not ranks & (ranks - 1)


def _even(ranks: int) -> bool:
    return ranks % 2 == 0


_OPENMPI: dict[Named, tuple[StockAlgorithm, ...]] = {
    "all_reduce": (
        StockAlgorithm("basic_linear", algorithms.reduce_then_broadcast, 1),
        StockAlgorithm("nonoverlapping", algorithms.trees_then_back, 2, tried=False),
        StockAlgorithm("recursive_doubling", algorithms.recursive_doubling, 3),
        StockAlgorithm("ring", algorithms.ring, 4, cuts=True),
        StockAlgorithm("segmented_ring", algorithms.ring, 5, tried=False),
        StockAlgorithm("rabenseifner", algorithms.halving_doubling, 6, cuts=True),
    ),
    "all_gather": (
        StockAlgorithm("bruck", algorithms.gather_bruck, 2),
        StockAlgorithm("recursive_doubling", algorithms.gather_doubling, 3),
        StockAlgorithm("ring", algorithms.gather_ring, 4),
        StockAlgorithm("neighbor", algorithms.gather_neighbor, 5, needs=_even),
        StockAlgorithm("two_proc", algorithms.gather_doubling, 6, tried=False),
        StockAlgorithm("sparbit", algorithms.gather_sparbit, 7, needs=_power_of_two),
    ),
    "broadcast": (
        StockAlgorithm("basic_linear", algorithms.linear, 1),
        StockAlgorithm("chain", algorithms.chain, 2, tried=False),
        StockAlgorithm("pipeline", algorithms.chain, 3, segments=(0, *_SEGMENTS)),
        StockAlgorithm("split_binary_tree", algorithms.binary, 4, tried=False),
        StockAlgorithm("binary_tree", algorithms.binary, 5, segments=(0, *_SEGMENTS)),
        StockAlgorithm("binomial", algorithms.binomial, 6, segments=(0, *_SEGMENTS)),
        StockAlgorithm("knomial", algorithms.knomial, 7, segments=(0, *_SEGMENTS)),
        StockAlgorithm("scatter_allgather", algorithms.scatter_doubling, 8, cuts=True),
        StockAlgorithm("scatter_allgather_ring", algorithms.scatter_ring, 9, cuts=True),
    ),
    "reduce_scatter": (
        StockAlgorithm("non-overlapping", algorithms.reduce_then_scatter, 1),
        StockAlgorithm("recursive_halving", algorithms.scatter_far_halving, 2),
        StockAlgorithm("ring", algorithms.gather_ring, 3, cuts=True),
        StockAlgorithm("butterfly", algorithms.scatter_butterfly, 4, needs=_power_of_two),
    ),
    "all_to_all": (
        StockAlgorithm("linear", algorithms.all_pairs, 1),
        StockAlgorithm("pairwise", algorithms.pairwise, 2),
        StockAlgorithm("modified_bruck", algorithms.bruck, 3),
        StockAlgorithm("linear_sync", algorithms.all_pairs, 4),
        StockAlgorithm("two_proc", algorithms.pairwise, 5, tried=False),
    ),
}
_OPENMPI_DEFAULTS: dict[Named, tuple[bool, str]] = {
    "all_reduce": (
        False,
        "4: 4<8 3<4096 4<8192 3<16384 4<65536 5<262144 6; 8: 4<16 3<8192 6; 16: 3<8192 6; "
        "32: 5<64 3<4096 6; 64: 5<128 6; 128: 3<262144 6; 256: 2<131072 3<262144 6; "
        "512: 2<4096 6; 2048: 2<2048 3<16384 6",
    ),
    "all_gather": (
        True,
        "3: 6; 32: 3; 64: 3<1024 5<65536 4; 128: 3<512 5<65536 4; "
        "256: 3<512 5<131072 4<524288 5<1048576 4; "
        "512: 3<32 2<128 3<1024 5<131072 4<524288 5<1048576 4; 1024: 3<64 2<256 3<2048 5; "
        "2048: 3<4 2<8 3<16 2<32 3<256 2<512 3<4096 5",
    ),
    "broadcast": (
        False,
        "4: 3<32 5<256 3<512 7<1024 1<32768 5<131072 2<262144 1<524288 6<1048576 5; "
        "8: 5<64 6<128 5<2048 6<8192 1<1048576 2; 16: 7<8 5<64 7<4096 5<16384 6<32768 1; "
        "32: 7<4096 6<1048576 8; 64: 6<2048 7; 128: 7; 256: 6<2 5<16384 1<32768 5<65536 7; "
        "1024: 7<16384 4<32768 7; 2048: 7<524288 8",
    ),
    "reduce_scatter": (
        False,
        "4: 3<65536 4<131072 3; 8: 1<8 2<262144 3; 32: 2<262144 3; 64: 1<64 2<2048 4<524288 3; "
        "128: 1<256 2<512 4<2048 2<4096 4; 256: 1<256 2<512 4; 512: 1<256 2<1024 4; "
        "1024: 1<512 2<2048 4<8192 2<16384 4; 2048: 1<512 2<4096 4<16384 2<32768 4",
    ),
    "all_to_all": (
        True,
        "3: 2<2 5<4 2<16 5<64 2<256 5<4096 2<32768 4<262144 5<1048576 2; "
        "8: 4<8192 1<16384 4<65536 1<524288 2<1048576 1; 16: 4<262144 1; "
        "32: 4<4 3<512 4<8192 1<32768 4<262144 1<524288 4; 64: 3<512 1<524288 4; "
        "128: 3<1024 1<2048 4<4096 1<262144 2; 256: 3<1024 4<2048 1<262144 2; "
        "512: 3<1024 4<8192 1<32768 2; 1024: 3<512 4<8192 1<16384 4<131072 1<262144 2; "
        "2048: 3<512 4<1024 1<2048 4<16384 1<262144 4",
    ),
}
"""The choices of Open MPI 5.0 for commutative operations (``coll_tuned_decision_fixed.c``): whether
sizes are per rank; then, by the number of ranks below which a row applies, the number of each
algorithm and the size below which it is used. Its rules file counts all ranks' bytes together."""


def _openmpi_default(collective: Named, ranks: int, size: float) -> str:
    per_rank, text = _OPENMPI_DEFAULTS[collective]
    rows = (row.split(":") for row in text.split(";"))
    row = next(steps for below, steps in rows if ranks < int(below))
    counted = size / ranks if per_rank else size
    for step in row.split():
        number, _, below = step.partition("<")
        if not below or counted < int(below):
            return next(one.name for one in _OPENMPI[collective] if one.number == int(number))
    raise AssertionError(row)  # every row ends with an algorithm for all larger sizes


_MPICH: dict[Named, tuple[StockAlgorithm, ...]] = {
    "all_reduce": (
        StockAlgorithm("recursive_doubling", algorithms.recursive_doubling),
        StockAlgorithm("reduce_scatter_allgather", algorithms.halving_doubling, cuts=True),
        # In the lab, its ring took longer than the default where links predict three quarters.
        StockAlgorithm("ring", algorithms.ring, cuts=True, tried=False),
    ),
    "all_gather": (
        StockAlgorithm("brucks", algorithms.gather_bruck),
        StockAlgorithm("recursive_doubling", algorithms.gather_doubling, needs=_power_of_two),
        StockAlgorithm("ring", algorithms.gather_ring),
    ),
    "broadcast": (
        StockAlgorithm("binomial", algorithms.binomial_in_turn),
        StockAlgorithm(
            "scatter_recursive_doubling_allgather", algorithms.scatter_doubling, cuts=True
        ),
        StockAlgorithm("scatter_ring_allgather", algorithms.scatter_ring, cuts=True),
        StockAlgorithm("pipelined_tree", algorithms.chain, segments=_SEGMENTS, cuts=True),
    ),
    "reduce_scatter": (
        StockAlgorithm("recursive_halving", algorithms.scatter_far_halving),
        StockAlgorithm("pairwise", algorithms.pairwise, cuts=True),
    ),
    "all_to_all": (
        StockAlgorithm("brucks", algorithms.bruck),
        StockAlgorithm("scattered", algorithms.all_pairs),
        StockAlgorithm("pairwise", algorithms.pairwise),
    ),
}


def _mpich_default(collective: Named, ranks: int, size: float) -> str:
    """What MPICH 4 and 5 use with one process per host.

    Source: ``maint/tuning/coll/mpir/generic.json``, for elements of 4 bytes.
    """
    power = _power_of_two(ranks)
    if collective == "all_reduce":
        small = size <= 8 or size < 4 * (1 << (ranks.bit_length() - 1))
        return "recursive_doubling" if small else "reduce_scatter_allgather"
    if collective == "all_gather":
        if size >= (524288 if power else 81920):
            return "ring"
        return "recursive_doubling" if power else "brucks"
    if collective == "broadcast":
        if ranks < 8 or size <= 12288:
            return "binomial"
        doubles = power and size <= 524288
        return "scatter_recursive_doubling_allgather" if doubles else "scatter_ring_allgather"
    if collective == "reduce_scatter":
        return "recursive_halving" if size < 524288 else "pairwise"
    if size / ranks <= 256 and ranks >= 8:
        return "brucks"
    return "scattered" if size / ranks <= 32768 else "pairwise"


def _nccl_tree(ranks: int, size: float, segment: float) -> list[Phase]:
    return algorithms.double_tree(ranks, size, NCCL_STEP_BYTES)


_NCCL: dict[Named, tuple[StockAlgorithm, ...]] = {
    "all_reduce": (StockAlgorithm("ring", algorithms.ring), StockAlgorithm("tree", _nccl_tree))
}
_UCC: dict[Named, tuple[StockAlgorithm, ...]] = {
    "all_reduce": (
        StockAlgorithm("knomial", algorithms.recursive_doubling),
        StockAlgorithm("sra_knomial", algorithms.halving_doubling, cuts=True),
        StockAlgorithm("ring", algorithms.ring, cuts=True),
    ),
    "all_gather": (
        StockAlgorithm("knomial", algorithms.gather_doubling),
        StockAlgorithm("ring", algorithms.gather_ring),
        StockAlgorithm("neighbor", algorithms.gather_neighbor, needs=_even),
        StockAlgorithm("bruck", algorithms.gather_bruck),
        StockAlgorithm("sparbit", algorithms.gather_sparbit, needs=_power_of_two),
    ),
    "broadcast": (
        StockAlgorithm("knomial", algorithms.knomial),
        StockAlgorithm("sag_knomial", algorithms.scatter_doubling, cuts=True),
    ),
}


def _ucc_default(collective: Named, ranks: int, size: float) -> str:
    """What UCC uses for memory of hosts (``*_DEFAULT_ALG_SELECT_STR`` of ``tl/ucp``)."""
    if collective == "broadcast":
        return "knomial" if size < 32 * _KIB or ranks == 2 else "sag_knomial"
    if size < 4 * _KIB:
        return "knomial"
    if collective == "all_reduce":
        return "sra_knomial"
    return "neighbor" if _even(ranks) else "ring"


_ONECCL: dict[Named, tuple[StockAlgorithm, ...]] = {
    "all_reduce": (
        StockAlgorithm("recursive_doubling", algorithms.recursive_doubling),
        StockAlgorithm("rabenseifner", algorithms.halving_doubling, cuts=True),
        StockAlgorithm("ring", algorithms.ring, cuts=True),
    ),
}


def _unknown(collective: Named, ranks: int, size: float) -> None:
    """A library's default that depends on what a network's file does not say."""


LIBRARIES: dict[str, Library] = {
    "openmpi": Library("openmpi", "mpi", _OPENMPI, _openmpi_default),
    "mpich": Library("mpich", "mpi", _MPICH, _mpich_default),
    # Below, NCCL's protocols decide, which a table of algorithms would have to name too.
    "nccl": Library("nccl", "nccl", _NCCL, _unknown, least_bytes=_MIB),
    "ucc": Library("ucc", "mpi", _UCC, _ucc_default),
    "oneccl": Library("oneccl", "mpi", _ONECCL, _unknown),
}
"""The libraries that have tables of algorithms."""
