"""Names and values in the environment: each mistake is one line that names the setting."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr
from typer.testing import CliRunner

from agents.settings import OrderSettings
from streams.cli import outbox
from streams.cli.main import app
from streams.environment import OF_TOOLS, PREFIX
from streams.errors import SettingsError
from streams.host.access import broker_urls
from streams.settings import Settings

ROOT = Path(__file__).parents[3]
#: Beginnings of names, and names that tests make up.
NO_NAMES = {"STEADFAUST_", "STEADFAUST_BOOTSTRP", "STEADFAUST_SSL_", "STEADFAUST_S3_", "STEADFAUST_OUTBOX_"}


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, unset: None) -> None:
    # Its lines would go to what stands for standard error within one command only, for all tests behind.
    monkeypatch.setattr(outbox, "configure_logs", lambda **_: None)


def refusal(monkeypatch: pytest.MonkeyPatch, **environment: str) -> str:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        OrderSettings.read_or_exit()
    line = str(ended.value)
    assert line.startswith("error: ")
    assert "\n" not in line
    return line


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("STEADFAUST_BOOTSTRP", "STEADFAUST_BOOTSTRAP"),
        ("STEADFAUST_LANE", "STEADFAUST_LANES"),
        ("STEADFAUST_GATEWAY_URI", "STEADFAUST_GATEWAY_URL"),
        ("steadfaust_web_tokn", "STEADFAUST_WEB_TOKEN"),
    ],
)
def test_a_misspelled_setting_is_refused_with_the_one_meant(
    monkeypatch: pytest.MonkeyPatch, name: str, meant: str
) -> None:
    assert f"{name} is not a setting: did you mean {meant}?" in refusal(monkeypatch, **{name: "1"})


def test_a_name_like_no_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    line = refusal(monkeypatch, STEADFAUST_QUUX="1", STEADFAUST_LANE="2")
    assert "STEADFAUST_QUUX is not a setting: unset it (docs/settings.md lists all settings)" in line
    assert "STEADFAUST_LANES?" in line


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("STEADFAUST_FAULTS", ""),
        ("STEADFAUST_ORDERS_SERVICE_HOST", "10.0.0.1"),
        ("STEADFAUST_ORDERS_SERVICE_PORT_HTTP", "80"),
        ("STEADFAUST_ORDERS_PORT", "tcp://10.0.0.1:80"),
        ("STEADFAUST_ORDERS_PORT_80_TCP_ADDR", "10.0.0.1"),
    ],
)
def test_names_of_tools_and_kubernetes_pass(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    OrderSettings.read_or_exit()


def test_every_name_in_the_project_is_declared() -> None:
    """A name that a test, a script or CI reads, and nobody has declared, would end the workers it starts."""
    declared = OF_TOOLS | {PREFIX + name.upper() for name in OrderSettings.model_fields}
    found: dict[str, str] = {}
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    for file in listed.stdout.splitlines():
        path = ROOT / file
        if path == Path(__file__) or path.suffix in (".js", ".png", ".css", ".avsc") or not path.is_file():
            continue
        for name in re.findall(r"\bSTEADFAUST_[A-Z0-9_]+", path.read_text(errors="replace")):
            found.setdefault(name, file)
    assert {name: file for name, file in found.items() if name not in declared | NO_NAMES} == {}


#: Not a number, not a choice, not an address.
BAD = ("a b", "many", "\x01", "nan", "inf", "1e30", "9" * 30)


@pytest.mark.parametrize("field", sorted(OrderSettings.model_fields))
def test_a_bad_value_names_its_setting_in_one_line(monkeypatch: pytest.MonkeyPatch, field: str) -> None:
    name, kind = PREFIX + field.upper(), OrderSettings.model_fields[field].annotation
    for value in BAD:
        monkeypatch.setenv(name, value)
        try:
            OrderSettings.read_or_exit()
        except SystemExit as ended:
            line = str(ended)
            assert "\n" not in line
            assert name in line
        else:  # any text will do
            assert kind in (str, Path, SecretStr), value


@pytest.mark.parametrize(
    ("field", "value", "meant"),
    [
        ("bootstrap", "a b", "give brokers as host:port,host:port"),
        ("bootstrap", ",", "give brokers as host:port,host:port"),
        ("bootstrap", "kafka:9092,a b", "give brokers as host:port,host:port"),
        ("postgres_url", "localhost:5432/orders", "begins with postgresql://"),
        ("gateway_url", "127.0.0.1:8090", "begins with http://"),
        ("s3_endpoint", "minio:9000", "begins with http://"),
        ("web_port", "70000", "the maximum is 65,535"),
        ("web_proxies", "proxy.example", "give IP addresses"),
        ("app_id", "my app", "letters, digits, dots, hyphens and underscores"),
        ("outbox", "cdcc", "'poll' or 'cdc'"),
        ("var", __file__, "give a directory"),
    ],
)
def test_refusals_say_what_fits(monkeypatch: pytest.MonkeyPatch, field: str, value: str, meant: str) -> None:
    line = refusal(monkeypatch, **{PREFIX + field.upper(): value})
    assert meant in line
    assert PREFIX + field.upper() in line


@pytest.mark.parametrize("given", ["a:9092,b:9092,", " a:9092 ,, b:9092", ",a:9092,b:9092 , "])
def test_clients_get_brokers_without_empty_parts(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("STEADFAUST_BOOTSTRAP", given)
    monkeypatch.setenv("STEADFAUST_APP_ID", "shop")
    settings = OrderSettings.read_or_exit()
    assert settings.brokers().addresses == "a:9092,b:9092"
    assert broker_urls(settings) == ["kafka://a:9092", "kafka://b:9092"]


def test_a_refused_secret_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "s3cr3t" not in refusal(monkeypatch, STEADFAUST_POSTGRES_URL="user:s3cr3t@host/db")


def command(place: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-c", "from streams.cli.main import main; main()", "dlq", "list"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(call, cwd=place, env=env, capture_output=True, text=True, check=False)


def test_a_command_refuses_names_and_values_in_one_line(tmp_path: Path) -> None:
    for environment, said in (
        ({"STEADFAUST_BOOTSTRP": "x"}, "did you mean STEADFAUST_BOOTSTRAP?"),
        ({"STEADFAUST_LANES": "many"}, "STEADFAUST_LANES is 'many'"),
    ):
        ended = command(tmp_path, **environment)
        assert (ended.returncode, ended.stdout) == (1, "")
        assert re.fullmatch(rf"error: .*{re.escape(said)}.*\n", ended.stderr)


#: Commands that read settings, in a place without any.
COMMANDS = (
    ("db", "migrate"), ("db", "migrate", "--dry-run"), ("db", "status"), ("db", "wait"),
    ("outbox", "status"), ("outbox", "relay"), ("inbox", "status"), ("queue", "status"), ("cdc", "status"),
)  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS)
def test_no_command_shows_the_password_of_a_bad_address(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEADFAUST_POSTGRES_URL", "user:s3cr3t@host/db")
    refused = CliRunner().invoke(app, words).exception
    assert isinstance(refused, SettingsError)  # `main` makes one line of it
    assert "STEADFAUST_POSTGRES_URL" in str(refused)
    assert "s3cr3t" not in str(refused)


def relayed_with(monkeypatch: pytest.MonkeyPatch, place: Path, **environment: str) -> Settings | str:
    """The settings that a relay starts with in this folder, or why it does not."""
    found: list[Settings] = []

    async def started(settings: Settings, port: int, host: str) -> None:
        found.append(settings)

    monkeypatch.setattr(outbox, "_relay", started)
    monkeypatch.chdir(place)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    result = CliRunner().invoke(app, ["outbox", "relay"])
    return found[0] if found else f"{result.output}{result.exception}"


@pytest.mark.parametrize("is_project", [True, False])
def test_a_relay_takes_the_settings_that_workers_share(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_project: bool
) -> None:
    shared = {"STEADFAUST_API_RATE": "5", "STEADFAUST_GATEWAY_PATIENCE": "2", "STEADFAUST_LANES": "2"}
    found = relayed_with(monkeypatch, ROOT if is_project else tmp_path, **shared)
    assert isinstance(found, Settings), found
    assert found.lanes == 2


def test_a_relay_refuses_what_no_process_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, said in (
        ("STEADFAUST_QUUX", "is not a setting"),
        ("STEADFAUST_LANE", "mean STEADFAUST_LANES?"),
    ):
        assert f"{said}" in str(relayed_with(monkeypatch, ROOT, **{name: "1"}))
        monkeypatch.delenv(name)
    assert "9 lanes over 4 partitions" in str(relayed_with(monkeypatch, ROOT, STEADFAUST_LANES="9"))


def test_a_relay_without_a_name_is_told_what_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    said = str(relayed_with(monkeypatch, ROOT, STEADFAUST_BOOTSTRAP="kafka:9092"))
    assert "STEADFAUST_APP_ID is not: set it in every process" in said
    assert "would share lanes and topics" in said


def test_a_relay_asks_for_no_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    found = relayed_with(monkeypatch, ROOT, STEADFAUST_S3_ENDPOINT="http://minio:9000")
    assert isinstance(found, Settings), found
    with pytest.raises(SettingsError, match=r"STEADFAUST_S3_ENDPOINT is .*: set STEADFAUST_S3_BUCKET"):
        found.bucket()


def test_a_command_knows_the_settings_of_its_project(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from streams.settings import Settings\nclass ShopSettings(Settings):\n    vat: int = 0\n"
    )
    (tmp_path / "pyproject.toml").write_text('[tool.steadfaust]\nsettings = "shop:ShopSettings"\n')
    assert "no worker of steadfaust" in command(tmp_path, STEADFAUST_VAT="19").stderr
    assert "STEADFAUST_QUUX is not a setting" in command(tmp_path, STEADFAUST_QUUX="1").stderr
    (tmp_path / "pyproject.toml").write_text('[tool.steadfaust]\nsettings = "shop:None"\n')
    assert "write it as module:Class" in command(tmp_path).stderr


def test_settings_of_a_library_application_are_read_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEADFAUST_GATEWAY_URL", "http://bank")
    with pytest.raises(SystemExit, match="STEADFAUST_GATEWAY_URL is not a setting"):
        Settings.read_or_exit()
