"""Objects that are payloads of messages, as pages show them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

import msgspec

from streams.brokers import READ
from streams.errors import BlobsUnavailable, DataError
from streams.model.application import Application
from streams.model.claim import Claim
from streams.model.envelope import rfc3339

#: Objects of one page that are looked up in the object store.
MOST_LOOKED_UP = 20
#: Seconds that the object store may take to say whether an object is there.
PATIENCE = READ


class ClaimAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The object that is a message's payload. `standing` says in words whether it is still there; `there` is
    None where that is not known.
    """

    bucket: str
    name: str
    size: int
    content_type: str
    there: bool | None = None
    standing: str = ""


class _Claiming(Protocol):
    """A struct of an answer that may have a claim."""

    @property
    def claim(self) -> ClaimAnswer | None: ...


E = TypeVar("E", bound=_Claiming)


def claim_answer(claim: Claim) -> ClaimAnswer:
    """A claim without what has become of its object."""
    return ClaimAnswer(bucket=claim.bucket, name=claim.name, size=claim.size, content_type=claim.content_type)


async def with_claims(app: Application, entries: Sequence[E]) -> list[E]:
    """The entries, with what the object store knows of the first objects that are payloads of theirs."""
    claims = {_place(each.claim): each.claim for each in entries if each.claim is not None}
    request = list(claims.items())[:MOST_LOOKED_UP]
    answers = dict(
        zip(
            (place for place, _ in request),
            await asyncio.gather(*(_standing(app, claim) for _, claim in request)),
            strict=True,
        )
    )
    return [_with_standing(each, answers) for each in entries]


def _with_standing(entry: E, answers: Mapping[tuple[str, str], ClaimAnswer]) -> E:
    if entry.claim is None:
        return entry
    answer = answers.get(_place(entry.claim), entry.claim)
    return msgspec.structs.replace(entry, claim=answer)  # type: ignore[type-var]


def _place(claim: ClaimAnswer) -> tuple[str, str]:
    return claim.bucket, claim.name


async def _standing(app: Application, claim: ClaimAnswer) -> ClaimAnswer:
    """A claim with what has become of its object."""
    there, words = None, ""
    if app.claims is None:
        words = "this worker has no object store, so that it does not know whether it is there"
    else:
        request = Claim(claim.bucket, claim.name, claim.content_type, "", claim.size)
        try:
            async with asyncio.timeout(PATIENCE):
                blob = await app.claims.look(request)
        except TimeoutError:
            words = f"the object store did not say in {PATIENCE:g} s whether it is there"
        except BlobsUnavailable as error:
            words = f"whether it is there is not known: {error}"
        except DataError as error:  # a reference to another store, which is not looked up
            words = str(error)
        else:
            there = blob is not None
            words = "it is no longer there"
            if blob is not None:
                words = f"it is there since {rfc3339(blob.modified)}"
                if blob.size != claim.size:
                    words += f", with {blob.size:,} bytes instead"
    return msgspec.structs.replace(claim, there=there, standing=words)
