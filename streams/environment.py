"""Checks the environment: a name that begins with STEADFAUST_ must be a setting, and its value must be
usable.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from streams.errors import SettingsError

PREFIX = "STEADFAUST_"
#: Variables of the local stack, of fault injection, and of the project's own build and tests. They are not
#: settings of a worker, but workers may inherit them.
OF_TOOLS = frozenset(
    PREFIX + name
    for name in (
        "CACHE",
        "CHROMIUM",
        "COMPILED",
        "FAULTS",
        "FAULTS_LOG",
        "FIREFOX",
        "HOSTILE",
        "HOSTILE_SEED",
        "KAFKA",
        "PAPER",
        "PROMTOOL",
        "STEP_TIMEOUT",
        "TEST_REPORT",
        "TESTS_ARE_COMPILED",
        "TILL",
    )
)
#: Variables that Kubernetes sets in every pod for a Service whose name begins with `steadfaust`.
_OF_KUBERNETES = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?$")
_ADDRESS = re.compile(r"(tcp|udp|sctp)://")
#: Similarity, from 0 to 1, from which on a name is taken for a misspelled setting.
_ALIKE = 0.8


#: Maximum values of numbers; for all others it is a trillion.
_MOST = {
    "lanes": 100_000,
    "max_message_bytes": 2**30,
    "partitions": 100_000,
    "replication": 1000,
    "session_timeout": 86_400.0,
    "web_port": 2**16 - 1,
}
_ANY_MOST = 1e12
_SCHEMES = {
    "connect_url": ("http", "https"),
    "gateway_url": ("http", "https"),
    "postgres_url": ("postgresql", "postgres"),
    "s3_endpoint": ("http", "https"),
}
_BROKER = re.compile(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+)(:\d{1,5})?", re.ASCII)
#: As Kafka allows names of topics, which are made of these, with room for what is added.
_IDENT = re.compile(r"[A-Za-z0-9._-]{0,150}")


def check_names(environment: Mapping[str, str], known: Collection[str], *, complete: bool = True) -> None:
    """Raise SettingsError for names that are not settings, with the setting that was probably meant.

    Args:
        known: the fields of a settings class.
        complete: whether `known` has every setting. If not, only misspelled names are refused, because an
            application may have settings of its own.
    """
    own = sorted(name.upper() for name in known)
    declared = OF_TOOLS.union(PREFIX + name for name in own)
    problems = []
    for name in sorted(environment):
        upper = name.upper()
        if not upper.startswith(PREFIX) or upper in declared or _is_a_service(upper, environment[name]):
            continue
        meant = get_close_matches(upper.removeprefix(PREFIX), own, n=1, cutoff=_ALIKE)
        if meant:
            problems.append(f"{name} is not a setting: did you mean {PREFIX}{meant[0]}?")
        elif complete:
            problems.append(f"{name} is not a setting: unset it (docs/settings.md lists all settings)")
    if problems:
        raise SettingsError(" ".join(problems))


def _is_a_service(name: str, value: str) -> bool:
    return bool(_OF_KUBERNETES.search(name)) or (name.endswith("_PORT") and bool(_ADDRESS.match(value)))


def check_value(name: str, value: Any) -> None:
    """Raise ValueError for a value that cannot work, with the values that are allowed."""
    match value:
        case bool():
            return
        case int() | float() if abs(value) > (most := _MOST.get(name, _ANY_MOST)):
            raise ValueError(f"the maximum is {most:,.15g}")
        case str() if value and (schemes := _SCHEMES.get(name)):
            if not re.match(rf"({'|'.join(schemes)})://[^\s]", value):
                raise ValueError(f"give an address that begins with {schemes[0]}://")
        case str() if name == "bootstrap" and value:
            brokers = without_empty(value).split(",")
            if not all(_BROKER.fullmatch(each) for each in brokers):
                raise ValueError("give brokers as host:port,host:port")
        case str() if name in ("app_id", "agents_id") and not _IDENT.fullmatch(value):
            raise ValueError("give up to 150 letters, digits, dots, hyphens and underscores")
        case str() if name == "web_proxies":
            _check_addresses(value)
        case Path() if value.exists() and not value.is_dir():
            raise ValueError("give a directory")
        case str() | Path() if "\0" in str(value):
            raise ValueError("it has a zero byte")


def without_empty(text: str) -> str:
    """A comma-separated list without blanks and empty parts."""
    return ",".join(each.strip() for each in text.split(",") if each.strip())


def _check_addresses(text: str) -> None:
    for each in text.split(","):
        if each.strip():
            try:
                ip_address(each.strip())
            except ValueError:
                raise ValueError(
                    f"give IP addresses, separated by commas; {each.strip()!r} is not one"
                ) from None


def what_is_wrong(error: ValidationError, shown: Collection[str]) -> str:
    """Describe the problems of settings in one line that names each variable.

    Args:
        shown: fields whose values may be printed, because they are not secret.
    """
    problems = []
    for each in error.errors(include_url=False, include_context=False):
        field = str(each["loc"][0]) if each["loc"] else ""
        value = f" is {each['input']!r}" if field in shown else ""
        text = each["msg"].removeprefix("Value error, ")
        problems.append(f"{PREFIX}{field.upper()}{value}: {text[:1].lower()}{text[1:]}")
    return "; ".join(problems)
