"""What tests share."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from streams.local import Stack, local_stack

# Machines are shared: how long an example takes there says nothing of the code.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")

# Whoever starts the tests in the background has SIGINT ignored, and so would all that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One broker for the whole session; tests keep apart by topic and group names of their own."""
    with local_stack(tmp_path_factory.mktemp("kafka")) as stack:
        yield stack
