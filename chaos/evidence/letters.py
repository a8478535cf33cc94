"""Whether every poisonous record is a dead letter, once, as it came, and nothing else is one: pure.

The form of the rows is stated here a second time, on purpose, as in `chaos.evidence.rebuilt`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from chaos.evidence.decoding import SOURCE, AnyHeaders, Origin, content, origin_in
from chaos.evidence.stores import Rows
from demo.findings import Finding, finding
from demo.trouble import POISON_SOURCE, Poison

if TYPE_CHECKING:
    from streams.ports import Record

TABLE = "dead_letters"
SUFFIX = ".dlq"
_ADDED = "dlq-"
_BEFORE_ROW = 9  # bytes: its version, and when it failed


class LetterEvidence(NamedTuple):
    """A dead letter, by its topic or by its row: what it came of, what is in it, who gave it up and why."""

    origin: Origin
    content: bytes
    handler: str
    error: str


class _Row(msgspec.Struct, array_like=True, frozen=True):
    """A row of a dead letter, as far as it is looked at."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    handler: str
    message_type: str
    error_type: str
    error_message: str
    place: str
    attempts: int
    failed_at_ms: int
    state: str
    replays: int
    queue: bytes
    omitted: int
    size: int
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


_read_row = msgspec.msgpack.Decoder(_Row).decode


def is_poison(record: Record) -> bool:
    """Whether the client that sends poison has sent it."""
    return dict(record.headers).get(SOURCE) == POISON_SOURCE


def content_of(record: Record) -> bytes:
    """A digest of a record, without what a dead letter has beside."""
    headers: AnyHeaders = record.headers
    came = [header for header in headers if not header[0].startswith(_ADDED)]
    return content(record.key, record.value, came)


def letter(record: Record) -> LetterEvidence:
    """A record of a dead letter topic, which is that of its source; it came of itself if it does not say."""
    headers = dict(record.headers)
    handler, error = (headers.get(f"dlq-{name}", b"").decode() for name in ("handler", "error-type"))
    source = record.topic.removesuffix(SUFFIX)
    if headers.get("dlq-source-topic") == source.encode():
        return LetterEvidence(origin_in(headers, source, "dlq"), content_of(record), handler, error)
    return LetterEvidence(Origin(record.topic, record.partition, record.offset), b"", handler, error)


def rows_in(tables: Iterable[Mapping[str, Rows]]) -> Iterator[LetterEvidence]:
    """The rows of operators' dead letters, by the state of every lane."""
    for value in (value for lane in tables for value in lane.get(TABLE, {}).values()):
        row = _read_row(value[_BEFORE_ROW:])
        origin = Origin(row.topic, row.partition, row.offset)
        yield LetterEvidence(origin, content(row.key, row.value, row.headers), row.handler, row.error_type)


def judge_letters(
    plan: Sequence[Poison],
    poison: Mapping[Origin, bytes],
    letters: Sequence[LetterEvidence],
    rows: Sequence[LetterEvidence],
) -> Finding:
    """Hold dead letters and their rows against `poison`, the contents of the poisonous records that are in
    their topics, and these against the `plan`.
    """
    errors = {content(*each.record): each.error for each in plan}
    arrived = set(poison.values())
    missing = [each for each in plan if content(*each.record) not in arrived]
    wrong = {
        "of the plan in no topic": [f"{each.kind}: {each.record.key!r}" for each in missing],
        "poisonous records that are not planned": [
            str(o) for o, each in poison.items() if each not in errors
        ],
        **_against(poison, errors, letters, "dead letters"),
        **_against(poison, errors, rows, "rows"),
    }
    kinds = Counter(each.kind.value for each in plan)
    by_kind = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "none"
    says = f"{len(poison):,} poisonous records ({by_kind}), {len(letters):,} dead letters, {len(rows):,} rows"
    return finding("every poisonous record a dead letter once, and nothing else", wrong, says)


def _against(
    poison: Mapping[Origin, bytes], errors: Mapping[bytes, str], letters: Sequence[LetterEvidence], what: str
) -> dict[str, list[str]]:
    times = Counter(each.origin for each in letters)
    wrong: dict[str, list[str]] = defaultdict(list)
    wrong[f"poisonous records without {what}"] = [str(origin) for origin in poison if not times[origin]]
    wrong[f"{what} more than once"] = [str(o) for o, count in times.items() if count > 1]
    for each in letters:
        came = poison.get(each.origin)
        if came is None:
            wrong[f"{what} of other records"].append(f"{each.origin} by {each.handler or 'no handler'}")
        elif each.content != came:
            wrong[f"{what} not as they came"].append(str(each.origin))
        elif (each.handler, each.error) != ("", errors.get(came)):
            wrong[f"{what} for another reason"].append(f"{each.origin}: {each.error} {each.handler}".rstrip())
    return wrong
