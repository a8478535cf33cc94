"""What can be taken away."""

from __future__ import annotations

from enum import StrEnum

#: Where a worker finds what it has to do without; empty: nothing.
CONTROL = "CHAOS_CONTROL"


class Control(StrEnum):
    """A protection that is taken away."""

    INBOX_OFF = "inbox_off"
    FENCING_OFF = "fencing_off"
    STORE_BEFORE_COMMIT = "store_before_commit"
    LETTERS_APART = "letters_apart"
