from __future__ import annotations

import subprocess
import sys


def test_the_check_loads_nothing_of_the_services() -> None:
    """It must not come to its expectation by asking those whom it judges."""
    program = "import sys, demo.check; print(*(name for name in sys.modules if name.startswith('agents.')))"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()
    assert set(loaded) == {
        "agents.cancellation",
        "agents.commands",
        "agents.gateway",
        "agents.gateway.cards",
        "agents.gateway.wire",
        "agents.message_bases",
        "agents.messages",
        "agents.settings",
    }
