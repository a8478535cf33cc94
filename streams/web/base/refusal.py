"""An error as JSON."""

from __future__ import annotations

import msgspec


class ErrorAnswer(msgspec.Struct, frozen=True):
    """What a worker says where it has no answer: a word for programs, a sentence for people."""

    error: str
    detail: str
