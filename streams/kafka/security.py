"""TLS and SASL arguments for aiokafka, and explanations of why a broker refuses a connection."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from aiokafka.errors import IllegalSaslStateError, SaslAuthenticationFailed, UnsupportedSaslMechanismError

from streams.brokers import Security
from streams.errors import SettingsError

_NOT_YET, _EXPIRED = 9, 10
_OTHER_NAME = (62, 64)  # the certificate lacks the host name, or the address
"""Codes of OpenSSL for why a certificate was not accepted."""
_CLOCK = "or put this machine's clock right"


def client_arguments(security: Security) -> dict[str, Any]:
    """Arguments that every aiokafka client takes. Raises SettingsError for an unusable file."""
    found: dict[str, Any] = {"security_protocol": security.protocol}
    if security.encrypted:
        found["ssl_context"] = tls_context(security)
    if security.authenticated:
        found["sasl_mechanism"] = security.mechanism
        found["sasl_plain_username"] = security.username
        found["sasl_plain_password"] = security.password
    return found


@lru_cache(maxsize=8)
def tls_context(security: Security) -> ssl.SSLContext:
    """The TLS context, shared by all connections with the same settings. Raises SettingsError."""
    try:
        context = ssl.create_default_context(cafile=security.ca_file or None)
    except OSError as error:  # an SSLError is one: no certificate in the file
        raise _unusable("SSL_CA_FILE", security.ca_file, error) from None
    if security.certificate_file:
        try:
            context.load_cert_chain(
                security.certificate_file,
                security.key_file or None,
                # Without this, OpenSSL would ask for the password on the terminal.
                password=lambda: security.key_password,
            )
        except OSError as error:
            names = f"{security.certificate_file} {security.key_file}".strip()
            raise _unusable("SSL_CERTIFICATE_FILE and _KEY_FILE", names, error) from None
    return context


def _unusable(name: str, value: str, error: OSError) -> SettingsError:
    reason = error.reason if isinstance(error, ssl.SSLError) and error.reason else error.strerror
    return SettingsError(f"STEADFAUST_{name}: {value} cannot be used ({reason}): it has to be readable PEM")


def refusal(error: BaseException, host: str, port: int, options: Mapping[str, Any]) -> str:
    """Why a broker and this client cannot connect, and what to do; empty if a later attempt may succeed.

    `options` are the aiokafka options of the connection.
    """
    where = f"broker {host}:{port}"
    if isinstance(error.__cause__, ssl.SSLError):
        error = error.__cause__  # the TLS error came after the handshake, at the next read
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{where}: {_certificate(error, host)}"
    reason = (getattr(error, "reason", "") or "") if isinstance(error, ssl.SSLError) else ""
    if reason == "WRONG_VERSION_NUMBER":
        return f"{where} does not speak TLS: look at STEADFAUST_SECURITY_PROTOCOL and at the port"
    if "CERTIFICATE_REQUIRED" in reason:
        return f"{where} wants a certificate of this client: set STEADFAUST_SSL_CERTIFICATE_FILE"
    user, mechanism = options.get("sasl_plain_username"), options.get("sasl_mechanism")
    if isinstance(error, SaslAuthenticationFailed):
        return (
            f"{where} did not let {user!r} in by {mechanism}: check STEADFAUST_SASL_USERNAME,"
            " STEADFAUST_SASL_PASSWORD (or its _FILE) and STEADFAUST_SASL_MECHANISM"
        )
    if isinstance(error, (UnsupportedSaslMechanismError, IllegalSaslStateError)):
        return (
            f"{where} does not take {mechanism}: set STEADFAUST_SASL_MECHANISM to one that it does, or"
            f" STEADFAUST_SECURITY_PROTOCOL to what it is at this port ({error})"
        )
    return ""


def _certificate(error: ssl.SSLCertVerificationError, host: str) -> str:
    if error.verify_code == _EXPIRED:
        return f"its certificate has expired: give the broker a new one, {_CLOCK}"
    if error.verify_code == _NOT_YET:
        return f"its certificate is not valid yet: wait, {_CLOCK}"
    if error.verify_code in _OTHER_NAME:
        return (
            f"its certificate is not for {host}: connect by a name that is in it (STEADFAUST_BOOTSTRAP, and"
            " the broker's advertised.listeners), or give the broker one for this name"
        )
    return (
        f"its certificate is not trusted ({error.verify_message}): set STEADFAUST_SSL_CA_FILE to the"
        " certificate of the CA that has signed it"
    )
