"""Quantities: text to SI and back, and the refusals that keep bits and bytes apart."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipesim import units
from pipesim.errors import ScenarioError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1 s", 1.0),
        ("10us", 1e-5),
        ("10 µs", 1e-5),
        ("1.5 ms", 1.5e-3),
        ("250 ns", 2.5e-7),
        ("2 min", 120.0),
        ("0.5 h", 1800.0),
        ("1e-3", 1e-3),
        (".5 s", 0.5),
        (2, 2.0),
        (0, 0.0),
    ],
)
def test_times(text: object, seconds: float) -> None:
    assert units.parse_time_s(text) == pytest.approx(seconds, rel=1e-15)


def test_a_fraction_of_a_second_stays_exact() -> None:
    assert units.parse_time_s(Fraction(1, 3)) == Fraction(1, 3)
    assert isinstance(units.parse_time_s(Fraction(1, 3)), Fraction)
    assert units.parse_time_s("1/3") == units.parse_time_s(" 2/6 s") == Fraction(1, 3)
    assert units.parse_time_s("5/7 ms") == Fraction(5, 7000)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("80 GB", 80e9),
        ("80 GiB", 80 * 2**30),
        ("64 MB", 64e6),
        ("1 kB", 1e3),
        ("1 KB", 1e3),
        ("3 TiB", 3 * 2**40),
        ("7 B", 7),
        (0, 0),
    ],
)
def test_sizes(text: object, num_bytes: float) -> None:
    assert units.parse_bytes(text) == num_bytes


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("400 Gbit/s", 50e9),
        ("400 Gb/s", 50e9),
        ("400 Gbps", 50e9),
        ("50 GB/s", 50e9),
        ("50 GBps", 50e9),
        ("1.6 Tbit/s", 200e9),
        ("8 bit/s", 1.0),
        ("1 GiB/s", 2**30),
    ],
)
def test_rates_take_bits_and_bytes(text: str, bytes_per_s: float) -> None:
    assert units.parse_bytes_per_s(text) == bytes_per_s


@pytest.mark.parametrize("text", ["312 TFLOP/s", "312 TFLOPS", "312e12 flops", "0.312 PFLOP/s"])
def test_flops(text: str) -> None:
    assert units.parse_flops_per_s(text) == pytest.approx(312e12, rel=1e-15)


def test_shares() -> None:
    assert units.parse_fraction("72 %") == pytest.approx(0.72)
    assert units.parse_fraction(0.72) == 0.72
    assert units.parse_fraction(1) == 1


@pytest.mark.parametrize(
    ("parse", "value", "words"),
    [
        (units.parse_bytes, "80 Gb", ["is in bits (10 GB)", "'80 GB'"]),
        (units.parse_bytes, "80 Gbit", ["is in bits"]),
        (units.parse_bytes, "80 gb", ["did you mean GB"]),
        (units.parse_bytes, 80, ["without a unit", "80 GB"]),
        (units.parse_bytes, "80", ["without a unit"]),
        (units.parse_bytes, "80 GB/s", ["'GB/s' is not a unit that fits here"]),
        (units.parse_bytes, "-1 GB", ["at least zero"]),
        (units.parse_bytes, None, ["found None"]),
        (units.parse_bytes, [80], ["found [80]"]),
        (units.parse_bytes_per_s, 50e9, ["without a unit"]),
        (units.parse_bytes_per_s, "400 gbps", ["Gbps", "GBps"]),
        (units.parse_bytes_per_s, "0 GB/s", ["above zero"]),
        (units.parse_bytes_per_s, "50 GB", ["'GB' is not a unit"]),
        (units.parse_time_s, "nan", ["found 'nan'"]),
        (units.parse_time_s, math.nan, ["finite"]),
        (units.parse_time_s, math.inf, ["finite"]),
        (units.parse_time_s, "1e999 s", ["finite"]),
        (units.parse_time_s, -1, ["at least zero"]),
        (units.parse_time_s, Fraction(-1, 2), ["at least zero"]),
        (units.parse_time_s, "1 MS", ["did you mean ms"]),
        (units.parse_time_s, "soon", ["found 'soon'"]),
        (units.parse_time_s, "1/0 s", ["found '1/0 s'"]),
        (units.parse_time_s, "1/3 GB", ["'GB' is not a unit"]),
        (units.parse_time_s, "", ["found ''"]),
        (units.parse_time_s, True, ["found True"]),
        (units.parse_time_s, 10**400, ["too large"]),
        (units.parse_flops_per_s, 312, ["without a unit"]),
        (units.parse_fraction, "172 %", ["172 %"]),
        (units.parse_fraction, 0, ["above 0"]),
        (units.parse_fraction, math.nan, ["nan"]),
    ],
)
def test_refusals_name_key_and_reason(parse, value: object, words: list[str]) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse(value, key="some.key", file="x.yaml")
    assert str(caught.value).startswith("x.yaml: some.key: ")
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_both_forms_are_shown() -> None:
    assert units.format_bytes(80e9) == "80 GB (74.5 GiB)"
    assert units.format_bytes_per_s(50e9) == "50 GB/s (400 Gbit/s)"
    assert units.format_time_s(0.00112) == "1.12 ms"
    assert units.format_time_s(0) == "0 s"
    assert units.format_flops_per_s(312e12) == "312 TFLOP/s"
    assert units.format_bytes(12) == "12 B"


_POSITIVE = st.floats(min_value=1e-9, max_value=1e15)


@given(_POSITIVE)
def test_round_trip_within_the_digits_shown(number: float) -> None:
    close = {"rel": 6e-4}
    assert units.parse_time_s(units.format_time_s(number)) == pytest.approx(number, **close)
    assert units.parse_bytes(units.format_bytes(number, both=False)) == pytest.approx(number, **close)
    rate = units.format_bytes_per_s(number, both=False)
    assert units.parse_bytes_per_s(rate) == pytest.approx(number, **close)
    assert units.parse_flops_per_s(units.format_flops_per_s(number)) == pytest.approx(number, **close)


@given(st.integers(0, 10**6), st.sampled_from(["", "k", "M", "G", "T"]))
def test_a_bit_is_an_eighth_of_a_byte(number: int, prefix: str) -> None:
    in_bits = units.parse_bytes_per_s(f"{number + 1} {prefix}bit/s")
    assert units.parse_bytes_per_s(f"{number + 1} {prefix}B/s") == 8 * in_bits
    assert units.parse_bytes_per_s(f"{number + 1} {prefix}b/s") == in_bits


@given(st.text(max_size=20))
@example("0_")
@example("1__0 s")
@example("1_000 s")
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (units.parse_time_s, units.parse_bytes, units.parse_bytes_per_s, units.parse_fraction):
        try:
            value = parse(text)
        except ScenarioError:
            continue
        assert 0 <= value < math.inf
