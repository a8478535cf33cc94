"""`python -m agents.inventory`: what it refuses. tests/scenarios/test_orders_over_http.py lets one arrive."""

import pytest

from agents.inventory.__main__ import main
from tables.values import MAX_UNITS


@pytest.mark.parametrize(
    "received", ["cup", "cup=", "=3", "cup=0", "cup=-1", "cup=1.5", "cup=x", f"cup={MAX_UNITS + 1}"]
)
def test_a_delivery_without_sku_or_pieces_is_refused(
    received: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["d-1", received])
    assert refused.value.code == 2
    assert received in capsys.readouterr().err


@pytest.mark.usefixtures("unset")
def test_a_delivery_that_kafka_does_not_get_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STEADFAUST_APP_ID", "orders")
    monkeypatch.setenv("STEADFAUST_BOOTSTRAP", "127.0.0.1:1")
    assert main(["d-1", "cup=3"]) == 1
    assert "send it again" in capsys.readouterr().err
