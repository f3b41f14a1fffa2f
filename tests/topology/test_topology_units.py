"""Bandwidths, latencies and sizes in words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradweave.errors import SpecError
from gradweave.topology.units import (
    exact_bandwidth,
    exact_latency,
    format_bandwidth,
    format_seconds,
    format_size,
    parse_bandwidth,
    parse_latency,
    parse_size,
    parse_sizes,
)


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("10Gbit/s", 1.25e9),
        ("10 Gbit/s", 1.25e9),
        ("10Gbps", 1.25e9),
        ("10Gb/s", 1.25e9),
        ("10gbps", 1.25e9),
        ("10gbit/s", 1.25e9),
        ("1.25GB/s", 1.25e9),
        ("1.25e9", 1.25e9),
        (1.25e9, 1.25e9),
        (1250000000, 1.25e9),
        ("1.25e9B/s", 1.25e9),
        ("8bit/s", 1.0),
        ("8 kbit/s", 1e3),
        ("8Kbps", 1e3),
        ("1GiB/s", 2**30),
        ("8Mibit/s", 2**20),
        ("100Mbit/s", 12.5e6),
        ("1.1Gbit/s", 137.5e6),
        ("2Tbit/s", 2.5e11),
        (".5 MB/s", 5e5),
        ("400Gbps", 5e10),
    ],
)
def test_bandwidths(text, bytes_per_s):
    assert parse_bandwidth(text) == bytes_per_s


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5us", 5e-6),
        ("5 us", 5e-6),
        ("5µs", 5e-6),
        ("5μs", 5e-6),
        ("1.5ms", 1.5e-3),
        ("1e-6", 1e-6),
        ("2s", 2.0),
        ("30ns", 3e-8),
        (0, 0.0),
        ("0", 0.0),
    ],
)
def test_latencies(text, seconds):
    assert parse_latency(text) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("400MB", 400_000_000),
        ("400 MB", 400_000_000),
        ("400mB", 400_000_000),  # nobody means a thousandth of a byte
        ("1KB", 1000),
        ("1kB", 1000),
        ("1KiB", 1024),
        ("1.5GiB", 3 << 29),
        ("1GiB", 1 << 30),
        ("2 TB", 2 * 10**12),
        ("4e8", 400_000_000),
        ("4e8B", 400_000_000),
        ("0.5kB", 500),
        ("12 bytes", 12),
        ("400M", 400 << 20),  # as nccl-tests and dd mean it
        ("1g", 1 << 30),
        ("0", 0),
        (7, 7),
        (8e6, 8_000_000),
    ],
)
def test_sizes(text, size):
    assert parse_size(text) == size and isinstance(parse_size(text), int)


@pytest.mark.parametrize(
    ("text", "culprit"),
    [
        ("400Mb", "unknown unit 'Mb'; write B, kB"),  # bits
        ("400Mi", "unknown unit 'Mi'"),
        ("400MB/s", "unknown unit 'MB/s'"),
        ("1iB", "unknown unit 'iB'"),
        ("0.5", "a whole number of bytes"),
        ("1.0001kB", "a whole number of bytes"),
        ("1e16", "expected 0 bytes to 1000 TB"),
        ("1MB,2MB", "unknown unit 'MB,2MB'"),
    ],
)
def test_refused_sizes(text, culprit):
    with pytest.raises(SpecError) as caught:
        parse_size(text)
    assert culprit in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("1e6,8e6", (10**6, 8 * 10**6)),
        ("1MB, 4MB,8MB", (10**6, 4 * 10**6, 8 * 10**6)),
        ("1KiB..8KiB", (1024, 2048, 4096, 8192)),
        ("1kB..5kB", (1000, 2000, 4000)),  # up to at most the last
        ("1KB..1GB*1000", (10**3, 10**6, 10**9)),
        ("4,1kB..2kB,4", (4, 1000, 2000, 4)),
        ("1MB..8MB*\x1d4", (10**6, 4 * 10**6)),  # white space to regular expressions, not to int
    ],
)
def test_lists_and_sweeps_of_sizes(text, sizes):
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize(
    "text",
    ["", "1MB,", "many", "8MB..1MB", "1MB..1MB", "0..1MB", "1MB..", "..1MB", "1MB..2MB..4MB",
     "1MB..8MB*1", "1MB..8MB*0", "1MB..8MB*", "1MB..8MB*1.5", "1MB..8MB*-2",
     "1MB..8MB*" + "9" * 5000, "1..1e15," * 9, "1," * 200 + "1"],
)  # fmt: skip
def test_refused_lists_of_sizes(text):
    with pytest.raises(SpecError) as caught:
        parse_sizes(text)
    assert str(caught.value).startswith(("size ", "sizes ")) and len(str(caught.value)) < 300


def test_a_number_has_64_characters_at_most():
    assert parse_bandwidth("1" + "0" * 60 + "B/s") == 1e60
    with pytest.raises(SpecError, match="expected a number with a unit"):
        parse_bandwidth("1" + "0" * 61 + "B/s")


def test_sizes_for_people():
    written = [format_size(size) for size in (1, 12, 1500, 2**20, 5e9, 10**15)]
    assert written == ["1 byte", "12 bytes", "1.5 kB", "1 MiB", "5 GB", "1000 TB"]


@pytest.mark.parametrize("parse", [parse_bandwidth, parse_latency, parse_size])
@pytest.mark.parametrize(
    "text",
    [
        "",
        "fast",
        "nan",
        "inf",
        "-inf",
        "-1",
        "1e999",
        "1e99999",
        "1,5",
        "1 2",
        "5 parsecs",
        "1i",
        "0x10",
        "1_0",
        "٣",
        float("nan"),
        float("inf"),
        -1.0,
        None,
        True,
        [1],
        "9" * 100,
        "1\n2",
    ],
)
def test_refusals(parse, text):
    with pytest.raises(SpecError) as caught:
        parse(text)
    assert str(caught.value).startswith(("bandwidth ", "latency ", "size "))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["0", "0Gbit/s", "10iB/s", "10GBit/s/s", "10us"])
def test_refused_bandwidths(text):
    with pytest.raises(SpecError):
        parse_bandwidth(text)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (format_bandwidth(12.5e9), "100 Gbit/s"),
        (format_bandwidth(1.25e6), "10 Mbit/s"),
        (format_bandwidth(1e9 / 3), "2.667 Gbit/s"),
        (format_bandwidth(124.9999e9), "1 Tbit/s"),
        (format_bandwidth(0.01), "0.08 bit/s"),
        (format_bandwidth(5e10), "400 Gbit/s"),
        (format_seconds(5e-6), "5 us"),
        (format_seconds(1.5e-3), "1.5 ms"),
        (format_seconds(0), "0 s"),
        (format_seconds(2e-10), "0.2 ns"),
        (format_seconds(0.9999999), "1 s"),
    ],
)
def test_written_for_people(text, written):
    assert text == written


@given(st.floats(1e-3, 1e15))
def test_exact_bandwidths_are_read_back(value):
    assert parse_bandwidth(exact_bandwidth(value)) == value


@given(st.floats(0, 1e6))
def test_exact_latencies_are_read_back(value):
    assert parse_latency(exact_latency(value)) == value
