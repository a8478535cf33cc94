"""S3 of the local stack, without Kafka: it comes up with its bucket, and goes and comes back when asked."""

import signal
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from streams.local import Stack, local_stack
from tests.integration.stacks import does_not_start, steadfaust
from tests.waiting import BOUND, eventually

BUCKET = "event-payloads"


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=BOUND) as answer:
        return bytes(answer.read())


def test_s3_goes_and_comes_back_where_it_was(s3: Stack) -> None:
    url = s3.url("s3")
    assert b"<Name>event-payloads</Name>" in get(f"{url}/{BUCKET}")
    before = s3.state.processes["s3"].pid

    s3.stop_process("s3")
    assert not s3.state.processes["s3"].up
    assert not psutil.pid_exists(before)
    with pytest.raises(urllib.error.URLError, match="refused"):
        get(url)

    s3.start_process("s3")
    assert s3.url("s3") == url
    assert s3.state.processes["s3"].pid != before
    assert b"<Name>event-payloads</Name>" in get(f"{url}/{BUCKET}")


def test_s3_that_dies_unasked_ends_the_stack(tmp_path: Path) -> None:
    with local_stack(tmp_path, brokers=0, buckets=[BUCKET]) as stack:
        stack.signal_process("s3", signal.SIGKILL)
        log = tmp_path / "log" / "supervisor.log"
        # Its last word: by then all has been stopped.
        eventually(lambda: "error: " in log.read_text(), "the supervisor's error")
        assert stack.var.read() is None
    last = log.read_text().splitlines()[-1]
    assert "error: s3 died (SIGKILL): " in last
    assert last.endswith(f"log: {tmp_path}/log/s3.log")


def test_the_command_starts_s3_where_the_project_names_buckets(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(f'[tool.steadfaust.local]\nbuckets = ["{BUCKET}"]\n')
    try:
        said = steadfaust("up", "--brokers", "0", cwd=tmp_path).stdout.splitlines()
        address = next(line.split()[1] for line in said if line.startswith("s3  "))
        assert b"<Name>event-payloads</Name>" in get(f"{address}/{BUCKET}")
    finally:
        assert steadfaust("down", cwd=tmp_path).stdout == "stopped\n"


def test_a_bucket_name_that_s3_refuses_is_one_line(tmp_path: Path) -> None:
    why = r"^a bucket cannot be named 'Gifts': use 3 to 63 lower-case letters"
    does_not_start(why, tmp_path, brokers=0, buckets=["Gifts"])
