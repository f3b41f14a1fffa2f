"""Output of nccl-tests: what is read of it, and one line for what is not."""

import json
import random
from pathlib import Path

import pytest

from gradweave.errors import FileError, OptionError
from gradweave.probe.nccl_tests import PROGRAMS, Measurement, read_measurements
from gradweave.simulator.bandwidths import bus_factor

HEADS = (
    "#                                                              out-of-place          \n"
    "#       size         count      type   redop    root     time   algbw   busbw #wrong"
    "     time   algbw   busbw #wrong\n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)       "
    "     (us)  (GB/s)  (GB/s)\n"
)
END = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 2.5\n#\n"
ROWS = ((1 << 20, 500.0), (1 << 26, 20000.0))
"""Bytes and microseconds: 2.10 and 3.36 GB/s."""


def row(size: int, us: float, factor: float, redop: str = "sum", root: int = -1) -> str:
    """A line as ``writeBenchmarkLinePreamble`` and ``writeBenchmarkLineBody`` print it."""
    algbw = size / us / 1e3
    body = f"  {us:7.2f}  {algbw:6.2f}  {algbw * factor:6.2f}  {0:6g}"
    return f"{size:12d}  {size // 4:12d}  {'float':>8}  {redop:>6}  {root:6d}{body}{body}\n"


def devices(ranks: int, each: int = 8) -> str:
    lines = "".join(
        f"#  Rank {rank:2d} Group  0 Pid   6899 on node{rank // each} device {rank % each:2d} "
        f"[0000:{rank:02x}:00] NVIDIA H100 80GB HBM3\n"
        for rank in range(ranks)
    )
    return f"# Using devices\n{lines}#\n"


def output(program: str = "all_reduce", ranks: int = 4, **given: object) -> str:
    factor = bus_factor(PROGRAMS[program], ranks)
    rows = "".join(row(size, us, factor, **given) for size, us in ROWS)  # type: ignore[arg-type]
    start = "# nccl-tests version 2.18.3 nccl-headers=22809 nccl-library=22809\n"
    start += f"# Collective test starting: {program}_perf\n"
    return start + devices(ranks) + HEADS + rows + END


def read(tmp_path: Path, text: str, **given: object) -> tuple[Measurement, ...]:
    file = tmp_path / "all.log"
    file.write_text(text)
    return read_measurements(file, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_every_program_is_read(tmp_path: Path, program: str):
    (one,) = read(tmp_path, output(program))
    assert (one.collective, one.ranks) == (PROGRAMS[program], 4)
    assert [(point.bytes, point.seconds) for point in one.points] == [
        (1 << 20, 5e-4),
        (1 << 26, 2e-2),
    ]
    assert one.hosts == ("node0",) * 4
    assert one.device == "NVIDIA H100 80GB HBM3"
    assert one.library == "NCCL 2.28.9"
    assert one.average_bus_bytes_per_s == 2.5e9
    assert one.points[1].algorithm_bytes_per_s == pytest.approx(3.36e9)


def test_a_root_is_read(tmp_path: Path):
    (one,) = read(tmp_path, output("broadcast", redop="none", root=2))
    assert one.root == 2


@pytest.mark.parametrize("label", ["[1,0]<stdout>:", " 0: ", "    ", "\t"])
def test_labels_of_launchers_are_left_out(tmp_path: Path, label: str):
    text = "".join(label + line for line in output().splitlines(keepends=True))
    assert read(tmp_path, text) == read(tmp_path, output())


def test_lines_of_a_log_are_left_out(tmp_path: Path):
    inside = "node0:3442:3442 [0] NCCL INFO Launch mode Parallel\n"
    lines = output().splitlines(keepends=True)
    assert read(tmp_path, inside.join(lines)) == read(tmp_path, output())


def test_timestamps_and_other_columns_are_left_out(tmp_path: Path):
    text = output().replace("#wrong\n", "#wrong           timestamp\n")
    text = text.replace("      0\n", "      0  2026-11-30 01:02:03\n")
    assert text != output()
    assert read(tmp_path, text) == read(tmp_path, output())
    extra = output().replace("#wrong\n", "#wrong     algo     proto   nchannels\n")
    extra = extra.replace("      0\n", "      0     RING    SIMPLE          32\n")
    assert read(tmp_path, extra) == read(tmp_path, output())  # rccl-tests -M


def test_several_runs_in_one_file(tmp_path: Path):
    found = read(tmp_path, output() + output("alltoall", ranks=8))
    assert [(one.collective, one.ranks) for one in found] == [("all_reduce", 4), ("all_to_all", 8)]


def test_a_run_that_ended_early(tmp_path: Path):
    early = output()[: output().index("# Out of")]
    (one,) = read(tmp_path, early)
    assert len(one.points) == 2
    assert one.average_bus_bytes_per_s is None
    found = read(tmp_path, early + output("alltoall", ranks=8))
    assert [(one.collective, one.ranks) for one in found] == [("all_reduce", 4), ("all_to_all", 8)]


def test_rows_of_one_placement(tmp_path: Path):
    """``writeBenchMarkLineNullBody`` leaves the figures out of place blank."""
    rows = [row(size, us, 1.5) for size, us in ROWS]
    half = "".join(" ".join(line.split()[:5] + line.split()[-4:]) + "\n" for line in rows)
    text = output().replace("".join(rows), half)
    assert text != output()
    assert read(tmp_path, text) == read(tmp_path, output())


@pytest.mark.parametrize("ranks", [2, 3, 8, 16])
def test_ranks_are_inferred_from_bandwidths(tmp_path: Path, ranks: int):
    text = HEADS + row(1 << 33, 50000, bus_factor("all_reduce", ranks)) + END
    (one,) = read(tmp_path, text)
    assert (one.collective, one.ranks) == ("all_reduce", ranks)


def test_old_columns_name_the_collective(tmp_path: Path):
    """Before 2.11, each program printed the columns that it uses."""
    heads = HEADS.replace("   redop    root", "")
    lines = [row(1 << 33, 50000, 7 / 8).replace("     sum      -1", "")]
    (one,) = read(tmp_path, heads + lines[0] + END)
    assert (one.collective, one.ranks) == ("all_gather", 8)
    heads = HEADS.replace("    root", "")
    (one,) = read(tmp_path, heads + lines[0] + END)
    assert one.collective == "all_to_all"  # with an empty operator


def test_the_processors_time_is_not_the_operations(tmp_path: Path):
    """With -C, the time printed is that of the calls; the bandwidth is still the operation's."""
    text = output().replace("    time", " cputime").replace("20000.00", "   12.00")
    (one,) = read(tmp_path, text)
    assert one.points[1].seconds == pytest.approx((1 << 26) / 3.36e9)


def as_json(**changes: object) -> str:
    def body(us: float) -> dict[str, float]:
        rate = (1 << 26) / us / 1e3
        return {"time": us, "alg_bw": rate, "bus_bw": rate * 1.875, "nwrong": 0.0}

    each = [{"rank": n, "hostname": f"n{n // 4}", "device_info": "H100"} for n in (0, 4, 8, 12)]
    shape = {"size": 1 << 26, "count": 1 << 24, "type": "float", "redop": "sum", "root": "    -1"}
    whole = {
        "version": 3,
        "args": ["./build/all_reduce_perf_mpi", "-J", "x.json"],
        "nccl_version": 22809,
        "config": {"nthreads": 1, "ngpus": 4, "devices": each},
        "results": [{**shape, "out_of_place": body(20000.0), "in_place": body(21000.0)}],
        "average_bus_bandwidth": {"bandwidth": 6.1, "okay": "unchecked"},
    }
    return json.dumps(whole | changes)


def test_json_is_read(tmp_path: Path):
    """Four processes of four GPUs each, of which it lists the first."""
    (one,) = read(tmp_path, as_json())
    assert (one.collective, one.ranks, one.library) == ("all_reduce", 16, "NCCL 2.28.9")
    assert len(one.hosts) == 16 and len(set(one.hosts)) == 4
    assert one.points[0].seconds == 0.02
    assert one.average_bus_bytes_per_s == pytest.approx(6.1e9)


def test_json_names_its_program(tmp_path: Path):
    body = {"time": 20000.0, "alg_bw": 3.2, "bus_bw": 3.0, "nwrong": None}
    row = {"size": 1 << 26, "redop": "none", "root": "    -1", "out_of_place": None}
    given = {"args": ["alltoall_perf"], "results": [row | {"in_place": body}]}
    (one,) = read(tmp_path, as_json(**given))
    assert (one.collective, one.ranks, one.points[0].wrong) == ("all_to_all", 16, 0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "expected a table of nccl-tests"),
        ("hello\n", "expected a table of nccl-tests"),
        (HEADS + END, "line 2: expected rows with a size and a time, got none"),
        (output().replace("20000.00", "   XXXXX"), "time: expected a number of at least 0"),
        (output().replace("20000.00", "-20000.0"), "time: expected a number of at least 0"),
        (output().replace("20000.00", "     nan"), "time: expected a number of at least 0"),
        (output().replace("20000.00", "     inf"), "time: expected a number of at least 0"),
        (output().replace(": 2.5", ": much"), "bandwidth: expected a number"),
        (output(ranks=4).replace(devices(4), devices(3)), "all_reduce among 3 ranks"),
        (output(ranks=4).replace(devices(4), devices(1)), "expected at least two ranks"),
        (output().replace(devices(4), devices(1) * 4), "build nccl-tests with MPI=1"),
        (output("broadcast").replace(devices(4), ""), "give --ranks"),
        (HEADS + row(1 << 26, 2e6, 0.99, "none"), "give --collective"),
        (HEADS + row(1 << 20, 2e6, 1.75), "give --ranks"),
        ("{", "not valid JSON"),
        ("[{}]", "expected the JSON that nccl-tests -J writes"),
        (as_json(results={}), "expected the JSON that nccl-tests -J writes"),
        (as_json(results=[]), "expected rows with a size"),
        (as_json(results=[{"size": "1"}]), "results[0]: expected an object with a size"),
        (as_json(results=[{"size": 1}]), "results[0]: expected out_of_place or in_place"),
        (as_json(results=[{"size": 1, "in_place": {"time": 1}}]), "alg_bw: expected a number"),
        (as_json(config={"ngpus": -1}), "config: nthreads, ngpus"),
        (as_json(config=[]), "give --ranks"),
    ],
)
def test_bad_output_gets_one_line(tmp_path: Path, text: str, says: str):
    if says == "give --ranks" and text.startswith("{"):
        text = text.replace("22809", "0")
        text = text.replace('"bus_bw": 6.', '"bus_bw": 0.').replace('"alg_bw": 3.', '"alg_bw": 0.')
    with pytest.raises(FileError) as caught:
        read(tmp_path, text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_names_and_files(tmp_path: Path):
    with pytest.raises(OptionError, match="did you mean all_reduce"):
        read(tmp_path, output(), collective="allreduce")
    with pytest.raises(FileError, match="No such file"):
        read_measurements(tmp_path / "none.log")


def test_mutated_output_is_read_or_refused(tmp_path: Path):
    """Any other exception fails the test."""
    rng = random.Random(1)
    words = ["", "-1", "9" * 400, "nan", "N/A", "1e309", "#", "size", "\0", "Rank", "{", "9.9"]
    texts = [output(), output("broadcast", root=1), as_json()]
    refused = 0
    for _ in range(400):
        text = rng.choice(texts)
        for _ in range(rng.randint(1, 3)):
            at, end = sorted(rng.sample(range(len(text)), 2))
            text = text[:at] + rng.choice(words) + text[min(end, at + rng.randint(0, 40)) :]
        try:
            read(tmp_path, text)
        except FileError as error:
            assert "\n" not in str(error)
            refused += 1
    assert 60 < refused < 400
