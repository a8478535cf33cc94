"""Letters: a choreography with retries, dead letters, timers and loopback, and what has to hold of it."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any

from streams.errors import Undecodable
from streams.model.choreography import Route
from streams.model.codecs import JsonCodec, MakeCodec
from streams.model.envelope import LOOPBACK
from streams.model.layout import dead_letter_topic
from streams.testing.simulation.judge import in_log, letters_in, rows, sent_on, written
from streams.testing.simulation.plan import Finding
from streams.testing.simulation.run import Part, Run
from streams.testing.simulation.topics import Topics
from tests.simulation.letters import NAMES as TABLE_NAMES
from tests.simulation.letters import Counted, Passed, Rang, Written, letters


@dataclass(frozen=True)
class Shape:
    """What an application of letters has. `auditor` is the name of the handler that audits."""

    settled: bool
    audited: str  # "", "sync" or "async"
    passed: bool
    timed: bool
    ordered: bool
    holds: bool
    wide: bool = False
    auditor: str = "audit"

    def part(self, run: Run) -> Letters:
        """The part of a run."""
        return Letters(run, self)


def misreading(letters: Set[bytes]) -> MakeCodec:
    """JSON whose rows cannot be read while one of these letters is in them."""

    class Misreading(JsonCodec[Any]):
        def __init__(self, kind: type[Any], subject: str) -> None:
            super().__init__(kind)
            self._read = self.decode
            if subject in TABLE_NAMES:
                self.decode = self._read_row  # type: ignore[method-assign]

        def _read_row(self, data: bytes, fingerprint: bytes | None) -> Any:
            if any(b'"%b"' % letter in data for letter in letters):
                raise Undecodable("simulated: a version that cannot read it")
            return self._read(data, fingerprint)

    return Misreading


#: Of each handler its topic and its table.
HANDLERS = {
    "count": (Written.TOPIC, "counts"),
    "audit": (Written.TOPIC, "audits"),
    "settle": (Counted.TOPIC, "settled"),
    "receive": (Passed.TOPIC, "received"),
    "ring": (Rang.TOPIC, "rings"),
}
#: Tables without which a lane does not know what it has done.
OF_ALL = ("lane", "inbox", "dead_letters")


class Letters(Part):
    """The letters of a run."""

    def __init__(self, run: Run, shape: Shape) -> None:
        super().__init__(run)
        self.shape = shape
        self._written: dict[str, Written] = {}
        #: What was given up by no handler, since it could not be committed, is handled when it comes again.
        self._came_again: set[str] = set()
        self._written_at: dict[str, float] = {}
        self._shapes = [shape]
        self._attempts = Counter[str]()
        #: Letters whose rows cannot be read at present; all that there ever were.
        self._misread: set[bytes] = set()
        self._were_misread = False
        self.codecs = misreading(self._misread)

    def routes(self) -> Sequence[Route]:
        """The lines of its shape."""
        return letters(self.shape, self.run.outside, self._attempts)

    def do_write(
        self, key: str, letter: str, more: dict[str, Any], misrouted: bool, mark: Any = None, age: float = 0.0
    ) -> None:
        """A message of the outside, whose clock, or whose copy of a log, stamps it `age` seconds ago."""
        run = self.run
        if Written.TOPIC not in run.cluster.ids:
            return  # nobody can write to it
        self._written_at.setdefault(letter, run.loop.time())
        if letter in self._written:
            self._came_again.add(letter)
        message = self._written[letter] = Written(k=key, id=letter, **more)
        run.post(message, letter, away=misrouted, mark=mark, age=age)

    def deployed(self, shape: Shape) -> None:
        """Another version begins."""
        self.shape = shape
        self._shapes.append(shape)

    def do_forge(self, key: str, letter: str) -> None:
        """A message of the outside that ends with the mark of what a lane has handled already."""
        self.do_write(key, letter, {}, False, mark=(LOOPBACK, self.run.app.layout.app_id.encode()))

    def do_misread(self, letter: str, seconds: float) -> None:
        """Rows that a letter is in cannot be read for a while, such as by a version with a mistake."""
        self._were_misread = True
        self._misread.add(letter.encode())
        self.run.later(seconds, self._misread.discard, letter.encode())

    def end_faults(self) -> None:
        """All rows can be read."""
        self._misread.clear()

    def do_remake(self, number: int, attention: float) -> None:
        """Its topic is made again, and filled at once: no lane sees it empty."""
        topics = next(part for part in self.run.beside if isinstance(part, Topics))
        topics.do_recreate(Written.TOPIC, attention)
        for nth in range(number):
            self.do_write("abcdef"[nth % 6], f"remade{nth}", {}, False)

    def do_backfill(self, key: str, letter: str, age: float) -> None:
        """A message of the outside with an old stamp; retention looks at it before a lane can."""
        self.do_write(key, letter, {}, False, age=age)
        self.run.do_retention()

    def missing(self) -> list[str]:
        """Letters that a handler has neither had nor given up, and timers that have not rung."""
        left: list[str] = []
        if self._waits_for_operator():
            return left
        given_up = self._dead()
        for handler, (table, expected) in self._tables().items():
            has = self._rows(table)
            for key, ids in expected.items():
                gone = set(ids) - set(has.get(key, ())) - given_up[handler] - self._excused(handler)
                if self.shape.holds and given_up[handler] & set(ids):
                    continue  # later ones of the key wait until the letter is settled
                left += [f"{handler} has not had {letter} of {key}" for letter in sorted(gone)]
        if all(shape.timed for shape in self._shapes) and Rang.TOPIC not in self.run.deleted:
            rang = {letter for ids in in_log(self.run, Rang.TOPIC).values() for letter in ids}
            counted = {letter for ids in self._rows("counts").values() for letter in ids}
            counted -= self._excused("ring")
            unheard = (letter for letter in sorted(counted - rang) if self._written[letter].rings)
            left += [f"no timer of {letter} has rung" for letter in unheard]
        return left

    def _waits_for_operator(self) -> bool:
        """Whether half of a queue went with a lane changelog that was deleted: its key waits, and that is
        said.
        """
        workers = [worker for worker in self.run.workers if worker is not None]
        lanes = [lane for worker in workers for lane in worker.host.lanes.values()]
        lost = self.run.app.layout.changelog("lane") in self.run.deleted
        return lost and any(lane.unreadable.found for lane in lanes)

    def judge(self) -> list[Finding]:
        """Each takes effect once, in the order of the log; nothing good is given up."""
        found: list[Finding] = []
        given_up, late = self._dead(), self._once_dead()
        for handler, (table, expected) in self._tables().items():
            has, excused, unread = self._rows(table), self._excused(handler), self._unread(handler)
            for key in sorted(has.keys() | expected.keys()):
                ids, wanted = has.get(key, ()), expected.get(key, [])
                if [each for each, times in Counter(ids).items() if times > 1 and each not in excused]:
                    found.append(Finding("a message takes effect once", f"{handler} of {key}: {ids}"))
                if unknown := set(ids) - set(wanted):
                    found.append(Finding("nothing comes from nowhere", f"{handler} of {key}: {unknown}"))
                if both := set(ids) & given_up[handler] - self._came_again:
                    found.append(Finding("what is given up has no effect", f"{handler} of {key}: {both}"))
                unordered = late[handler] | excused | self._came_again & unread | self._sent_on(handler)
                in_time = [letter for letter in ids if letter not in unordered]
                ordered = [letter for letter in wanted if letter in set(in_time)]
                if not self.shape.ordered and in_time != ordered and not found:
                    found.append(Finding("effects are in the order of the log", f"{handler} of {key}: {ids}"))
            found += self._good(handler, given_up[handler])
        return found + self._sent()

    def _good(self, handler: str, given_up: set[str]) -> list[Finding]:
        """What is given up for no reason."""
        if self._were_misread or any(step.kind == "limit" for step in self.run.plan.steps):
            return []  # it may have been too large for a topic for a while, or could not be handled
        messages = [self._written[letter] for letter in sorted(given_up)]
        return [
            Finding("nothing good is given up", f"{handler}: {message.id}")
            for message in messages
            if not message.poison and not (handler == "count" and (message.number or message.fails >= 5))
        ]

    def _sent(self) -> list[Finding]:
        """What was sent is what was decided."""
        sent, excused = defaultdict(list), self._excused("count")
        for record in written(self.run, Counted.TOPIC):
            sent[(record.key or b"").decode()].append(json.loads(record.value or b"")["id"])
        counted = self._rows("counts")
        found = []
        for key in sorted(sent.keys() | counted.keys()):
            was_sent = [each for each in sent[key] if each not in excused]
            decided = [each for each in counted.get(key, ()) if each not in excused]
            if Counted.TOPIC in self.run.deleted:  # what was on its way is gone with it
                decided = [each for each in decided if each in was_sent]
            if was_sent != decided:
                found.append(Finding("what is sent is what was decided", f"{key}: {was_sent}, and {decided}"))
        return found

    def _excused(self, handler: str) -> set[str]:
        """The ids of which a handler may miss some, or have them twice: of a log that was cut before they
        were read, or of before a changelog's rows were given up.
        """
        run = self.run
        excused: set[str] = set()
        auditors = {shape.auditor if shape.audited else "" for shape in self._shapes}
        if handler == "audit" and (len(auditors) > 1 or auditors == {""}):
            # What workers without it have handled does not come again.
            excused = {each for each, at in self._written_at.items() if at <= run.started_at}
        if not run.removed and not run.deleted:
            return excused
        topic, table = HANDLERS[handler]
        there = {json.loads(record.value or b"")["id"] for record in run.cluster.visible(topic)}
        lost = [
            at
            for changelog, at in run.deleted.items()
            if changelog in {run.app.layout.changelog(name) for name in (table, *OF_ALL)}
        ]
        before = max(lost, default=0.0)
        excused |= self._unread(handler) - there
        return excused | {each for each, at in self._written_at.items() if at < before}

    def _sent_on(self, handler: str) -> set[str]:
        """The ids that came in a wrong partition, and have no order with the others of their key."""
        return {json.loads(each.value or b"")["id"] for each in sent_on(self.run, HANDLERS[handler][0])}

    def _unread(self, handler: str) -> set[str]:
        """The ids that were removed before a handler's lane had passed them."""
        removed = [each for each in self.run.removed if each.record.topic == HANDLERS[handler][0]]
        return {json.loads(each.record.value or b"")["id"] for each in removed if each.unread}

    def _tables(self) -> dict[str, tuple[str, dict[str, list[str]]]]:
        """Of each handler its table, and what it has to have taken in, in this order."""
        run, shape = self.run, self.shape
        written = in_log(run, Written.TOPIC)
        found = {"count": ("counts", written)}
        if shape.audited:
            found["audit"] = ("audits", written)
        if shape.settled:
            found["settle"] = ("settled", in_log(run, Counted.TOPIC))
        if shape.passed:
            found["receive"] = ("received", in_log(run, Passed.TOPIC))
        if shape.timed:
            found["ring"] = ("rings", in_log(run, Rang.TOPIC))
        return found

    def _rows(self, table: str) -> dict[str, tuple[str, ...]]:
        """The ids on each key."""
        return {key: tuple(json.loads(row)["ids"]) for (key, _), row in rows(self.run, table).items()}

    def _dead(self) -> dict[str, set[str]]:
        """The ids that each handler has given up, and that nobody has replayed."""
        found: dict[str, set[str]] = defaultdict(set)
        for letter in letters_in(self.run).values():
            if letter.topic in self._topics:
                found[letter.handler].add(
                    self._id_of(letter.value, letter.topic, letter.partition, letter.offset)
                )
        return self._by_handler(found)

    def _once_dead(self) -> dict[str, set[str]]:
        """The ids that each handler has ever given up: a replay of them comes out of order."""
        found: dict[str, set[str]] = defaultdict(set)
        for topic in self._topics:
            for record in self.run.cluster.visible(dead_letter_topic(topic)):
                said = {name: value.decode() for name, value in record.headers if name.startswith("dlq-")}
                source = (
                    said["dlq-source-topic"],
                    int(said["dlq-source-partition"]),
                    int(said["dlq-source-offset"]),
                )
                found[said["dlq-handler"]].add(self._id_of(record.value, *source))
        return self._by_handler(found)

    @property
    def _topics(self) -> list[str]:
        return [kind.TOPIC for kind in (Written, Counted, Passed, Rang) if kind.TOPIC in self.run.app.routes]

    def _by_handler(self, found: dict[str, set[str]]) -> dict[str, set[str]]:
        """What could not be committed at all is given up for each handler."""
        names = {name: {f"letters.{name}", ""} for name in self._tables()}
        if "audit" in names:
            names["audit"] |= {f"letters.{shape.auditor}" for shape in self._shapes}
        return {name: set[str]().union(*(found[each] for each in those)) for name, those in names.items()}

    def _id_of(self, value: bytes | None, topic: str, partition: int, offset: int) -> str:
        """The id of a dead letter: one that was too large has no content."""
        if value:
            return str(json.loads(value)["id"])
        here = (topic, partition, offset)
        return next(
            str(json.loads(each.value or b"")["id"])
            for each in reversed(written(self.run, topic))
            if (each.topic, each.partition, each.offset) == here
        )
