"""How clients connect to Kafka, and how workers reach each other: both as values made from settings.

The configurations of aiokafka, Faust and Kafka Connect are derived from them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings

from streams.errors import SettingsError

Protocol: TypeAlias = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
Mechanism: TypeAlias = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]

#: The value of `web_host` for which a worker looks for its address itself.
FIND = "auto"
#: Characters of a token at least: nothing else protects the operations from the network.
LEAST = 16


#: Timeout in seconds for a question to Kafka, PostgreSQL, another worker, or a lane that is opening. After it
#: the answer has what is known, and why the rest is missing.
READ = 1.0


@dataclass(frozen=True, slots=True)
class Security:
    """How connections to brokers are encrypted, and who this client is. No text of it has a password.

    Attributes:
        protocol: as Kafka calls it.
        mechanism: of SASL.
        ca_file: certificates that are trusted, PEM; empty: those that the machine trusts.
        certificate_file: this client's own, PEM; empty: it has none.
        key_file: its key, PEM; empty: it is in `certificate_file`.
        key_password: of the key; empty: it has none.
    """

    protocol: Protocol = "PLAINTEXT"
    mechanism: Mechanism = "SCRAM-SHA-512"
    username: str = ""
    password: str = field(default="", repr=False)
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    key_password: str = field(default="", repr=False)

    @property
    def encrypted(self) -> bool:
        """Whether connections are TLS."""
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def authenticated(self) -> bool:
        """Whether this client says who it is, by SASL."""
        return self.protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    def check(self) -> None:
        """Raise SettingsError when something is missing, or would be ignored: a password that is set and not
        used is a client that is less protected than its operator thinks.
        """
        problem = f"STEADFAUST_SECURITY_PROTOCOL is {self.protocol}"
        if self.authenticated and not (self.username and self.password):
            raise SettingsError(
                f"{problem}: set STEADFAUST_SASL_USERNAME, and STEADFAUST_SASL_PASSWORD or its _FILE"
            )
        if not self.authenticated and (self.username or self.password):
            raise SettingsError(
                f"{problem}, which has no use for STEADFAUST_SASL_USERNAME and STEADFAUST_SASL_PASSWORD:"
                " set SASL_SSL"
            )
        if not self.encrypted and (self.ca_file or self.certificate_file or self.key_file):
            files = {"CA": self.ca_file, "CERTIFICATE": self.certificate_file, "KEY": self.key_file}
            names = ", ".join(f"STEADFAUST_SSL_{name}_FILE" for name, file in files.items() if file)
            raise SettingsError(f"{problem}, which has no use for {names}: set SSL or SASL_SSL")
        if self.key_file and not self.certificate_file:
            raise SettingsError("STEADFAUST_SSL_KEY_FILE is set: set STEADFAUST_SSL_CERTIFICATE_FILE, too")


@dataclass(frozen=True, slots=True)
class Brokers:
    """Addresses of brokers as `host:port,...`, with the TLS and SASL settings for them."""

    addresses: str
    security: Security = Security()

    @classmethod
    def of(cls, bootstrap: Bootstrap) -> Brokers:
        """Brokers from a value of either form. Addresses alone mean unencrypted brokers without log-in."""
        return bootstrap if isinstance(bootstrap, Brokers) else cls(bootstrap)

    def __str__(self) -> str:
        return self.addresses


#: What clients accept for brokers.
Bootstrap: TypeAlias = Brokers | str


@dataclass(frozen=True, slots=True)
class Peers:
    """How other machines reach a worker, and how they authenticate. Its repr does not contain the tokens.

    Attributes:
        host: name or address that the worker gives to others, or `auto` for the one that reaches the brokers.
            If it is empty, only the worker's own machine can reach it.
        token: token for requests from other machines; the same on all workers.
        viewer_token: token for read-only access.
        login: whether a token is required on the worker's own machine, too.
        user_header: header in which a reverse proxy at one of `proxies` names the user.
        proxies: addresses of trusted proxies, also for the client's address (`X-Forwarded-For`).
        operators: users named by the proxy who may change something, or `*` for all.
    """

    host: str = ""
    token: str = field(default="", repr=False)
    viewer_token: str = field(default="", repr=False)
    login: bool = False
    user_header: str = ""
    proxies: frozenset[str] = frozenset()
    operators: frozenset[str] = frozenset()

    def check(self) -> None:
        """Raise SettingsError if the worker would be reachable without a token, or with a weak one."""
        if self.host and not self.token:
            raise SettingsError(
                f"STEADFAUST_WEB_HOST is {self.host}, so other machines can reach this worker: set"
                " STEADFAUST_WEB_TOKEN, or its _FILE, to the same secret on all workers"
            )
        if self.login and not self.token:
            raise SettingsError("STEADFAUST_WEB_LOGIN is set: set STEADFAUST_WEB_TOKEN, or its _FILE, too")
        for name, token in (("WEB_TOKEN", self.token), ("WEB_VIEWER_TOKEN", self.viewer_token)):
            if token and not (len(token) >= LEAST and token.isascii() and token.isprintable()):
                raise SettingsError(
                    f"STEADFAUST_{name} must have at least {LEAST} characters, all of them ASCII"
                )
        if self.viewer_token and self.viewer_token == self.token:
            raise SettingsError(
                "STEADFAUST_WEB_VIEWER_TOKEN is STEADFAUST_WEB_TOKEN: its holders could change everything"
            )
        if self.user_header and not self.proxies:
            raise SettingsError(
                "STEADFAUST_WEB_USER_HEADER is set: set STEADFAUST_WEB_PROXIES, too, to the trusted proxies"
            )


class BrokerSettings(BaseSettings):
    """Settings for connections to Kafka."""

    bootstrap: str = Field(default="", description="brokers as host:port,... (empty: the local stack's)")
    security_protocol: Protocol = Field(
        default="PLAINTEXT", description="PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL"
    )
    sasl_mechanism: Mechanism = Field(
        default="SCRAM-SHA-512", description="PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512"
    )
    sasl_username: str = Field(default="", description="user name for brokers")
    sasl_password: SecretStr = Field(default=SecretStr(""), description="password of the user")
    sasl_password_file: str = Field(
        default="", description="file with the password, instead of sasl_password"
    )
    ssl_ca_file: str = Field(
        default="", description="PEM file with trusted certificates (empty: the machine's)"
    )
    ssl_certificate_file: str = Field(default="", description="PEM file with the client's certificate")
    ssl_key_file: str = Field(
        default="", description="PEM file with its key (empty: it is in the certificate file)"
    )
    ssl_key_password: SecretStr = Field(
        default=SecretStr(""), description="password of the key, if it has one"
    )

    def security(self) -> Security:
        """TLS and SASL. Raises SettingsError if values contradict each other, or a file is missing."""
        found = Security(
            protocol=self.security_protocol,
            mechanism=self.sasl_mechanism,
            username=self.sasl_username,
            password=secret("SASL_PASSWORD", self.sasl_password, self.sasl_password_file),
            ca_file=self.ssl_ca_file,
            certificate_file=self.ssl_certificate_file,
            key_file=self.ssl_key_file,
            key_password=self.ssl_key_password.get_secret_value(),
        )
        found.check()
        return found


class PeerSettings(BaseSettings):
    """Settings for connections between workers, and for access to their pages."""

    web_host: str = Field(
        default="",
        description="host at which other machines reach this worker (auto: find it; empty: loopback only)",
    )
    web_token: SecretStr = Field(
        default=SecretStr(""), description="token that other machines must send; the same on all workers"
    )
    web_token_file: str = Field(default="", description="file with the token, instead of web_token")
    web_viewer_token: SecretStr = Field(default=SecretStr(""), description="token for read-only access")
    web_viewer_token_file: str = Field(
        default="", description="file with the read-only token, instead of web_viewer_token"
    )
    web_login: bool = Field(default=False, description="require the token on the worker's own machine, too")
    web_user_header: str = Field(default="", description="header in which a reverse proxy names the user")
    web_proxies: str = Field(default="", description="addresses of trusted proxies, separated by commas")
    web_operators: str = Field(
        default="",
        description="users named by the proxy who may change something, separated by commas (*: all)",
    )

    def peers(self) -> Peers:
        """How other machines reach this worker. Raises SettingsError if values contradict each other."""
        viewer = secret("WEB_VIEWER_TOKEN", self.web_viewer_token, self.web_viewer_token_file)
        found = Peers(
            self.web_host,
            secret("WEB_TOKEN", self.web_token, self.web_token_file),
            viewer,
            self.web_login,
            self.web_user_header,
            _names(self.web_proxies),
            _names(self.web_operators),
        )
        found.check()
        return found


def _names(text: str) -> frozenset[str]:
    return frozenset(name for each in text.split(",") if (name := each.strip()))


def secret(name: str, value: SecretStr, file: str) -> str:
    """A secret from its setting or its file, without a byte order mark or a line break at the end, which
    files from Windows may have.

    Raises SettingsError if both are set, if the file is empty or cannot be read, or if there are several
    lines.
    """
    text = value.get_secret_value().rstrip("\r\n")
    if not file:
        return _one_line(f"STEADFAUST_{name}", text)
    if text:
        raise SettingsError(f"STEADFAUST_{name} and STEADFAUST_{name}_FILE are both set: set one of them")
    try:
        read = Path(file).read_text("utf-8-sig").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SettingsError(f"STEADFAUST_{name}_FILE is {file}, which cannot be read: {reason}") from None
    if not read:
        raise SettingsError(f"STEADFAUST_{name}_FILE is {file}, which is empty")
    return _one_line(f"STEADFAUST_{name}_FILE is {file}, which", read)


def _one_line(where: str, text: str) -> str:
    if "\r" in text or "\n" in text:
        raise SettingsError(f"{where} has several lines: give the secret alone")
    return text
