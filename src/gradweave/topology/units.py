"""Bandwidths, latencies and sizes with units: parsing and formatting."""

import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import overload

from gradweave.errors import SpecError

ROUNDING = 1e-9
"""Relative error of sums of rates, times and costs, within which two count as equal: far above that
of floats, far below what a schedule could gain. Compiled loops have it compiled in."""
_NUMBER = re.compile(
    r"\s*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)\s*([^\s]*)\s*"
)

_DECIMAL = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_PREFIX = {
    **{prefix: 1000**power for prefix, power in _DECIMAL.items()},
    **{f"{prefix}i": 1024**power for prefix, power in _DECIMAL.items() if prefix},
}

_LEAST_WITHOUT_UNIT = 1_000_000
"""Bytes per second from which a bandwidth without a unit is plausible."""

_MOST_WITHOUT_UNIT = 0.1
"""Seconds up to which a latency or an overhead without a unit is plausible: longer than light takes
between any two places on Earth."""

# Only the case of b matters, for bits or bytes; that of the prefix does not, since nobody means
# millibits.
_BANDWIDTH_UNIT = re.compile(
    r"([kKmMgGtT]?i?)(?:(bits?/s|b/s|bps|bits?ps)|(Bytes?/s|bytes?/s|B/s|Bps))"
)

_SIZE_UNIT = re.compile(r"([kKmMgGtT]?i?)(?:B|[Bb]ytes?)|([kKmMgGtT])")
_SIZE_UNITS = (
    "B, kB, MB, GB or TB (powers of 1000), or KiB, MiB, GiB or TiB, in short K, M, G or T (of "
    "1024), as in 400MB"
)
MAX_SIZES = 100
"""Most sizes in a list, those of its sweeps included."""

_SECONDS = {
    "": Fraction(1), "s": Fraction(1), "ms": Fraction(1, 10**3), "us": Fraction(1, 10**6),
    "\u00b5s": Fraction(1, 10**6), "\u03bcs": Fraction(1, 10**6), "ns": Fraction(1, 10**9),
}  # fmt: skip


def parse_bandwidth(text: str | float) -> float:
    """Reads a bandwidth.

    Args:
        text: a number with a unit, in bits (``10Gbit/s``, ``10Gbps``, ``10 Gb/s``) or bytes
            (``1.25GB/s``, ``1GiB/s``), or a bare number of bytes per second.

    Returns:
        The bandwidth in bytes per second.

    Raises:
        SpecError: the text is not a bandwidth, or not positive and finite.

    >>> parse_bandwidth("10Gbit/s"), parse_bandwidth("1.25e9")
    (1250000000.0, 1250000000.0)
    """
    number, unit = _split("bandwidth", text, "10Gbit/s, 1.25GB/s or bytes per second as 1.25e9")
    factor = Fraction(1)
    if unit:
        match = _BANDWIDTH_UNIT.fullmatch(unit)
        if not match or match[1].lower() not in _PREFIX:
            raise SpecError(
                f"bandwidth {text!r:.40}: unknown unit {unit!r:.40}; "
                "write bit/s or B/s with k, M, G or T, as in 10Gbit/s"
            )
        factor = Fraction(_PREFIX[match[1].lower()], 8 if match[2] else 1)
    bandwidth = _finite("bandwidth", text, number * factor)
    if bandwidth <= 0:
        raise SpecError(f"bandwidth {text!r:.40}: expected more than zero")
    return bandwidth


def ambiguous_bandwidth(text: object) -> str | None:
    """A warning for a bandwidth without a unit that is implausibly small in bytes per second.

    Args:
        text: any value; no warning for one that is not a bandwidth.

    Returns:
        How it was understood and what to write, or None if no warning is needed.

    >>> ambiguous_bandwidth("100")
    'bandwidth 100 has no unit: understood as 100 bytes/s; write 100Gbit/s, or 100B/s for those'
    """
    if not isinstance(text, str | int | float):
        return None
    try:
        number, unit = _split("bandwidth", text, "a bandwidth")
    except SpecError:
        return None
    if unit or not 0 < number < _LEAST_WITHOUT_UNIT:
        return None
    plain = str(text).strip()
    return (
        f"bandwidth {plain} has no unit: understood as {float(number):g} bytes/s; "
        f"write {plain}Gbit/s, or {plain}B/s for those"
    )


def ambiguous_time(quantity: str, text: object) -> str | None:
    """A warning for a latency or an overhead without a unit that is implausibly long in seconds.

    Args:
        quantity: ``latency`` or ``overhead``.
        text: any value; a value that is not a time gives no warning.

    Returns:
        How it was understood and what to write, or None if no warning is needed.

    >>> ambiguous_time("latency", "5")
    'latency 5 has no unit: understood as 5 s; write 5us, or 5s for those'
    """
    if not isinstance(text, str | int | float):
        return None
    try:
        number, unit = _split(quantity, text, "a time")
    except SpecError:
        return None
    if unit or number <= _MOST_WITHOUT_UNIT:
        return None
    plain = str(text).strip()
    return (
        f"{quantity} {plain} has no unit: understood as {float(number):g} s; "
        f"write {plain}us, or {plain}s for those"
    )


def parse_latency(text: str | float) -> float:
    """Reads a latency.

    Args:
        text: a number with a unit (``5us``, ``1.5ms``), or a bare number of seconds.

    Returns:
        The latency in seconds.

    Raises:
        SpecError: the text is not a latency, or negative or not finite.

    >>> parse_latency("1.5ms"), parse_latency("1e-6")
    (0.0015, 1e-06)
    """
    return _parse_time("latency", text)


def parse_overhead(text: str | float) -> float:
    """Reads a message's overhead, as `parse_latency` reads a latency.

    >>> parse_overhead("20us")
    2e-05
    """
    return _parse_time("overhead", text)


def parse_seconds(name: str, text: str | float) -> float:
    """Reads a time of anything, as `parse_latency` reads a latency.

    Args:
        name: what it is the time of, for the message.
        text: a number with a unit, or a bare number of seconds.

    >>> parse_seconds("ready-at", "50ms")
    0.05
    """
    return _parse_time(name, text)


def parse_size(text: str | float, least: int = 0, most: int = 10**15) -> int:
    """Reads a size.

    Args:
        text: a number with a unit of powers of 1000 (``400MB``) or of 1024 (``1GiB``, and ``1G``
            as in nccl-tests), or a bare number of bytes (``4e8``).
        least: smallest size accepted, in bytes.
        most: largest size accepted.

    Returns:
        The size in bytes.

    Raises:
        SpecError: the text is not a size, not a whole number of bytes, or out of range.

    >>> parse_size("400MB"), parse_size("1GiB"), parse_size("1G"), parse_size("4e8")
    (400000000, 1073741824, 1073741824, 400000000)
    """
    number, unit = _split("size", text, "400MB, 1GiB or bytes as 4e8")
    factor = 1
    if unit:
        match = _SIZE_UNIT.fullmatch(unit)
        prefix = "" if not match else f"{match[2]}i" if match[2] else match[1]
        if not match or prefix.lower() not in _PREFIX:
            raise SpecError(f"size {text!r:.40}: unknown unit {unit!r:.40}; write {_SIZE_UNITS}")
        factor = _PREFIX[prefix.lower()]
    size = number * factor
    if size.denominator != 1:
        raise SpecError(f"size {text!r:.40}: expected a whole number of bytes")
    if not least <= size <= most:
        raise SpecError(f"size {text!r:.40}: expected {format_size(least)} to {format_size(most)}")
    return int(size)


@overload
def as_size(size: int | str) -> int: ...


@overload
def as_size(size: float | str) -> float: ...


def as_size(size: float | str) -> float:
    """A size in bytes: a number as it is, text as `parse_size` reads it.

    >>> as_size("100MB"), as_size(1.5)
    (100000000, 1.5)
    """
    return parse_size(size) if isinstance(size, str) else size


def parse_sizes(text: str, least: int = 0, most: int = 10**15) -> tuple[int, ...]:
    """Reads a list of sizes and sweeps.

    Args:
        text: sizes and sweeps separated by commas. ``1MB..8MB`` doubles from 1 MB to at most 8 MB;
            ``1KB..1GB*10`` grows by factors of ten.
        least: smallest size accepted, in bytes.
        most: largest size accepted.

    Returns:
        The sizes in bytes, in the order given.

    Raises:
        SpecError: a part is not a size, a sweep does not rise, or there are more than `MAX_SIZES`.

    >>> parse_sizes("1MB,4MB"), parse_sizes("1MB..8MB"), parse_sizes("1KB..1MB*10")
    ((1000000, 4000000), (1000000, 2000000, 4000000, 8000000), (1000, 10000, 100000, 1000000))
    """
    sizes: list[int] = []
    for part in text.split(","):
        first, dots, rest = part.partition("..")
        size = parse_size(first, least, most)
        if not dots:
            sizes.append(size)
        else:
            last, star, by = rest.partition("*")
            end = parse_size(last, least, most)
            by = by.strip() if star else "2"
            factor = int(by) if re.fullmatch("0*[1-9][0-9]{0,8}", by) else 0
            if factor < 2 or not 0 < size < end:
                raise SpecError(
                    f"sizes {part!r:.40}: expected a smaller and a larger size and a whole "
                    "factor of at least 2, as in 1MB..64MB or 1KB..1GB*10"
                )
            sizes += sweep(size, end, factor)
        if len(sizes) > MAX_SIZES:
            raise SpecError(f"sizes {text!r:.40}: more than {MAX_SIZES}; leave some out")
    return tuple(sizes)


def sweep(first: int, last: int, factor: int) -> list[int]:
    """Sizes from the first up to the last, each `factor` times the previous one.

    They end once there are more than `MAX_SIZES`, for the caller to refuse.

    Args:
        first: above 0.
        last: at least as large.
        factor: at least 2.

    >>> sweep(8, 100, 3)
    [8, 24, 72]
    """
    sizes = [first]
    while sizes[-1] * factor <= last and len(sizes) <= MAX_SIZES:
        sizes.append(sizes[-1] * factor)
    return sizes


def format_size(size_bytes: float) -> str:
    """Formats a size, to four digits; in binary units if it is a whole number of them below 10,000.

    >>> format_size(8_000_000), format_size(8 << 20), format_size(12), format_size(594_237 << 10)
    ('8 MB', '8 MiB', '12 bytes', '608.5 MB')
    """
    for unit, factor in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        whole = size_bytes % factor == 0 and size_bytes % 1000
        if factor <= size_bytes < 10_000 * factor and whole:
            return f"{size_bytes / factor:.4g} {unit}"
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.4g} {unit}"
    return "1 byte" if size_bytes == 1 else f"{size_bytes:.4g} bytes"


def format_bandwidth(bandwidth_bytes_per_s: float) -> str:
    """Formats a bandwidth, to four digits.

    >>> format_bandwidth(12.5e9)
    '100 Gbit/s'
    """
    return _format(bandwidth_bytes_per_s * 8, _BITS, 4, " ")


def format_rate(bytes_per_s: float) -> str:
    """Formats a rate in bytes, to three digits.

    >>> format_rate(12.54e9), format_rate(0.5)
    ('12.5 GB/s', '0.5 B/s')
    """
    return _format(bytes_per_s, _RATES, 3, " ")


def format_seconds(seconds: float, digits: int = 4) -> str:
    """Formats a time or a latency in a unit that suits it.

    >>> format_seconds(5e-6), format_seconds(11.96), format_seconds(0.0104)
    ('5 us', '11.96 s', '10.4 ms')
    """
    return _format(seconds, _TIMES, digits, " ")


def exact_bandwidth(bandwidth_bytes_per_s: float) -> str:
    """Formats a bandwidth without spaces so that `parse_bandwidth` returns the same number.

    >>> exact_bandwidth(1.25e9), exact_bandwidth(1e9 / 3)
    ('10Gbit/s', '333333333.3333333B/s')
    """
    text = _format(bandwidth_bytes_per_s * 8, _BITS, 9, "")
    exact = _parses_to(parse_bandwidth, text, bandwidth_bytes_per_s)
    return text if exact else f"{float(bandwidth_bytes_per_s)!r}B/s"


def exact_latency(latency_s: float) -> str:
    """Formats a latency without spaces so that `parse_latency` returns the same number.

    >>> exact_latency(5e-6)
    '5us'
    """
    text = _format(latency_s, _TIMES, 9, "")
    return text if _parses_to(parse_latency, text, latency_s) else f"{float(latency_s)!r}s"


_BITS = ((1e12, "Tbit/s"), (1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"), (1.0, "bit/s"))
_RATES = ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s"))
_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def _format(value: float, units: tuple[tuple[float, str], ...], digits: int, space: str) -> str:
    def scaled(scale: float) -> str:
        return f"{value / scale:.{digits}g}"

    # The unit depends on the rounded number, so that 999.99 Mbit/s becomes 1 Gbit/s.
    scale, unit = next(
        ((s, u) for s, u in units if abs(float(scaled(s))) >= 1),
        units[0] if value == 0 else units[-1],
    )
    return f"{scaled(scale)}{space}{unit}"


def _parses_to(parse: Callable[[str], float], text: str, value: float) -> bool:
    try:
        return parse(text) == value
    except SpecError:
        return False


def _parse_time(quantity: str, text: str | float) -> float:
    number, unit = _split(quantity, text, "5us, 1.5ms or seconds as 1e-6")
    if unit not in _SECONDS:
        raise SpecError(
            f"{quantity} {text!r:.40}: unknown unit {unit!r:.40}; write s, ms, us or ns, as in 5us"
        )
    seconds = _finite(quantity, text, number * _SECONDS[unit])
    if seconds < 0:
        raise SpecError(f"{quantity} {text!r:.40}: expected zero or more")
    return seconds


def _split(quantity: str, text: str | float, expected: str) -> tuple[Fraction, str]:
    if isinstance(text, int | float) and not isinstance(text, bool):
        if not math.isfinite(text):
            raise SpecError(f"{quantity} {text}: expected a finite number")
        return Fraction(text), ""
    match = _NUMBER.fullmatch(text) if isinstance(text, str) and len(text) <= 64 else None
    if not match:
        raise SpecError(f"{quantity} {text!r:.40}: expected a number with a unit, {expected}")
    return Fraction(match[1]), match[2]


def _finite(quantity: str, text: str | float, value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        raise SpecError(f"{quantity} {text!r:.40}: too large; expected a finite number") from None
