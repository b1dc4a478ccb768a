"""Which form of samples a cache keeps, by what was measured."""

import pytest
from collector import PACKAGE  # noqa: F401  where the package is

pytest.importorskip("torch")

from stallscope.data.cache import stored_form  # noqa: E402

KIB = 1 << 10
# Pictures: 100 KiB of JPEG, 600 KiB of pixels.
PICTURE = {
    "read_s": 0.002, "encoded_bytes": 100 * KIB, "decoded_bytes": 600 * KIB,
    "decode_s": 0.008, "pack_s": 0.0005, "take_s": 0.0005,
}  # fmt: skip
SAMPLES = 1000
ALL = 600 * KIB * SAMPLES


def decoded(budget_bytes=ALL, **other):
    return stored_form.chosen({**PICTURE, **other}, budget_bytes, SAMPLES)["decoded"]


def test_expected_seconds_are_those_of_the_formula():
    figures = {"read_s": 4.0, "encoded_bytes": 10, "decoded_bytes": 40, "decode_s": 2.0, "pack_s": 1.0, "take_s": 0.5}
    # Half of the samples encoded, an eighth of them decoded.
    assert stored_form.expected_s(figures, 500, 100) == (0.5 * 4 + 2, 0.875 * 7 + 0.125 * 0.5)
    # All of them, and no more than all.
    assert stored_form.expected_s(figures, 10**9, 100) == (2.0, 0.5)


def test_a_large_budget_and_slow_decoding_keep_decoded_samples():
    assert decoded()


def test_a_small_budget_keeps_encoded_ones():
    assert not decoded(budget_bytes=ALL // 6), "all of them encoded, a sixth decoded"


def test_cheap_decoding_keeps_encoded_ones():
    assert not decoded(decode_s=0.0005)


def test_what_is_hardly_faster_is_not_worth_it():
    assert decoded(take_s=0.0071) and not decoded(take_s=0.0073)


def test_a_slow_source_counts_for_what_more_samples_are_held_of():
    half = {"budget_bytes": ALL // 2}
    assert decoded(**half) and not decoded(**half, read_s=0.05)


@pytest.mark.parametrize("size", ["encoded_bytes", "decoded_bytes"])
def test_samples_of_no_bytes_are_held(size):
    assert stored_form.held(1, SAMPLES, 0) == 1
    stored_form.chosen({**PICTURE, size: 0}, 1, SAMPLES)


def test_the_key_of_decoded_samples_is_another_one_for_another_decode():
    keys = {b"key", stored_form.key_of_decoded(b"key", ["one"]), stored_form.key_of_decoded(b"key", ["other"])}
    assert len(keys) == 3
