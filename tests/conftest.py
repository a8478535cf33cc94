"""What tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from streams.local import Stack, local_stack


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One broker for the whole session; tests keep apart by topic and group names of their own."""
    with local_stack(tmp_path_factory.mktemp("kafka")) as stack:
        yield stack
