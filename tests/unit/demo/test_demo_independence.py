import subprocess
import sys

import pytest


@pytest.mark.stack
def test_the_check_loads_nothing_of_the_services() -> None:
    """It must not come to its expectation by asking those whom it judges."""
    program = "import sys, demo.check; print(*(name for name in sys.modules if name.startswith('agents.')))"
    loaded = subprocess.check_output([sys.executable, "-c", program], text=True).split()
    own = "cancellation commands gateway gateway.cards gateway.wire message_bases messages settings"
    assert set(loaded) == {f"agents.{name}" for name in own.split()}
