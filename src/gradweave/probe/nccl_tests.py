"""Output of nccl-tests and rccl-tests, as text and as JSON: measured times of collectives.

Sources: ``src/util.cu`` and ``doc/PERFORMANCE.md`` of nccl-tests 2.20 (text and ``-J``), and
``src/common.cu`` of rccl-tests. The sizes printed are those of the largest buffer of a rank: the
result of an all-gather, the input of a reduce-scatter or an all-to-all.
"""

import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gradweave.common.checks import did_you_mean
from gradweave.common.wording import counted
from gradweave.errors import FileError, OptionError
from gradweave.simulator.bandwidths import bus_factor

PROGRAMS = {
    "all_reduce": "all_reduce",
    "all_reduce_bias": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all_v",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "sendrecv": "send_recv",
    "hypercube": "hypercube",
}
"""The collective of each program, without ``_perf``."""
COLLECTIVES = tuple(dict.fromkeys(PROGRAMS.values()))
"""The names of collectives."""
_MOST_RANKS = 1 << 16
_MOST = 1e18
"""Above any figure that is meant."""
_LONGEST = 1000
"""Characters of a line about a device, at most."""
_PROGRAM = re.compile(rf"\b({'|'.join(PROGRAMS)})_perf")
_START = re.compile(rf"Collective test starting: +({'|'.join(PROGRAMS)})_perf")
_DEVICE = re.compile(r"(?:#\s+)?\bRank +(\d{1,7}) .*? on +(\S+) +device +\d+ +\[[^]]*\] *(.*)")
_INTEGER = re.compile(r"[0-9]{1,18}")
_HEADS = re.compile(r"#\s+size\s+count\s.*(?:cpu)?time\s+algbw\s+busbw")
_PREFIX = re.compile(r"^\s*(?:\[\d+,\d+\]<std\w+>:|\d+:)\s?")
"""What mpirun ``--tag-output`` and srun ``--label`` write before each line."""
_STAMP = re.compile(r"\s\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$")
_LIBRARY = re.compile(
    r"(nccl|rccl)-library=(\d{1,7})|RCCL version\D*([\d.]+)|NCCL version ([\d.]+)"
)


@dataclasses.dataclass(frozen=True)
class Point:
    """One size: the mean time of an operation, and the bandwidths as printed."""

    bytes: int
    seconds: float
    algorithm_bytes_per_s: float
    bus_bytes_per_s: float
    wrong: int = 0
    """Elements of the result that were wrong; 0 if they were not checked."""


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One table: a collective among some ranks at several sizes."""

    collective: str
    """One of `COLLECTIVES`."""
    ranks: int
    points: tuple[Point, ...]
    root: int | None = None
    hosts: tuple[str, ...] = ()
    """The host of each rank; empty if the output does not name them."""
    device: str = ""
    """The name of the first device; empty if it is not known."""
    library: str = ""
    """Library and version, such as ``NCCL 2.28.9``; empty if it is not known."""
    average_bus_bytes_per_s: float | None = None
    """``Avg bus bandwidth``: the mean over all sizes, in place and out of place."""

    @property
    def factor(self) -> float:
        """Bus bandwidth per algorithm bandwidth."""
        return bus_factor(self.collective, self.ranks)


def read_measurements(
    path: str | Path, *, collective: str | None = None, ranks: int | None = None
) -> tuple[Measurement, ...]:
    """Reads the output of nccl-tests or rccl-tests: its text, or the file of ``-J``.

    Lines of launchers and of NCCL's log may be in between, and several runs in one file.

    Args:
        path: the file.
        collective: one of `COLLECTIVES`, for text that does not name its program.
        ranks: the number of ranks, for text that does not show it.

    Raises:
        FileError: the file cannot be read, has no table, or its figures contradict each other.
        OptionError: the collective is unknown.
    """
    if collective is not None and collective not in COLLECTIVES:
        guess = did_you_mean(collective, COLLECTIVES)
        raise OptionError(
            f"collective: {guess}expected {', '.join(COLLECTIVES)}, got {collective!r:.60}"
        )
    try:
        text = Path(path).read_bytes().decode("utf-8-sig", errors="replace")
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from error
    try:
        if re.match(r"\s*(?:\{|\[\s*\{)", text):
            return (_of_json(text, collective, ranks),)
        return tuple(_of_text(text, collective, ranks))
    except FileError as error:
        raise FileError(f"{path}: {error}") from None


@dataclasses.dataclass
class _Header:
    """What stands above a table."""

    heads: list[str] = dataclasses.field(default_factory=list)
    program: str | None = None
    devices: list[tuple[int, str, str]] = dataclasses.field(default_factory=list)
    library: str = ""
    line: int = 1


def _of_text(text: str, collective: str | None, ranks: int | None) -> Iterator[Measurement]:
    programs = set(_PROGRAM.findall(text))
    given = collective, ranks, programs.pop() if len(programs) == 1 else None
    header, rows, found = _Header(), list[Row](), 0
    for at, line in enumerate((_PREFIX.sub("", line) for line in text.splitlines()), 1):
        if header.heads and (row := _row(header.heads, line, at)) is not None:
            rows.append(row)
            continue
        average = re.search(r"Avg bus bandwidth\s*:\s*(\S+)", line) if header.heads else None
        started, device = _START.search(line), _DEVICE.search(line[:_LONGEST])
        heads = _HEADS.match(line.strip())
        if average or (rows and (started or device or heads)):  # or it ended early
            mean = None if average is None else 1e9 * _number(average[1], at, "bandwidth")
            yield _measurement(rows, header, given, mean)
            header, rows, found = _Header(library=header.library), [], found + 1
        if heads:
            header.heads, header.line = line.strip("# \t").split(), at
        elif started:
            header.program = started[1]
        elif device:
            header.devices.append((int(device[1]), device[2], device[3].strip()))
        elif (version := _LIBRARY.search(line)) and not header.library:
            header.library = _version(*version.groups())
    if rows:
        yield _measurement(rows, header, given)
    elif not found:
        raise FileError(
            "expected a table of nccl-tests, with the columns size, count, …, time, algbw and "
            "busbw, got none" + " with rows" * bool(header.heads)
        )


def _version(kind: str | None, code: str | None, rccl: str | None, nccl: str | None) -> str:
    if code is None:
        return f"RCCL {rccl}" if rccl else f"NCCL {nccl}"
    number = int(code)
    # NCCL_VERSION: major, minor and patch; with two digits for the minor one from 2.9 on.
    split = (10_000, 100) if number >= 10_000 else (1_000, 100)
    major, rest = divmod(number, split[0])
    return f"{str(kind).upper()} {major}.{rest // split[1]}.{rest % split[1]}"


Row = tuple[Point, str | None, int | None]
"""A point, its operator (None if there is none) and its root (None without)."""


def _row(heads: Sequence[str], line: str, at: int) -> Row | None:
    """A line of a table, or None for other lines, which logs have in between."""
    words = _STAMP.sub("", line.rstrip()).split()
    if len(words) < 6 or not all(_INTEGER.fullmatch(word) for word in words[:2]):
        return None
    first = next(place for place, head in enumerate(heads) if head.endswith("time"))
    last = [head for head in heads[first:] if head != "timestamp"]
    figures, before = words[-len(last) :], words[2 : -len(last)]
    if len(before) > 3 or not before or not all(word.isalnum() or word == "-1" for word in before):
        figures, before = _one_body(last, words)
    bodies = _bodies(last, figures, at)
    size = int(words[0])
    operator = next((word for word in before[1:] if word.isalpha()), None)
    roots = [int(word) for word in before[1:] if re.fullmatch(r"-1|\d{1,9}", word)]
    root = roots[-1] if roots and roots[-1] >= 0 else None
    return _point(size, bodies), (None if operator == "none" else operator), root


def _one_body(last: list[str], words: list[str]) -> tuple[list[str], list[str]]:
    """Figures and the words before them, in a row that has figures of one placement only."""
    half = len(last) // 2
    return words[-half:], words[2:-half]


def _bodies(heads: list[str], figures: list[str], at: int) -> list[dict[str, float]]:
    """Time, bandwidths and errors of each placement: out of place first, where both are there."""
    bodies: list[dict[str, float]] = []
    for head, word in zip(heads, figures, strict=False):
        if head.endswith("time"):
            bodies.append({})
        if bodies and head in ("time", "cputime", "algbw", "busbw", "#wrong", "error"):
            known = "N/A" if head in ("#wrong", "error") else ""
            bodies[-1][head] = 0.0 if word == known else _number(word, at, head)
    whole = [body for body in bodies if {"algbw", "busbw"} <= body.keys()]
    if not whole:
        raise FileError(f"line {at}: expected time, algbw and busbw, got {' '.join(figures)!r:.60}")
    return whole


def _number(word: str, at: int, name: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = -1.0
    if not 0 <= value < _MOST:
        raise FileError(f"line {at}: {name}: expected a number of at least 0, got {word!r:.40}")
    return value


def _point(size: int, bodies: list[dict[str, float]]) -> Point:
    """The first placement; with ``-C``, the printed time is the processor's, which is left out."""
    body = bodies[0]
    per_s = body["algbw"] * 1e9
    if "time" in body:
        seconds = body["time"] / 1e6
    else:
        seconds = size / per_s if per_s else 0.0
    wrong = max(int(one.get("#wrong", 0)) for one in bodies)  # a column "error" is a difference
    return Point(size, seconds, per_s, body["busbw"] * 1e9, wrong)


def _measurement(
    rows: list[Row],
    header: _Header,
    given: tuple[str | None, int | None, str | None],
    average: float | None = None,
) -> Measurement:
    collective, ranks, program = given
    program = header.program or program
    points = tuple(point for point, *_ in rows if point.bytes and point.seconds)
    if not points:
        raise FileError(f"line {header.line}: expected rows with a size and a time, got none")
    numbers = [number for number, *_ in header.devices]
    if len(numbers) > 1 and set(numbers) == {0}:
        raise FileError(
            f"{counted(len(numbers), 'process', 'processes')} of rank 0 and no other rank: each "
            "measured one GPU alone; build nccl-tests with MPI=1"
        )
    shown = max(numbers) + 1 if numbers else None
    operator, root = rows[0][1], rows[0][2]
    if collective is None and program is not None:
        collective = PROGRAMS[program]
    if collective is None:
        collective = _inferred(points, operator, root, header.heads)
    hosts = tuple(host for _, host, _ in sorted(header.devices)) if shown == len(numbers) else ()
    count = _checked_ranks(points, collective, ranks or shown)
    device = header.devices[0][2] if header.devices else ""
    return Measurement(collective, count, points, root, hosts, device, header.library, average)


def _inferred(
    points: tuple[Point, ...], operator: str | None, root: int | None, heads: Sequence[str]
) -> str:
    """The collective by its operator and root, if the bandwidths leave one possibility.

    Before version 2.11, a program printed only those of these columns that it uses, but for an
    all-to-all an empty operator.
    """
    factor = _shown_factor(points)
    if operator is not None and root is None:
        return "reduce_scatter" if factor < 0.995 else "all_reduce"
    if operator is not None:
        return "reduce"
    if factor > 0.999 and root is not None:
        return "broadcast"
    if heads and "root" not in heads and factor < 0.995:
        return "all_to_all" if "redop" in heads else "all_gather"
    raise FileError(
        "expected a line '# Collective test starting: …' or the command, to know the collective; "
        f"give --collective {', '.join(COLLECTIVES)}"
    )


def _checked_ranks(points: tuple[Point, ...], collective: str, ranks: int | None) -> int:
    """The number of ranks that the ratio of the bandwidths shows, or that is given."""
    if ranks is not None:
        if ranks < 2:
            raise FileError("expected at least two ranks, got one, which moves nothing")
        if not _fits(points, collective, ranks):
            raise FileError(
                f"{collective} among {counted(ranks, 'rank')}: expected busbw to be "
                f"{bus_factor(collective, ranks):.4g} of algbw, got "
                f"{_shown_factor(points):.4g}; give --ranks or --collective"
            )
        return ranks
    if bus_factor(collective, 2) == bus_factor(collective, 3):
        raise FileError(f"expected lines '#  Rank …' for {collective}; give --ranks")
    near = _shown_factor(points) / (2 if collective == "all_reduce" else 1)
    likely = round(1 / max(1 - near, 1 / _MOST_RANKS))
    around = range(max(2, likely // 2), min(likely * 2, _MOST_RANKS) + 2)
    fitting = [count for count in around if _fits(points, collective, count)]
    if len(fitting) != 1:
        possible = f"{fitting[0]} to {fitting[-1]} are possible" if fitting else "no number fits"
        raise FileError(f"expected lines '#  Rank …' with the ranks ({possible}); give --ranks")
    return fitting[0]


def _shown_factor(points: tuple[Point, ...]) -> float:
    best = max(points, key=lambda point: point.algorithm_bytes_per_s)
    return best.bus_bytes_per_s / max(best.algorithm_bytes_per_s, 1e-300)


def _fits(points: tuple[Point, ...], collective: str, ranks: int) -> bool:
    """Whether all bandwidths are as printed, with two digits after the point or fewer in all."""
    factor = bus_factor(collective, ranks)
    return all(
        abs(one.algorithm_bytes_per_s * factor - one.bus_bytes_per_s)
        <= _rounding(one.algorithm_bytes_per_s) * factor + _rounding(one.bus_bytes_per_s)
        for one in points
    )


def _rounding(bytes_per_s: float) -> float:
    """Half of the last digit that nccl-tests prints of a bandwidth in six columns."""
    return 0.51e9 * (0.01 if bytes_per_s < 1e12 else 0.1 if bytes_per_s < 1e13 else 1)


def _of_json(text: str, collective: str | None, ranks: int | None) -> Measurement:
    import msgspec

    try:
        data = msgspec.json.decode(text.encode())
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise FileError(f"not valid JSON: {error}") from None
    if not isinstance(data, dict) or not isinstance(data.get("results"), list):
        raise FileError("expected the JSON that nccl-tests -J writes, with results; got other JSON")
    config = data.get("config")
    config = config if isinstance(config, dict) else {}
    devices = [one for one in config.get("devices") or () if isinstance(one, dict)]
    arguments = data.get("args") or ()
    program = next((found[1] for one in arguments if (found := _PROGRAM.search(str(one)))), None)
    rows = [_json_row(one, number) for number, one in enumerate(data["results"])]
    header = _Header(program=program)
    if isinstance(version := data.get("nccl_version"), int) and 0 < version < 10**7:
        header.library = _version("nccl", str(version), None, None)
    average = data.get("average_bus_bandwidth")
    average = average.get("bandwidth") if isinstance(average, dict) else None
    # It lists the first device of each process only.
    each = [config.get(key, 1) for key in ("nthreads", "ngpus")]
    if not all(isinstance(one, int) and 0 < one <= _MOST_RANKS for one in each):
        raise FileError(f"config: nthreads, ngpus: expected numbers above 0, got {each!r:.60}")
    shown = len(devices) * each[0] * each[1] or None
    given = collective, ranks or shown, program
    found = _measurement(rows, header, given, 1e9 * average if average else None)
    hosts = [str(one.get("hostname", "")) for one in devices for _ in range(each[0] * each[1])]
    device = str(devices[0].get("device_info", "")) if devices else ""
    return dataclasses.replace(found, hosts=tuple(hosts), device=device)


def _json_row(data: Any, number: int) -> Row:
    where = f"results[{number}]"
    if not isinstance(data, dict) or not isinstance(size := data.get("size"), int):
        raise FileError(f"{where}: expected an object with a size, got {data!r:.40}")
    if not 0 <= size < _MOST:
        raise FileError(f"{where}: size: expected bytes of at least 0, got {size!r:.40}")
    bodies = []
    for place in ("out_of_place", "in_place"):
        body = data.get(place)
        if isinstance(body, dict):
            bodies.append(_json_body(body, f"{where}: {place}"))
    if not bodies:
        raise FileError(f"{where}: expected out_of_place or in_place, got neither")
    operator, root = str(data.get("redop", "")), str(data.get("root", "-1")).strip()
    at = int(root) if re.fullmatch(r"\d{1,9}", root) else None
    return _point(size, bodies), (None if operator in ("", "none") else operator), at


def _json_body(body: dict[str, Any], where: str) -> dict[str, float]:
    names = {"time": "time", "cpu_time": "cputime", "alg_bw": "algbw", "bus_bw": "busbw"}
    found: dict[str, float] = {"#wrong": body.get("nwrong") or 0.0}
    for name, known in names.items():
        if name not in body and name.endswith("time"):
            continue
        value = body.get(name)
        if not isinstance(value, int | float) or not 0 <= value < _MOST:
            raise FileError(f"{where}: {name}: expected a number of at least 0, got {value!r:.40}")
        found[known] = float(value)
    if not isinstance(found["#wrong"], int | float) or not abs(found["#wrong"]) < _MOST:
        raise FileError(f"{where}: nwrong: expected a number, got {found['#wrong']!r:.40}")
    return found
