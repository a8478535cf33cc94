"""Which records a lane has handled before it reads them."""

from __future__ import annotations

from typing import Any

import pytest

from streams.model.envelope import LOOPBACK
from streams.ports import OwnRecord
from streams.staging.loops import was_looped
from streams.testing import FakeRecord


@pytest.mark.parametrize(
    ("headers", "looped"),
    [
        ([], False),
        ([("traceparent", None)], False),
        ([(LOOPBACK, None)], False),
        ([(LOOPBACK, b"other")], False),
        ([(LOOPBACK, b"app"), ("after", b"")], False),
        ([("before", None), (LOOPBACK, b"app")], True),
    ],
)
def test_only_the_applications_own_mark_at_the_end_counts(headers: list[Any], looped: bool) -> None:
    assert was_looped(OwnRecord("orders", 0, 0, 0, b"key", b"", headers), b"app") is looped
    assert not was_looped(FakeRecord("orders", 0, 0, 0, b"key", b"", headers), b"app")
