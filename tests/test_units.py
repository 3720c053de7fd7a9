"""Bytes as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budgetrec.errors import ArgumentError
from budgetrec.units import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "count"),
    [("512MiB", 2**29), ("2GiB", 2**31), ("1.5GB", 1_500_000_000), ("2 gib", 2**31), ("4194304", 2**22)],
)
def test_usual_ways_to_write_bytes_are_read(text, count):
    """Binary and decimal units, any case, with or without a space."""
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0", "too few to train anything"),
        ("-1", "is not a number of bytes"),
        ("2 bananas", "is not a number of bytes"),
        ("1e30", "more memory than any machine has"),
        ("", "is not a number of bytes"),
        ("1.2.3GiB", "is not a number of bytes"),
    ],
)
def test_nonsense_gets_a_sentence(text, words):
    """What was seen is repeated, and what to pass is said."""
    with pytest.raises(ArgumentError, match=words):
        parse_bytes(text)


@given(st.text(max_size=12))
def test_no_text_breaks_the_reader(text):
    """Any text is bytes, or one sentence."""
    try:
        assert 2**20 <= parse_bytes(text) <= 2**50
    except ArgumentError as error:
        assert "Pass" in str(error)


@given(st.integers(2**20, 2**50))
def test_bytes_survive_being_written_as_a_number(count):
    """A plain number of bytes is read as it is."""
    assert parse_bytes(str(count)) == count
    assert format_bytes(count)
