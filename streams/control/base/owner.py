"""Asking the worker that owns a lane what is in it, with a bound on time and size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec
from aiohttp import ClientError, ClientSession, ClientTimeout

from streams.brokers import READ
from streams.control.base.view import ErrorAnswer, Problem
from streams.system.loopback import peer_origin
from streams.units import MIB

A = TypeVar("A", bound=msgspec.Struct)

#: Names the worker that asks; such a request is answered here and never passed on.
ASKED_BY = "Steadfaust-Asked-By"
#: Seconds for the owner's answer, connecting included: it shares its event loop with its lanes.
TIMEOUT = READ
#: A page has a bound in stored bytes; as JSON it may be larger, but not without end.
MOST_BYTES = 16 * MIB
_refusal = msgspec.json.Decoder(ErrorAnswer).decode


async def ask_json(
    session: ClientSession, owner: str, path: str, query: Mapping[str, str], *, kind: type[A], asked_by: str
) -> A:
    """The owner's answer. Raises Problem: the owner's own, 504 for none in time, 502 for anything else."""
    origin = peer_origin(owner, asked_by)
    if origin is None:
        raise Problem(
            502,
            "owner_elsewhere",
            f"the key is on {owner}, which {asked_by} cannot ask: on several machines all workers have"
            " STEADFAUST_WEB_HOST and STEADFAUST_WEB_TOKEN (docs/cluster.md)",
        )
    try:
        async with session.get(
            f"{origin}{path}",
            params=query,
            headers={ASKED_BY: asked_by},
            timeout=ClientTimeout(total=TIMEOUT),
            allow_redirects=False,
        ) as response:
            body = await response.content.read(MOST_BYTES + 1)
            while len(body) <= MOST_BYTES and (more := await response.content.read(MOST_BYTES)):
                body += more
    except TimeoutError as error:
        detail = f"the owner, {owner}, did not answer in {TIMEOUT:g} s"
        raise Problem(504, "owner_silent", detail) from error
    except (ClientError, OSError) as error:
        detail = f"the owner, {owner}, cannot be reached"
        raise Problem(502, "owner_unreachable", detail) from error
    return _read(owner, response.status, body, kind)


def _read(owner: str, status: int, body: bytes, kind: type[A]) -> A:
    try:
        if status == 200 and len(body) <= MOST_BYTES:
            return msgspec.json.decode(body, type=kind)
        if status == 401:
            detail = f"{owner} owns the key and wants another token: give both the same STEADFAUST_WEB_TOKEN"
            raise Problem(502, "owner_refused", detail)
        if status >= 400:
            refusal = _refusal(body)
            if refusal.error == "too_many_tries":  # wrong tokens of this machine, not of who asks here
                raise Problem(502, "owner_refused", f"{owner} owns the key: {refusal.detail}")
            raise Problem(status, refusal.error, refusal.detail)
    except msgspec.DecodeError:
        pass  # reported below
    raise Problem(
        502, "owner_unclear", f"{owner} owns the key and gave no answer that can be read ({status})"
    )
