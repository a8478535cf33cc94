"""What an error says can always be written down."""

import pytest

from streams.errors import SteadfaustError, text_of


class Unshowable(Exception):
    def __init__(self, cause: Exception) -> None:
        self.cause = cause

    def __str__(self) -> str:
        raise self.cause


def test_an_error_is_told_in_its_own_words() -> None:
    assert text_of(SteadfaustError("say what to do")) == "say what to do"
    assert text_of(ValueError()) == ""


@pytest.mark.parametrize("cause", [KeyError("text"), AttributeError("text"), RecursionError()])
def test_an_error_that_cannot_be_shown_is_told_by_class(cause: Exception) -> None:
    assert text_of(Unshowable(cause)) == f"(Unshowable cannot be shown: {type(cause).__name__})"
