"""What a line of the log says of the message that is handled, and what `steadfaust logs` finds in files."""

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

from streams.cli.main import app
from streams.logs import HANDLED, add_ids
from streams.saga.messages import SagaTransition


class Handled:
    def log_ids(self) -> dict[str, str]:
        return {"message_id": "m-1", "correlation_id": "o-17"}


def test_a_line_has_the_ids_of_what_is_handled() -> None:
    token = HANDLED.set(Handled())
    try:
        found = add_ids(None, "info", {"event": "charged", "message_id": "own"})
        assert found == {"event": "charged", "message_id": "own", "correlation_id": "o-17"}
    finally:
        HANDLED.reset(token)
    assert add_ids(None, "info", {"event": "idle"}) == {"event": "idle"}


class Told(SagaTransition, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "trips.saga.transitions.v1"


@pytest.mark.parametrize(
    ("step", "before", "after", "level", "event"),
    [
        ("", "started", "completing", "debug", "saga_transition"),
        ("hotel", "in_progress", "completed", "debug", "saga_step_transition"),
        ("hotel", "in_progress", "in_progress", "debug", "saga_heard"),
        ("", "started", "compensating", "info", "saga_compensation"),
        ("", "compensating", "compensated", "info", "saga_compensation"),
        ("hotel", "completed", "compensating", "info", "saga_step_compensation"),
        ("hotel", "in_progress", "failed", "warning", "saga_step_failed"),
        ("", "compensating", "failed", "warning", "saga_failed"),
    ],
)
def test_each_transition_of_a_saga_has_its_event(
    step: str, before: str, after: str, level: str, event: str
) -> None:
    told = Told(
        saga_id="trip:o-17", number=1, time=1.0, step=step, before=before, after=after, detail="no room"
    )
    line = told.log_line()
    assert (line.level, line.event) == (level, event)
    assert line.fields == {
        "saga_id": "trip:o-17", "step": step, "before": before, "after": after, "detail": "no room",
    }  # fmt: skip


# -- steadfaust logs --------------------------------------------------------------------------------------


def line(second: int, event: str, **fields: Any) -> str:
    return json.dumps(
        {**fields, "event": event, "level": "info", "timestamp": f"2026-01-01T00:00:{second:02}Z"}
    )


FAILED = line(3, "handler_failed", correlation_id="o-17", message_id="m-9", error="busy")


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    one, two = tmp_path / "one.log", tmp_path / "two.log"
    of_one = [
        "+-- Faust's banner", FAILED, line(1, "worker_started", slot=0), line(5, "dead_letter", key="o-17"),
        line(5, "dead_letter", key="o-170"), '{"event": "cut off by a ki',
    ]  # fmt: skip
    of_two = [
        line(4, "saga_compensation", saga_id="order:o-17", exception="Traceback\nBoom"),
        line(2, "charged", order_id="o-17"),
        line(9, "told", keys=["o-17"]),
    ]
    one.write_text("\n".join(of_one))
    two.write_text("\n".join(of_two))
    return [str(one), str(two)]


def run(*words: str, **options: Any) -> Any:
    return CliRunner().invoke(app, ["logs", *words], **options)


def events(result: Any) -> list[str]:
    return [text.split()[2] for text in result.stdout.splitlines() if text.startswith("2026")]


def test_what_was_said_of_an_order_is_printed_by_time(files: list[str]) -> None:
    result = run("--order", "o-17", *files)
    said = result.stdout.splitlines()
    assert result.exit_code == 0
    assert events(result) == ["charged", "handler_failed", "saga_compensation", "dead_letter"]
    assert said[1].endswith("correlation_id=o-17  message_id=m-9  error=busy")
    assert said[3:5] == ["Traceback", "Boom"]


def test_as_json_each_line_is_as_it_was(files: list[str]) -> None:
    found = [json.loads(text) for text in run("--order", "o-17", "--json", *files).stdout.splitlines()]
    assert found[1] == json.loads(FAILED)


def test_a_message_is_found_by_its_own_id(files: list[str]) -> None:
    assert "handler_failed" in run("--order", "m-9", *files).stdout


def test_of_whom_nobody_has_said_anything_the_status_is_3(files: list[str]) -> None:
    result = run("--order", "o-1", *files)
    assert (result.exit_code, result.stdout) == (3, "")


def test_standard_input_is_read_too(files: list[str]) -> None:
    result = run("--order", "o-17", "-", input=Path(files[1]).read_bytes())
    assert events(result) == ["charged", "saga_compensation"]


def test_without_files_all_logs_under_var_are_read(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEADFAUST_VAR", str(tmp_path))
    assert run("--order", "o-17").stdout == run("--order", "o-17", *files).stdout


@pytest.mark.parametrize("words", [["no-such.log"], []])
def test_without_a_readable_log_it_is_an_error(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEADFAUST_VAR", str(tmp_path))
    result = run("--order", "o-17", *words)
    assert "log" in str(result.exception)
    assert result.exit_code == 1


def test_without_an_order_it_says_what_it_needs(files: list[str]) -> None:
    result = run(*files)
    assert result.exit_code == 2
    assert "--order" in result.stderr
