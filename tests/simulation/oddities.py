"""Records that no message can be read from, among good ones with odd stamps. Each bad one is one dead letter,
each good one takes effect once.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from streams.model.choreography import Route, on
from streams.model.claim import DATAREF
from streams.model.envelope import FINGERPRINT, ID, MAX_ID_BYTES, new_headers
from streams.model.handlers import Service
from streams.model.message import Row
from streams.model.outcome import Outcome, outcome
from streams.model.table import Table
from streams.ports import TP
from streams.testing.simulation.judge import letters_in, rows
from streams.testing.simulation.plan import Finding, PlanStep
from streams.testing.simulation.run import Part, Run
from tests.keyed import Keyed

Headers = list[tuple[str, bytes]]
Spoiled = tuple[bytes | None, Headers]


class Note(Keyed, frozen=True, kw_only=True):
    """A good one says its id."""

    TOPIC: ClassVar[str] = "oddities.note.v1"
    id: str


class Noted(Row, frozen=True):
    """The ids that came under a key, in order."""

    ids: tuple[str, ...] = ()


NOTED = Table("noted", Noted)
#: By its kind, what makes a bad record of a good one's value and headers.
BAD: Mapping[str, Callable[[bytes, Headers], Spoiled]] = {
    "no json": lambda _, headers: (b"\xff\x00{", headers),
    "cut off": lambda value, headers: (value[:-1], headers),
    "no value": lambda _, headers: (None, headers),
    "another type": lambda _, headers: (b'{"k": 7, "id": []}', headers),
    "another key": lambda _, headers: (b'{"k": "other", "id": "x"}', headers),
    "no id": lambda value, headers: (value, [each for each in headers if each[0] != ID]),
    "no headers": lambda value, _: (value, []),
    "a long id": lambda value, headers: (value, [*headers, (ID, b"i" * (MAX_ID_BYTES + 1))]),
    "a bad reference": lambda _, headers: (b"", [*headers, (DATAREF, b"s3://nowhere")]),
}
#: Seconds between now and the stamp of a good one.
STAMPS = (0.0, 0.0, -1e9, -86_400.0, 86_400.0, 1e9)


@dataclass(frozen=True)
class Oddities:
    """What a plan has of oddities."""

    def part(self, run: Run) -> "OdditiesPart":
        """The part of a run."""
        return OdditiesPart(run)


def plan(rng: Random) -> tuple[Oddities, list[PlanStep]]:
    """Good and bad records of a seed."""
    steps = []
    for nth in range(rng.choice((4, 12))):
        bad = rng.choice(("", *BAD))
        what = (rng.choice("abc"), f"n{nth}", bad, rng.choice(STAMPS))
        steps.append(PlanStep(rng.uniform(0, 40), "note", what))
    return Oddities(), steps


class OdditiesPart(Part):
    """The oddities of a run."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._bad: dict[tuple[int, int], str] = {}
        self._good: dict[str, list[str]] = {}

    def routes(self) -> Sequence[Route]:
        """One handler."""
        service = Service("oddities")

        @service.handler(row=NOTED)
        def note(event: Note, row: Noted | None) -> Outcome:
            return outcome(row=Noted((*(row or Noted()).ids, event.id)))

        return [on(Note, note)]

    def do_note(self, key: str, own: str, bad: str, stamp: float) -> None:
        """Somebody writes a record, good or bad."""
        run, codec = self.run, self.run.app.message_codecs[Note.TOPIC]
        headers = new_headers(Note.TOPIC, key, source="outside", time=1e9, message_id=own)
        headers.append((FINGERPRINT, codec.fingerprint))
        value: bytes | None = codec.encode(Note(k=key, id=own))
        if bad:
            value, headers = BAD[bad](value or b"", headers)
        tp = TP(Note.TOPIC, run.app.layout.partition_of(key.encode()))
        offset = run.cluster.produce(tp, key.encode(), value, headers, run.stamp(Note.TOPIC, -stamp))
        if bad:
            self._bad[tp.partition, offset] = bad
        else:
            self._good.setdefault(key, []).append(own)

    def judge(self) -> list[Finding]:
        """Each bad one is one dead letter, each good one took effect once and in order."""
        had = {key: json.loads(data)["ids"] for (key, _), data in rows(self.run, NOTED.name).items()}
        letters = Counter(
            (letter.partition, letter.offset)
            for letter in letters_in(self.run).values()
            if letter.topic == Note.TOPIC
        )
        found = []
        if had != self._good:
            found.append(Finding("what is good takes effect once", f"{had} of {self._good}"))
        if letters != dict.fromkeys(self._bad, 1):
            found.append(Finding("what is bad is one dead letter", f"{dict(letters)} of {self._bad}"))
        return found
