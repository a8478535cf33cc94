"""Where Kafka is and how to get in, as settings and as a value; no text of either has a password."""

import ssl
from pathlib import Path

import pytest
from aiokafka.errors import SaslAuthenticationFailed
from pydantic import SecretStr

from streams.brokers import Brokers, Security, secret
from streams.errors import SettingsError
from streams.host.agents_app import credentials
from streams.kafka.clients import KafkaOptions
from streams.kafka.security import refusal, tls_context
from streams.postgres.cdc.connector import worker_properties
from streams.settings import Settings
from tests.certificates import Authority

PASSWORD = "pass-phrase-of-the-shop"
USER = {"SASL_USERNAME": "shop", "SASL_PASSWORD": PASSWORD}
SASL_SSL = {"SECURITY_PROTOCOL": "SASL_SSL"}


def settings(monkeypatch: pytest.MonkeyPatch, **environment: str) -> Settings:
    for name, value in environment.items():
        monkeypatch.setenv(f"STEADFAUST_{name}", value)
    monkeypatch.setenv("STEADFAUST_BOOTSTRAP", "kafka.example:9093")
    monkeypatch.setenv("STEADFAUST_APP_ID", "shop")
    return Settings.read_or_exit()


def test_brokers_are_in_the_clear_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = settings(monkeypatch).brokers()
    assert brokers == Brokers("kafka.example:9093") == Brokers.of("kafka.example:9093")
    assert KafkaOptions(request_timeout=1).connection(brokers) == {
        "bootstrap_servers": "kafka.example:9093",
        "request_timeout_ms": 1000,
        "security_protocol": "PLAINTEXT",
    }


def test_every_client_is_told_what_the_settings_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    authority = Authority.at(tmp_path / "ca")
    found = settings(
        monkeypatch,
        **SASL_SSL,
        SASL_MECHANISM="SCRAM-SHA-256",
        SSL_CA_FILE=authority.file,
        SSL_CERTIFICATE_FILE=authority.signed("client", "client.example"),
        **USER,
    )
    told = KafkaOptions().connection(found.brokers())
    context = told.pop("ssl_context")
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert told == {
        "bootstrap_servers": "kafka.example:9093",
        "request_timeout_ms": 20_000,
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": "shop",
        "sasl_plain_password": PASSWORD,
    }
    faust = credentials(found.security())
    assert (faust.protocol.value, faust.mechanism.value) == ("SASL_SSL", "SCRAM-SHA-256")
    assert (faust.username, faust.password, faust.ssl_context) == ("shop", PASSWORD, context)


def test_a_password_comes_from_a_file_as_well(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    found = settings(monkeypatch, **SASL_SSL, SASL_USERNAME="shop", SASL_PASSWORD_FILE=str(file))
    assert found.security().password == PASSWORD


def test_no_text_of_the_settings_has_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    found = settings(monkeypatch, **SASL_SSL, SSL_KEY_PASSWORD="of-the-key", **USER)
    brokers = found.brokers()
    shown = [text(each) for text in (repr, str) for each in (found, brokers)]
    for text in (*shown, found.model_dump_json(), worker_properties(brokers.security)):
        assert PASSWORD not in text
        assert "of-the-key" not in text


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        (SASL_SSL, "set STEADFAUST_SASL_USERNAME"),
        (USER, "has no use for STEADFAUST_SASL_USERNAME"),
        ({"SSL_CA_FILE": "ca.pem"}, "has no use for STEADFAUST_SSL_"),
        ({**USER, "SECURITY_PROTOCOL": "SSL"}, "has no use for STEADFAUST_SASL_USERNAME"),
        ({**USER, "SASL_PASSWORD_FILE": "secret"}, "are both set"),
        ({"SASL_PASSWORD_FILE": "/nowhere/secret"}, "cannot be read: No such file"),
        ({"SASL_PASSWORD_FILE": "/dev/null"}, "which is empty"),
        ({"SECURITY_PROTOCOL": "SSL", "SSL_KEY_FILE": "key.pem"}, "set STEADFAUST_SSL_CERTIFICATE_FILE"),
        ({"SECURITY_PROTOCOL": "TLS", **USER}, "'SASL_SSL'"),
    ],
)
def test_what_contradicts_itself_or_would_have_no_effect_is_refused(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], told: str
) -> None:
    with pytest.raises(SystemExit) as refused:
        settings(monkeypatch, **environment)
    assert told in str(refused.value)
    assert PASSWORD not in str(refused.value)


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "some.pem"
    if content is not None:
        file.write_text(content)
    for security in (
        Security(protocol="SSL", ca_file=str(file)),
        Security(protocol="SSL", certificate_file=str(file)),
    ):
        with pytest.raises(SettingsError, match=r"some\.pem cannot be used .* PEM"):
            tls_context(security)


def test_what_may_pass_by_itself_is_no_refusal() -> None:
    options = {"sasl_plain_username": "shop", "sasl_mechanism": "PLAIN"}
    for error in (ConnectionRefusedError(), TimeoutError(), ssl.SSLError("eof"), OSError("no route")):
        assert refusal(error, "kafka.example", 9093, options) == ""
    assert "'shop' in by PLAIN" in refusal(SaslAuthenticationFailed("no"), "kafka.example", 9093, options)


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [("PLAIN", "plain.PlainLoginModule"), ("SCRAM-SHA-512", "scram.ScramLoginModule")],
)
def test_connect_and_all_of_its_clients_get_in_alike(mechanism: str, module: str) -> None:
    security = Security("SASL_SSL", mechanism, "shop", PASSWORD, ca_file="ca.pem", certificate_file="c.pem")  # type: ignore[arg-type]  # one of the two
    lines = dict(line.split("=", 1) for line in worker_properties(security).splitlines())
    for of in ("", "producer.", "consumer.", "admin."):
        assert lines[f"{of}security.protocol"] == "SASL_SSL"
        assert lines[f"{of}sasl.mechanism"] == mechanism
        assert lines[f"{of}sasl.jaas.config"] == (
            f"org.apache.kafka.common.security.{module} required"
            ' username="${env:CDC_SASL_USERNAME}" password="${env:CDC_SASL_PASSWORD}";'
        )
        assert lines[f"{of}ssl.truststore.location"] == "${env:CDC_SSL_CA_FILE}"
        assert lines[f"{of}ssl.keystore.location"] == "${env:CDC_SSL_CERTIFICATE_FILE}"


@pytest.mark.parametrize("content", ["s3cret-é", "s3cret-é\n", "s3cret-é\r\n", "\ufeffs3cret-é\r\n"])
def test_a_secret_ends_before_the_end_of_its_line(tmp_path: Path, content: str) -> None:
    file = tmp_path / "secret"
    file.write_bytes(content.encode())
    assert secret("WEB_TOKEN", SecretStr(""), str(file)) == "s3cret-é"
    if "\ufeff" not in content:
        assert secret("WEB_TOKEN", SecretStr(content), "") == "s3cret-é"


def test_a_secret_of_several_lines_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(b"one\r\ntwo\r\n")
    with pytest.raises(SettingsError, match=r"STEADFAUST_WEB_TOKEN_FILE is .* has several lines"):
        secret("WEB_TOKEN", SecretStr(""), str(file))
    with pytest.raises(SettingsError, match="STEADFAUST_WEB_TOKEN has several lines"):
        secret("WEB_TOKEN", SecretStr("one\ntwo"), "")
