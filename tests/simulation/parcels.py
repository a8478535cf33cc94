"""Parcels: messages whose payloads are objects, from clients, handlers and timers. Rows say what came, and
whether it came whole.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

from streams.errors import BlobsUnavailable
from streams.model.choreography import Route, on
from streams.model.claim import VALUE, Claim, claim_in, claim_of, with_claim
from streams.model.claim_checks import ClaimChecks
from streams.model.envelope import CORRELATION, FINGERPRINT, ID, new_headers
from streams.model.handlers import Service
from streams.model.layout import CLAIMS
from streams.model.message import Row
from streams.model.outcome import Outcome, Timer, outcome
from streams.model.table import Table
from streams.ports import TP
from streams.s3.sweep import sweep
from streams.testing.blobs import MemoryBlobs
from streams.testing.simulation.judge import letters_in, rows
from streams.testing.simulation.machines import running
from streams.testing.simulation.plan import Finding, PlanStep
from streams.testing.simulation.run import Part, Run
from tests.keyed import Keyed

BUCKET = "event-payloads"
#: Bytes of a payload from which on it goes by reference.
THRESHOLD = 300
#: For so many seconds an object without a row is left alone: longer than anything may stand still here.
GRACE = 600.0


class Box(Keyed, frozen=True, kw_only=True):
    """Something that may be large: its text is its id, and then as many letters as it has."""

    id: str
    text: str

    @property
    def is_whole(self) -> bool:
        """Whether it is as it was sent."""
        return self.text == f"{self.id}:".ljust(len(self.text), "x")


class Parcel(Box, frozen=True, kw_only=True):
    """From a client."""

    TOPIC: ClassVar[str] = "parcels.parcel.v1"


class Copied(Box, frozen=True, kw_only=True):
    """From a handler."""

    TOPIC: ClassVar[str] = "parcels.copied.v1"
    SAME_KEY = True


class Late(Box, frozen=True, kw_only=True):
    """From a timer."""

    TOPIC: ClassVar[str] = "parcels.late.v1"


class Got(Row, frozen=True):
    """What came under a key, in order, and what did not come whole."""

    ids: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()

    def plus(self, box: Box) -> "Got":
        """The same with one more."""
        return Got((*self.ids, box.id), (*self.broken, *[box.id][box.is_whole :]))


TAKEN, KEPT, LATE = Table("taken", Got), Table("kept", Got), Table("late", Got)


@dataclass(frozen=True)
class Parcels:
    """What a plan has of parcels.

    Attributes:
        is_async: parcels are taken by an async handler.
        grows: how much larger a copy is.
        in_flight: bytes of payloads under way at most.
    """

    is_async: bool
    grows: int
    in_flight: int

    def part(self, run: Run) -> "ParcelsPart":
        """The part of a run."""
        return ParcelsPart(run, self)


def plan(rng: Random) -> tuple[Parcels, list[PlanStep]]:
    """Parcels of a seed, and what becomes of their objects."""
    shape = Parcels(rng.random() < 0.5, rng.choice((0, 0, 500)), rng.choice((700, 1 << 20)))
    steps = []
    number = rng.choice((3, 8, 15))
    for nth in range(number):
        size = rng.choice((5, 250, 400, 2000, 20_000))
        at, what = rng.uniform(0, 40), (rng.choice("abc"), f"p{nth}", size, rng.random() < 0.1)
        steps.append(PlanStep(at, "parcel", what))
        if rng.random() < 0.15:
            steps.append(PlanStep(at + rng.choice((0.0, 0.3, 30.0)), "parcel", what))
    for _ in range(rng.choice((0, 1, 2))):
        kind = rng.choice(("store_away", "store_slow", "spoil", "lose"))
        at = rng.uniform(0, 45)
        if kind.startswith("store"):
            steps.append(PlanStep(at, kind, (rng.choice((1.0, 5.0, 30.0)),)))
        else:
            steps.append(PlanStep(at, kind, (f"p{rng.randrange(number)}", rng.choice((2.0, 30.0)))))
    if rng.random() < 0.15:
        steps.append(PlanStep(GRACE + rng.uniform(30, 50), "sweep", ()))
    return shape, steps


class ChecksHere:
    """The claim checks of whichever worker asks: each process has its own."""

    def __init__(self, make: Callable[[], ClaimChecks]) -> None:
        self._make = make
        self._of: dict[Any, ClaimChecks] = {}

    def __getattr__(self, name: str) -> Any:
        process = running()
        if process not in self._of:
            self._of[process] = self._make()
        return getattr(self._of[process], name)


class ParcelsPart(Part):
    """The parcels of a run."""

    def __init__(self, run: Run, shape: Parcels) -> None:
        super().__init__(run)
        self._shape = shape
        self.blobs = MemoryBlobs(BUCKET, now=run.clock.now, sleep=run.outside.sleep)
        self._sent: dict[str, Parcel] = {}
        self._claims: dict[str, Claim] = {}
        self._spoiled: set[str] = set()
        self._to_spoil: dict[str, float] = {}
        self._to_write = 0

    def claims(self) -> Any:
        """Its claim checks."""
        return ChecksHere(
            lambda: ClaimChecks(
                self.blobs,
                bucket=BUCKET,
                threshold=THRESHOLD,
                max_in_flight_bytes=self._shape.in_flight,
                cache_bytes=3000,
            )
        )

    def routes(self) -> Sequence[Route]:
        """The lines of its shape."""
        service, shape = Service("parcels"), self._shape

        def taken(event: Parcel, row: Got | None) -> Outcome:
            text = event.text.ljust(len(event.text) + shape.grows, "x")
            copy, late = Copied(k=event.k, id=event.id, text=text), Late(k=event.k, id=event.id, text=text)
            timers = [Timer(event.id, after=5.0, message=late)]
            return outcome(row=(row or Got()).plus(event), send=[copy], timers=timers)

        if shape.is_async:

            @service.handler(sends=(Copied, Late), row=TAKEN)
            async def take(event: Parcel, row: Got | None) -> Outcome:
                await self.run.outside.sleep(0.2)
                return taken(event, row)

        else:

            @service.handler(sends=(Copied, Late), row=TAKEN)
            def take(event: Parcel, row: Got | None) -> Outcome:
                return taken(event, row)

        @service.handler(row=KEPT)
        def keep(event: Copied, row: Got | None) -> Outcome:
            return outcome(row=(row or Got()).plus(event))

        @service.handler(row=LATE)
        def late(event: Late, row: Got | None) -> Outcome:
            return outcome(row=(row or Got()).plus(event))

        return [on(Parcel, take), on(Copied, keep), on(Late, late)]

    # -- steps ----------------------------------------------------------------------------------------

    def do_parcel(self, key: str, own: str, size: int, misrouted: bool) -> None:
        """A client sends a parcel, when it has written its payload."""
        parcel = self._sent[own] = Parcel(k=key, id=own, text=f"{own}:".ljust(size, "x"))
        self._to_write += 1
        self.run.spawn(self._send(parcel, misrouted))

    async def _send(self, parcel: Parcel, misrouted: bool) -> None:
        codec, layout = self.run.app.message_codecs[Parcel.TOPIC], self.run.app.layout
        headers = new_headers(Parcel.TOPIC, parcel.k, source="outside", time=1e9, message_id=parcel.id)
        headers.append((FINGERPRINT, codec.fingerprint))
        data = codec.encode(parcel)
        if len(data) > THRESHOLD:
            claim = self._claims[parcel.id] = claim_of(BUCKET, Parcel.TOPIC, parcel.id, data)
            await self._write(claim, data)
            if parcel.id in self._to_spoil:
                self._spoil(parcel.id, self._to_spoil.pop(parcel.id), self._alter)
            headers, data = with_claim(headers, claim), VALUE
        home = layout.partition_of(parcel.k.encode())
        tp = TP(Parcel.TOPIC, (home + misrouted) % self.run.plan.partitions)
        self.run.cluster.produce(tp, parcel.k.encode(), data, headers)
        self._to_write -= 1

    async def _write(self, claim: Claim, data: bytes) -> None:
        while True:
            try:
                return await self.blobs.put(claim.name, data, claim.content_type)
            except BlobsUnavailable:
                await self.run.outside.sleep(1.0)

    def do_store_away(self, seconds: float) -> None:
        """The object store cannot be reached."""
        self.blobs.down = True
        self.run.later(seconds, setattr, self.blobs, "down", False)

    def do_store_slow(self, seconds: float) -> None:
        """Requests to the object store take long, some for too long."""
        self.blobs.slow = 4.0 if seconds < 10 else 31.0
        self.run.later(seconds, setattr, self.blobs, "slow", 0.0)

    def do_spoil(self, own: str, seconds: float) -> None:
        """A payload is another one for a while; one that is still to be written is so from then on."""
        if own not in self._sent:
            self._to_spoil[own] = seconds
        self._spoil(own, seconds, self._alter)

    def _alter(self, name: str) -> None:
        """Change a letter of a parcel's text, so that it can still be read."""
        data = self.blobs._objects[name].data
        self.blobs.alter(name, data[:-3] + b"y" + data[-2:])

    def do_lose(self, own: str, seconds: float) -> None:
        """A payload is gone for a while."""
        self._spoil(own, seconds, self.blobs.lose)

    def _spoil(self, own: str, seconds: float, how: Callable[[str], None]) -> None:
        claim = self._claims.get(own)
        if claim is None or claim.name not in self.blobs.names:
            return
        how(claim.name)
        self._spoiled.add(own)
        data = self.run.app.message_codecs[Parcel.TOPIC].encode(self._sent[own])
        self._to_write += 1

        async def mend() -> None:
            await self.run.outside.sleep(seconds)
            await self._write(claim, data)
            self._to_write -= 1

        self.run.spawn(mend())

    def do_sweep(self) -> None:
        """Delete all objects that no row names, and that are old."""
        self.run.spawn(self._sweep())

    async def _sweep(self) -> None:
        async def named() -> Any:
            for name in self._named():
                yield name

        now, small = self.run.clock.now, 64
        try:
            await sweep(self.blobs, named(), now=now, grace=GRACE, delete=True, filter_bytes=small)
        except BlobsUnavailable:
            self.run.note("not_swept")

    # -- what has to hold -----------------------------------------------------------------------------

    def end_faults(self) -> None:
        """The store is there, and quick."""
        self.blobs.down, self.blobs.slow = False, 0.0

    def missing(self) -> list[str]:
        """Parcels that neither had their effects nor are dead letters."""
        if self._to_write:
            return [f"{self._to_write} payloads are still to be written"]
        left = []
        taken, dead = self._ids(TAKEN), self._dead()
        for own, parcel in self._sent.items():
            if own not in taken.get(parcel.k, ()) and own not in dead["parcels.take"]:
                left.append(f"parcel {own} was not taken")
        for table, handler in ((KEPT, "parcels.keep"), (LATE, "parcels.late")):
            has = self._ids(table)
            for key, ids in taken.items():
                gone = set(ids) - set(has.get(key, ())) - dead[handler]
                left += [f"{handler} has not had {own}" for own in sorted(gone)]
        return left

    def judge(self) -> list[Finding]:
        """Each takes effect once, whole and in order, and no reference leads to nothing."""
        found: list[Finding] = []
        taken, dead = self._ids(TAKEN), self._dead()
        disturbed = any(step.kind.startswith("store_") for step in self.run.plan.steps)
        for handler, table in (("take", TAKEN), ("keep", KEPT), ("late", LATE)):
            for (key, _), data in rows(self.run, table.name).items():
                row = json.loads(data)
                where = f"{handler} of {key}: {row}"
                if len(set(row["ids"])) < len(row["ids"]):
                    found.append(Finding("a message takes effect once", where))
                if row["broken"]:
                    found.append(Finding("a payload comes whole", where))
                if unknown := set(row["ids"]) - set(taken.get(key, ())) - self._sent.keys():
                    found.append(Finding("nothing comes from nowhere", f"{where}: {unknown}"))
                if both := set(row["ids"]) & dead[f"parcels.{handler}"]:
                    found.append(Finding("what is given up has no effect", f"{where}: {both}"))
            good = dead[f"parcels.{handler}"] - self._spoiled
            if good and not disturbed:
                found.append(Finding("nothing good is given up", f"{handler}: {sorted(good)}"))
        return [*found, *self._references()]

    def _references(self) -> list[Finding]:
        """Whatever a message refers to is there, and named by a row."""
        found, there, named = [], set(self.blobs.names), self._named()
        for topic in (Parcel.TOPIC, Copied.TOPIC, Late.TOPIC):
            for record in self.run.cluster.visible(topic):
                claim = claim_in(dict(record.headers))
                if claim is None:
                    continue
                if claim.name not in there:
                    found.append(Finding("no reference leads to nothing", f"{topic}: {claim.name}"))
                if claim.name not in named:
                    found.append(Finding("each object is named by a row", f"{topic}: {claim.name}"))
        return found

    def _named(self) -> set[str]:
        """The objects that rows name."""
        found: set[str] = set()
        for record in self.run.cluster.visible(self.run.app.layout.changelog(CLAIMS)):
            name = (record.key or b"").decode()
            (found.discard if record.value is None else found.add)(name)
        return found

    def _ids(self, table: Table[Got]) -> dict[str, list[str]]:
        return {key: json.loads(data)["ids"] for (key, _), data in rows(self.run, table.name).items()}

    def _dead(self) -> dict[str, set[str]]:
        """The ids of parcels that each handler has given up, and that nobody has replayed."""
        found: dict[str, set[str]] = defaultdict(set)
        for letter in letters_in(self.run).values():
            if letter.topic in (Parcel.TOPIC, Copied.TOPIC, Late.TOPIC):
                said = dict(letter.headers)
                found[letter.handler].add((said.get(CORRELATION) or said[ID] or b"").decode())
        return found
