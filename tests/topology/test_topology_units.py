"""Bandwidths and latencies in words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradweave.errors import SpecError
from gradweave.topology.units import (
    exact_bandwidth,
    exact_latency,
    format_bandwidth,
    format_latency,
    parse_bandwidth,
    parse_latency,
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


@pytest.mark.parametrize("parse", [parse_bandwidth, parse_latency])
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
    assert str(caught.value).startswith(("bandwidth ", "latency "))
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
        (format_latency(5e-6), "5 us"),
        (format_latency(1.5e-3), "1.5 ms"),
        (format_latency(0), "0 s"),
        (format_latency(2e-10), "0.2 ns"),
        (format_latency(0.9999999), "1 s"),
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
