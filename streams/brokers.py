"""Where Kafka is and how to get in, as one value, which every client of the library takes; and how workers
reach each other.

Both are made of settings; the settings of aiokafka, Faust and Kafka Connect follow from them.
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


#: Seconds for which a question is waited for, whoever is asked: Kafka, PostgreSQL, another worker, or a lane
#: that opens. Then the answer is what is known, and why there is no more.
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
    """Where some brokers of the cluster are, `host:port,...`, and how to get in."""

    addresses: str
    security: Security = Security()

    @classmethod
    def of(cls, bootstrap: Bootstrap) -> Brokers:
        """Addresses alone are of brokers that anybody may connect to, unencrypted."""
        return bootstrap if isinstance(bootstrap, Brokers) else cls(bootstrap)

    def __str__(self) -> str:
        return self.addresses


#: What clients take.
Bootstrap: TypeAlias = Brokers | str


@dataclass(frozen=True, slots=True)
class Peers:
    """How a worker is reached from other machines, and what they have to show. No text of it has the token.

    Attributes:
        host: the name or address that it tells the others, `auto` for the one that reaches the brokers;
            empty: it is reached on its own machine alone.
        token: what requests from other machines have to show; the same for all workers.
        viewer_token: what those show who may only look.
        login: people and programs on the worker's own machine have to show a token, too.
        user_header: in which a reverse proxy at one of `proxies` names the visitor.
        proxies: addresses that are believed, also which address a request comes from (`X-Forwarded-For`).
        operators: the names of those who may change something, by the proxy's word; `*` for all.
    """

    host: str = ""
    token: str = field(default="", repr=False)
    viewer_token: str = field(default="", repr=False)
    login: bool = False
    user_header: str = ""
    proxies: frozenset[str] = frozenset()
    operators: frozenset[str] = frozenset()

    def check(self) -> None:
        """Raise SettingsError where a worker would be open to the network without a token worth the name."""
        if self.host and not self.token:
            raise SettingsError(
                f"STEADFAUST_WEB_HOST is {self.host}, so other machines can ask this worker: set"
                " STEADFAUST_WEB_TOKEN, or its _FILE, to the same secret on all workers"
            )
        if self.login and not self.token:
            raise SettingsError("STEADFAUST_WEB_LOGIN is set: set STEADFAUST_WEB_TOKEN, or its _FILE, too")
        for name, token in (("WEB_TOKEN", self.token), ("WEB_VIEWER_TOKEN", self.viewer_token)):
            if token and not (len(token) >= LEAST and token.isascii() and token.isprintable()):
                raise SettingsError(f"STEADFAUST_{name} has to be {LEAST} characters of ASCII at least")
        if self.viewer_token and self.viewer_token == self.token:
            raise SettingsError(
                "STEADFAUST_WEB_VIEWER_TOKEN is STEADFAUST_WEB_TOKEN: its holders could change everything"
            )
        if self.user_header and not self.proxies:
            raise SettingsError(
                "STEADFAUST_WEB_USER_HEADER is set: set STEADFAUST_WEB_PROXIES, too, to who is believed"
            )


class BrokerSettings(BaseSettings):
    """The settings that say where Kafka is and how to get in."""

    bootstrap: str = Field(default="", description="brokers, host:port,...; empty: those of the local stack")
    security_protocol: Protocol = Field(
        default="PLAINTEXT", description="how clients connect: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL"
    )
    sasl_mechanism: Mechanism = Field(
        default="SCRAM-SHA-512", description="PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512"
    )
    sasl_username: str = Field(default="", description="who this client is to brokers")
    sasl_password: SecretStr = Field(default=SecretStr(""), description="belongs to the user")
    sasl_password_file: str = Field(default="", description="file with the password, in its place")
    ssl_ca_file: str = Field(
        default="", description="certificates that are trusted, PEM; empty: those that the machine trusts"
    )
    ssl_certificate_file: str = Field(default="", description="this client's own certificate, PEM")
    ssl_key_file: str = Field(default="", description="its key, PEM; empty: in the certificate's file")
    ssl_key_password: SecretStr = Field(default=SecretStr(""), description="of the key, if it has one")

    def security(self) -> Security:
        """How to get in. Raises SettingsError when settings contradict each other, or a file is missing."""
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
    """The settings that say how workers reach each other."""

    web_host: str = Field(
        default="", description="host that other machines reach this worker at; auto: found; empty: none do"
    )
    web_token: SecretStr = Field(
        default=SecretStr(""), description="what they have to show; the same for all workers"
    )
    web_token_file: str = Field(default="", description="file with the token, in its place")
    web_viewer_token: SecretStr = Field(
        default=SecretStr(""), description="what those have to show who may only look"
    )
    web_viewer_token_file: str = Field(default="", description="file with that token, in its place")
    web_login: bool = Field(default=False, description="on the worker's own machine, too, the token is shown")
    web_user_header: str = Field(default="", description="header in which a reverse proxy names the visitor")
    web_proxies: str = Field(
        default="", description="addresses of the proxies that are believed, comma between"
    )
    web_operators: str = Field(
        default="", description="who may change something, by the proxy's word, comma between; *: all"
    )

    def peers(self) -> Peers:
        """How this worker is reached. Raises SettingsError."""
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
    """A secret from its setting or from the file in its place, without the line's end: what was written on
    Windows ends with CR LF, and may begin with a byte order mark.

    Raises SettingsError when both are set, the file cannot be read or is empty, or it has several lines.
    """
    text = value.get_secret_value().rstrip("\r\n")
    if not file:
        return _one_line(f"STEADFAUST_{name}", text)
    if text:
        raise SettingsError(f"STEADFAUST_{name} and STEADFAUST_{name}_FILE are both set: set one of them")
    try:
        read = Path(file).read_text("utf-8-sig").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise SettingsError(f"STEADFAUST_{name}_FILE is {file}, which cannot be read: {reason}") from None
    if not read:
        raise SettingsError(f"STEADFAUST_{name}_FILE is {file}, which is empty")
    return _one_line(f"STEADFAUST_{name}_FILE is {file}, which", read)


def _one_line(where: str, text: str) -> str:
    if "\r" in text or "\n" in text:
        raise SettingsError(f"{where} has several lines: give the secret alone")
    return text
