"""Parses the option for seeds."""

from __future__ import annotations

from argparse import ArgumentTypeError


def seeds_of(text: str) -> range:
    """The seeds that an option names: from A up to, but not including, B for `A:B`, and only A for `A`.
    Raises ArgumentTypeError if there are none.
    """
    first, colon, last = text.partition(":")
    try:
        seeds = range(int(first), int(last) if colon else int(first) + 1)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no range: give first:end, such as 0:200") from None
    if not seeds:
        raise ArgumentTypeError(f"{text!r} has no seed in it: the end has to be above the first")
    return seeds
