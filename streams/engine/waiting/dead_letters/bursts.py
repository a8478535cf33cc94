"""Report many dead letters of one handler within a short time: once in the log, and in health for a while."""

from __future__ import annotations

from collections import Counter

import structlog

log = structlog.get_logger(__name__)

#: This many dead letters of one handler within this many seconds are a burst.
MANY, WITHIN = 100, 60.0
#: How long health warns of a burst after its last letter, in seconds.
TOLD_FOR = 600.0
#: Maximum keys for which dead letters are counted.
MOST_KEYS = 1000


class _Recent:
    """Dead letters of a handler since `began`, in epoch seconds."""

    __slots__ = ("began", "count", "error", "keys", "last")

    def __init__(self, began: float) -> None:
        self.began = self.last = began
        self.count = 0
        self.error = ""
        self.keys: Counter[bytes] = Counter()


class Bursts:
    """Bursts of one lane, by handler. The empty name is for messages that no handler has seen."""

    def __init__(self) -> None:
        self._recent: dict[str, _Recent] = {}

    def add(self, handler: str, key: bytes | None, error: str, now: float) -> None:
        """Count a dead letter, at `now` in epoch seconds. `error` is the type of its error."""
        recent = self._recent.get(handler)
        if recent is None or now - recent.last > TOLD_FOR or _is_over(recent, now):
            recent = self._recent[handler] = _Recent(now)
        recent.count += 1
        recent.last, recent.error = now, error
        key = (key or b"")[:64]
        if key in recent.keys or len(recent.keys) < MOST_KEYS:
            recent.keys[key] += 1
        if recent.count == MANY:
            log.warning("dead_letters_in_a_burst", handler=handler, text=_text(handler, recent))

    def texts(self, now: float) -> list[str]:
        """The recent bursts, each as a sentence."""
        return [
            _text(handler, recent)
            for handler, recent in sorted(self._recent.items())
            if recent.count >= MANY and now - recent.last <= TOLD_FOR
        ]


def _is_over(recent: _Recent, now: float) -> bool:
    """Whether the time for a burst has passed without one, so that a new count begins."""
    return recent.count < MANY and now - recent.began > WITHIN


def _text(handler: str, recent: _Recent) -> str:
    ((key, most),) = recent.keys.most_common(1)
    seconds = max(1, round(recent.last - recent.began))
    whose = f"{most} of key {key.decode('utf-8', 'replace')!r}" if most > 1 else "each of another key"
    return (
        f"{recent.count} messages became dead letters of {handler or 'no handler'} within {seconds} s,"
        f" {whose}; the last error was {recent.error}: see `steadfaust dlq groups`"
    )
