"""Names and keys in addresses, so that any text comes back as it is."""

from __future__ import annotations

import re
from urllib.parse import quote, urlencode

#: The empty key, as it is shown and asked for.
EMPTY = '""'
#: In place of a name in a path: the name is in the query.
IN_QUERY = "-"
#: What a proxy that decodes a path, or tidies it up, leaves as it is.
_PLAIN = re.compile(r"[^/\\%?#;\x00-\x20\x7f-\U0010ffff]+")
_RELATIVE = frozenset((".", "..", IN_QUERY))


def asked_text(text: str) -> str | None:
    """What a field asks for: text in double quotes as it stands between them, so that "" is the empty key,
    and other text without spaces around it. None: nothing.
    """
    if len(text) > 1 and text[0] == text[-1] == '"':
        return text[1:-1]
    return text.strip() or None


def as_asked(text: str) -> str:
    """A text as a field asks for it: see `asked_text`."""
    return text if asked_text(text) == text else f'"{text}"'


def address_of(path: str, name: str, text: str, rest: str = "") -> str:
    """The address of something by its name, which `path` ends before and `rest` goes on behind. A name that
    proxies would change in a path is in the query, as `name`.
    """
    if _PLAIN.fullmatch(text) and text not in _RELATIVE:
        return f"{path}/{quote(text, safe='')}{rest}"
    return f"{path}/{IN_QUERY}{rest}?{urlencode({name: text}, errors='surrogateescape')}"
