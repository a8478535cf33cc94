"""The orders API over HTTP, asked whatever its OpenAPI document allows, and what it does not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agents.api.testing import ApiProcess

EXAMPLES = 100
#: DELETE asks for a cancellation: the order is there afterwards.
DOES_NOT_HOLD = "use_after_free"


@pytest.mark.verify("test_orders_api_document.py and the tests of bad input stand for it")
def test_schemathesis_finds_nothing_wrong_in_the_orders_api(orders_url: str, tmp_path: Path) -> None:
    settings = os.environ | {"STEADFAUST_POSTGRES_URL": orders_url, "STEADFAUST_API_PROJECTION": "false"}
    hooks = {"SCHEMATHESIS_HOOKS": "tests.integration.schemathesis_hooks", "PYTHONPATH": str(Path.cwd())}
    with ApiProcess(tmp_path / "api.log", settings) as api:
        asked = subprocess.run(
            [
                *(Path(sys.executable).with_name("schemathesis"), "run", f"{api.url}/docs/openapi.json"),
                *("--checks", "all", "--exclude-checks", DOES_NOT_HOLD, "--max-examples", str(EXAMPLES)),
                *("--continue-on-failure", "--no-color"),
            ],
            env=os.environ | hooks,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert asked.returncode == 0, asked.stdout[-20_000:] + asked.stderr[-2_000:]
        assert "5 selected / 5 total" in asked.stdout, asked.stdout
        assert api.end() == 0
