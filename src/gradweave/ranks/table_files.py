"""Tables of algorithms as the files and variables that libraries read."""

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gradweave.common.atomic import atomic_write
from gradweave.common.checks import did_you_mean
from gradweave.errors import FileError, OptionError
from gradweave.ranks.algorithms import ring
from gradweave.ranks.pattern import pattern_of, routes_of
from gradweave.ranks.stock import Named
from gradweave.ranks.tables import Entry, Table

Json = dict[str, Any]

_OPENMPI_NAMES: dict[Named, tuple[int, str]] = {
    "all_gather": (0, "allgather"),
    "all_reduce": (2, "allreduce"),
    "all_to_all": (3, "alltoall"),
    "broadcast": (7, "bcast"),
    "reduce_scatter": (12, "reduce_scatter"),
}
"""Number and name of each collective (``COLLTYPE`` in ``coll_base_util.h``)."""
_MPICH_NAMES: dict[Named, tuple[str, str, str]] = {
    "all_reduce": ("allreduce", "Allreduce", "avg"),
    "all_gather": ("allgather", "Allgather", "total"),
    "broadcast": ("bcast", "Bcast", "avg"),
    "reduce_scatter": ("reduce_scatter", "Reduce_scatter", "total"),
    "all_to_all": ("alltoall", "Alltoall", "avg"),
}
"""Key and name of each collective, and the size by which it is chosen."""
_PAGE = 4096
_NCCL_MOST = (1 << 63) - 1
"""The upper end of the last range. NVIDIA's README has 4294967295 for all sizes, but its example
and RCCL's tuner compare it with sizes of 64 bits, so that larger buffers would have no rule."""


@dataclasses.dataclass(frozen=True)
class Target:
    """The inputs of a file in addition to the table."""

    base: Path | None = None
    """For MPICH, its library or selection."""
    local_ranks: int = 1
    """Ranks per server, for NCCL and HAN."""


def _openmpi(table: Table, _to: Target) -> str:
    """Dynamic rules of coll/tuned in the classic format, which Open MPI 4 to 6 read."""
    named = table.named()
    ranks = table.num_ranks
    lines = [
        f"# {_title(table)}",
        f"{len(named)}  # collectives",
    ]
    for collective in sorted(named, key=lambda one: _OPENMPI_NAMES[one][0]):
        number, name = _OPENMPI_NAMES[collective]
        # A communicator takes the largest size that is not above its own; the first if all are.
        sizes = [2] * (ranks > 2) + [ranks, ranks + 1]
        lines += [f"{number}  # {name}", f"{len(sizes)}  # communicator sizes"]
        for size in sizes:
            entries = named[collective] if size == ranks else (Entry(0, None),)
            lines += [f"{size}  # ranks", f"{len(entries)}  # rules: bytes algorithm fan segment"]
            for entry in entries:
                rule = f"{entry.from_bytes} {_number(table, collective, entry)} 0 "
                lines.append(f"{rule}{entry.segment_bytes}  # {entry.algorithm or 'default'}")
    return "\n".join(lines) + "\n"


_HAN_NAMES: dict[Named, int] = {"all_gather": 0, "all_reduce": 2, "broadcast": 7}
"""Number of each collective whose leaders HAN lets run an algorithm of coll/tuned."""
_HAN_ALL = 2
"""``GLOBAL_COMMUNICATOR``, the level of the communicator that a program uses."""


def _openmpi_han(table: Table, to: Target) -> str:
    """Rules of coll/han: at which sizes the leaders of nodes run what coll/tuned's rules name.

    With several ranks per node, HAN stands before coll/tuned. Its algorithm ``simple`` gathers or
    reduces within nodes, lets coll/tuned do the collective among one leader per node, and
    spreads its result; other sizes keep HAN's default.
    """
    if to.local_ranks < 2:
        raise OptionError(
            "local-ranks: expected at least 2 with openmpi-han, since Open MPI leaves HAN out with "
            "one rank per node; use --table openmpi"
        )
    named: dict[Named, tuple[Entry, ...]] = {
        one: rows for one, rows in table.named().items() if one in _HAN_NAMES
    }
    if not named:  # a file without rules is an error
        named["all_reduce"] = (Entry(0, None),)
    ranks = table.num_ranks * to.local_ranks
    lines = [f"# {_title(table)}, {to.local_ranks} ranks per node", f"{len(named)}  # collectives"]
    for collective in sorted(named, key=lambda one: _HAN_NAMES[one]):
        name = _OPENMPI_NAMES[collective][1]
        lines += [f"{_HAN_NAMES[collective]}  # {name}", "1  # level", f"{_HAN_ALL}  # all ranks"]
        lines.append("3  # communicator sizes, each up to the next")
        per = ranks if collective == "all_gather" else 1  # whose size is a rank's part
        for size in (1, ranks, ranks + 1):
            rows = [(-(-one.from_bytes // per), one.algorithm) for one in named[collective]]
            rows = rows if size == ranks else [(0, None)]
            lines += [f"{size}  # ranks", f"{len(rows)}  # rules: bytes component"]
            for least, algorithm in rows:
                simple = "" if algorithm is None else f" @simple  # {algorithm} between nodes"
                lines.append(f"{least} han{simple}")
    return "\n".join(lines) + "\n"


def _openmpi_json(table: Table, _to: Target) -> str:
    """Dynamic rules of coll/tuned as JSON, from Open MPI 6 on."""
    made: dict[str, Any] = {}
    for collective, entries in table.named().items():
        rules = []
        for entry, end in _ranges(entries):
            if entry.algorithm is None:
                continue
            last = "inf" if end is None else end - 1
            rule: Json = {"msg_size_min": entry.from_bytes, "msg_size_max": last}
            rule["alg"] = _number(table, collective, entry)
            if entry.segment_bytes:
                rule["seg_size"] = entry.segment_bytes  # read, though the schema lacks it
            rules.append(rule)
        only = {"comm_size_min": table.num_ranks, "comm_size_max": table.num_ranks}
        made[_OPENMPI_NAMES[collective][1]] = [only | {"rules": rules}]
    whole = {"rule_file_version": 3, "module": "tuned", "collectives": made}
    return json.dumps(whole, indent=1) + "\n"


def _number(table: Table, collective: Named, entry: Entry) -> int:
    if entry.algorithm is None:
        return 0
    return table.library.algorithm(collective, entry.algorithm).number


def _mpich(table: Table, to: Target) -> str:
    """MPICH's own selection, changed for communicators of this number of ranks."""
    base = to.base
    if base is None:
        raise OptionError(
            "--base: MPICH reads whole selections, got none; give the libmpi.so of your MPICH, "
            "which contains its own, or a JSON file that you use"
        )
    whole, ranks = mpich_selection(base), table.num_ranks
    for collective, entries in table.named().items():
        key, name, kind = _MPICH_NAMES[collective]
        of = whole.get(f"collective={key}", {})
        if "comm_type=intra" not in of:
            raise FileError(f"{base}: expected {key} between processes of one group, got none")
        before = of["comm_type=intra"]
        at = _at_size(before, ranks)
        per = ranks if collective == "all_to_all" else 1
        chosen: Json = {}
        for entry, end in _ranges(entries):
            limit = "=any" if end is None else f"<{-(-end // per)}"
            chosen[f"{kind}_msg_size{limit}"] = _mpich_algorithm(collective, name, entry) or at
        if collective in ("all_reduce", "reduce_scatter"):
            chosen = {"is_commutative=yes": chosen, "is_commutative=no": at}
        elif collective == "all_to_all":
            chosen = {"is_sendbuf_inplace=yes": at, "is_sendbuf_inplace=no": chosen}
        of["comm_type=intra"] = {
            f"comm_size<{ranks}": before,
            f"comm_size<={ranks}": chosen,
            "comm_size=any": before,
        }
    text = json.dumps(whole, indent=1) + "\n"
    # MPICH maps the file and reads on until a zero byte, which follows only within a page.
    return text + "\n" * (len(text) % _PAGE == 0)


def _mpich_algorithm(collective: Named, name: str, entry: Entry) -> Json | None:
    if entry.algorithm is None:
        return None
    options = {}
    if entry.segment_bytes:
        chain = ("tree_type=kary", "k=1", "is_non_blocking=1", "recv_pre_posted=1")
        options = {option: {} for option in (*chain, f"chunk_size={entry.segment_bytes}")}
    return {f"algorithm=MPIR_{name}_intra_{entry.algorithm}": options}


def _at_size(node: Json, ranks: int) -> Json:
    """The branch for a number of ranks.

    Below conditions on sizes, MPICH reads ``comm_size<8`` as ``<=`` (``MPIR_Csel_search``).
    """
    found: Json = {}
    for key, below in node.items():
        if not key.startswith("comm_size"):
            found[key] = _at_size(below, ranks)
        elif _fits(key.removeprefix("comm_size"), ranks):
            return found | _at_size(below, ranks)
    return found


def _fits(condition: str, ranks: int) -> bool:
    if condition == "=any":
        return True
    if condition == "=pow2":
        return not ranks & (ranks - 1)
    if condition.startswith("<="):
        return ranks <= int(condition[2:])
    return condition.startswith("<") and ranks < int(condition[1:])


def mpich_selection(path: Path) -> Json:
    """MPICH's selection of algorithms: a JSON file, or the one inside its library.

    Args:
        path: a JSON file, or ``libmpi.so``.

    Raises:
        FileError: the file cannot be read, or has no selection.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from error
    library = data.startswith(b"\x7fELF")
    texts = re.findall(rb'\{\s*"collective=[^\0]*', data) if library else [data]
    for text in texts:
        if b'"algorithm=MPIR_' not in text:
            continue
        try:
            found = json.loads(text)
        except ValueError:
            continue
        if isinstance(found, dict) and all(isinstance(one, dict) for one in found.values()):
            return found
    where = "in the library" if library else "as JSON"
    raise FileError(f"{path}: expected MPICH's selection of algorithms {where}, got none")


def _nccl_csv(table: Table, to: Target) -> str:
    """Rows of NVIDIA's example tuner and of RCCL's: without a heading, which would be a rule."""
    nodes = table.num_ranks
    lines = [f"# {_title(table)}"[:255]]
    for entry, end in _ranges(table.named().get("all_reduce", ())):
        if entry.algorithm is not None:
            last = _NCCL_MOST if end is None else end - 1
            sizes = f"{entry.from_bytes},{last},{entry.algorithm}"
            lines.append(f"allreduce,{sizes},simple,-1,{nodes},{nodes * to.local_ranks}")
    return "\n".join(lines) + "\n"


def _ncclx_csv(table: Table, to: Target) -> str:
    """The same for NCCLX, which counts an all-reduce's bytes divided by the ranks."""
    nodes, ranks = table.num_ranks, table.num_ranks * to.local_ranks
    lines = [f"# {_title(table)}"]
    for entry, end in _ranges(table.named().get("all_reduce", ())):
        if entry.algorithm is not None:
            least = -(-entry.from_bytes // ranks)
            sizes = f"[{least},{'' if end is None else -(-end // ranks)})"
            lines.append(f"allreduce,{sizes},{entry.algorithm},simple,-1,{nodes},{to.local_ranks}")
    return "\n".join(lines) + "\n"


def _nccl_algo(table: Table, _to: Target) -> str:
    """A line of ``/etc/nccl.conf``, if one algorithm is named for all sizes that are predicted."""
    entries = _ranges(table.entries.get("all_reduce", ()))
    least = table.library.least_bytes
    used = {entry.algorithm for entry, end in entries if end is None or end > least}
    if len(used) != 1 or None in used:
        raise OptionError(
            "nccl-algo: NCCL_ALGO has no sizes, and no algorithm is the fastest for all; use "
            "--table nccl-tuner"
        )
    return f"NCCL_ALGO=allreduce:{used.pop()}\n"


_UCC_NAMES: dict[Named, str] = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "broadcast": "bcast",
}


def _ucc(table: Table, _to: Target) -> str:
    """A line of ``ucc.conf``, which may as well be a variable."""
    tokens = []
    for collective, entries in table.named().items():
        for entry, end in _ranges(entries):
            if entry.algorithm is not None:
                sizes = f"{entry.from_bytes}-{'inf' if end is None else end}"
                team = f"[{table.num_ranks}-{table.num_ranks}]"
                name = _UCC_NAMES[collective]
                tokens.append(f"{name}:{sizes}:host:{team}:@{entry.algorithm}")
    lines = [f"# {_title(table)}", *(["UCC_TL_UCP_TUNE=" + "#".join(tokens)] if tokens else [])]
    return "\n".join(lines) + "\n"


def _xla(table: Table, to: Target) -> str:
    """Variables for a shell: what XLA's analytical latency estimator should assume of the network.

    Servers are nodes. XLA's model is a ring over all GPUs, with one NIC per GPU: the rate is that
    of the slowest hop of the ring in this order, divided by the GPUs of a node. Its options with
    other units than their names say, or with fractions of microseconds, would be ignored.
    Source: ``SolGPUCostModel::GetConfig`` and ``RingLatency`` (``sol_gpu_cost_model.cc``).
    """
    ranks = table.num_ranks
    per_byte_s = (_ring_seconds(table, 2e9) - _ring_seconds(table, 1e9)) / 1e9
    hops = 2 * (ranks - 1)
    rate = hops / ranks / per_byte_s / to.local_ranks
    round_trip_s = 2 * _ring_seconds(table, 1.0) / hops
    options = {
        "nic_speed_gbps": f"{rate / 1e9:.6g}",  # GB/s, despite its name
        "rtt_us": str(max(1, round(round_trip_s * 1e6))),
        "gpus_per_node": str(to.local_ranks),
    }
    given = ",".join(f"{key}={value}" for key, value in options.items())
    flags = (
        "--xla_gpu_enable_analytical_sol_latency_estimator=true "
        f"--xla_gpu_analytical_latency_estimator_options={given}"
    )
    return f'# {_title(table)}\nexport XLA_FLAGS="$XLA_FLAGS {flags}"\n'


def _ring_seconds(table: Table, size: float) -> float:
    """The time of a ring's all-reduce on the network's links, in the table's order."""
    from gradweave.ranks.search_kernel import steady_seconds

    places = table.topology.rank[[*table.ranks]].astype(np.int64)
    pattern = pattern_of(ring(table.num_ranks, size, 0.0))
    return steady_seconds(places, routes_of(table.topology), pattern)


def _oneccl(table: Table, _to: Target) -> str:
    """Variables for a shell."""
    lines = [f"# {_title(table)}"]
    parts = [
        f"{entry.algorithm}:{entry.from_bytes}-{'max' if end is None else end - 1}"
        for entry, end in _ranges(table.named().get("all_reduce", ()))
        if entry.algorithm is not None
    ]
    if parts:
        lines.append(f'export CCL_ALLREDUCE="{";".join(parts)}"')
    return "\n".join(lines) + "\n"


def _ranges(entries: tuple[Entry, ...]) -> list[tuple[Entry, int | None]]:
    """Each entry with the size at which the next begins, or None for the last."""
    ends = [entry.from_bytes for entry in entries[1:]] + [None]
    return [*zip(entries, ends, strict=True)]


def _title(table: Table) -> str:
    how = "measured" if table.measured else "predicted"
    name = " ".join(table.topology.name.rpartition("/")[2].split())[:60]
    return f"{name}, {table.num_ranks} ranks: {how} by Gradweave"


_TUNED = (
    "mpirun --mca coll_tuned_use_dynamic_rules 1 --mca coll_tuned_dynamic_rules_filename {file}"
)
_ONE_EACH = ", with one rank per node; with several, HAN stands before it (--table openmpi-han)"


class TableFormat(NamedTuple):
    """One format of tables."""

    library: str
    """The library whose algorithms it names."""
    writer: Callable[[Table, Target], str]
    use: str
    """How the library is told of ``{file}``."""
    proof: str
    """What shows that the library uses it."""
    bad: str
    """What the library does with a bad file."""
    by_size: bool = True
    """Whether it names algorithms by size."""


TABLE_FORMATS: Mapping[str, TableFormat] = {
    "openmpi": TableFormat(
        "openmpi",
        _openmpi,
        f"{_TUNED}{_ONE_EACH}",
        "a debug build with --mca coll_base_verbose 1 logs 'coll:tuned:module_open Read N valid "
        "rules'; a release build logs nothing, but counts messages with --mca "
        "pml_monitoring_enable 2 --mca pml_monitoring_enable_output 3 --mca "
        "pml_monitoring_filename counts",
        "a release build ignores it without a message",
    ),
    "openmpi-json": TableFormat(
        "openmpi",
        _openmpi_json,
        f"{_TUNED} (Open MPI 6)",
        "--mca coll_tuned_verbose 30 logs 'coll:tuned:module_open Read a valid rules file'",
        "ignored; --mca coll_tuned_verbose 1 says why",
    ),
    "openmpi-han": TableFormat(
        "openmpi",
        _openmpi_han,
        "mpirun --mca coll_han_use_dynamic_file_rules 1 --mca coll_han_dynamic_rules_filename "
        "{file} and the options and file of --table openmpi, which the leaders of nodes use "
        "(Open MPI 5)",
        "--mca coll_han_verbose 5 logs 'coll:han:mca_coll_han_init_dynamic_rules read N rules from "
        "{file}'",
        "ignored without a message; --mca coll_han_verbose 5 names the line",
    ),
    "mpich": TableFormat(
        "mpich",
        _mpich,
        "MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE={file} mpiexec …",
        "MPIR_CVAR_DEBUG_SUMMARY=1 prints 'MPIR: {file}' below '==== collective selection ===='",
        "a missing file, an unknown key or a collective that it lacks aborts the job; text that is "
        "no JSON aborts it at the first collective",
    ),
    "nccl-algo": TableFormat(
        "nccl",
        _nccl_algo,
        "as a line of /etc/nccl.conf, or of the file in NCCL_CONF_FILE",
        "NCCL_DEBUG=INFO logs 'NCCL_ALGO set by environment to …'",
        "an unknown word is an error from NCCL 2.24 on",
    ),
    "nccl-tuner": TableFormat(
        "nccl",
        _nccl_csv,
        "NCCL_TUNER_PLUGIN=libnccl-tuner-example.so NCCL_TUNER_CONFIG_FILE={file}, built from "
        "plugins/tuner/example of NCCL; all calls get one channel, unless the line "
        "'*nChannels = 1' is removed from its plugin.c",
        "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=TUNING logs 'Loaded N tuning configurations from "
        "{file}' and 'Applied config'",
        "an unknown collective counts as allreduce, an unknown algorithm as ring, and other lines "
        "are ignored",
    ),
    "rccl": TableFormat(
        "nccl",
        _nccl_csv,
        "NCCL_TUNER_CONFIG_FILE={file}, RCCL 2.28.3 or newer, without an external tuner",
        "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=TUNING logs 'TUNER/CsvTuner: Loaded N tuning "
        "configurations from {file}' and 'Applied config'",
        "that log says 'not found' for a missing file and 'Skipping' for a line with an unknown "
        "word or an empty field; a line of more than 255 characters counts as several",
    ),
    "ncclx": TableFormat(
        "nccl",
        _ncclx_csv,
        "NCCLX_TUNER_CONFIG_FILE={file}, with a name that ends in .csv",
        "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=TUNING logs 'NCCLX TUNER: loaded N tuning rule(s) from "
        "'{file}''",
        "the communicator fails with ncclInvalidUsage; with NCCLX_TUNER_IGNORE_CONFIG_ERRORS=1 the "
        "bad rule is skipped",
    ),
    "ucc": TableFormat(
        "ucc",
        _ucc,
        "as ucc.conf in the home folder or UCC_CONFIG_FILE={file}; the line may also be a variable",
        "UCC_LOG_LEVEL=INFO prints COLL_SCORE_MAP with the ranges of sizes",
        "UCC logs 'failed to parse' and the token; the team cannot be made",
    ),
    "oneccl": TableFormat(
        "oneccl",
        _oneccl,
        "source {file} before the job",
        "CCL_LOG_LEVEL=info prints the table of algorithms",
        "oneCCL throws an exception that names the text",
    ),
    "xla": TableFormat(
        "nccl",
        _xla,
        "source {file} before the program; XLA plans with it on Hopper and Blackwell GPUs",
        "TF_CPP_MIN_LOG_LEVEL=0 TF_CPP_VMODULE=sol_gpu_cost_model=2 logs '[SoL] NIC speed: …'",
        "an unknown flag ends the program; an unknown option, or a value that is not above 0 or "
        "not whole where it must be, is ignored without a message",
        by_size=False,
    ),
}
"""The formats by their names on the command line."""


def to_table(
    table: Table, format: str, base: str | Path | None = None, local_ranks: int = 1
) -> str:
    """Writes a table for its library.

    Args:
        table: the table.
        format: one of `TABLE_FORMATS`.
        base: for ``mpich``, its ``libmpi.so`` or a selection as JSON, which the table changes.
        local_ranks: for NCCL and HAN, ranks per server.

    Raises:
        OptionError: for an unknown format, one of another library, a base that is missing, or a
            table that the format cannot hold.
        FileError: the base cannot be read.
    """
    if format not in TABLE_FORMATS:
        guess = did_you_mean(format, TABLE_FORMATS)
        raise OptionError(f"format: {guess}expected {', '.join(TABLE_FORMATS)}, got {format!r:.60}")
    one = TABLE_FORMATS[format]
    if one.library != table.library.name:
        raise OptionError(
            f"format: {format} names algorithms of {one.library}, got a table of "
            f"{table.library.name}"
        )
    return one.writer(table, Target(None if base is None else Path(base), local_ranks))


def save_table(
    table: Table,
    path: str | Path,
    format: str,
    base: str | Path | None = None,
    local_ranks: int = 1,
) -> None:
    """Writes `to_table` to a file, whole or not at all.

    Raises:
        OptionError: as `to_table` does.
        FileError: a file cannot be read or written.
    """
    atomic_write(path, to_table(table, format, base, local_ranks).encode())
