"""Errands: handlers that fail, take their time, order by less than the key, wait for schemas and payloads,
and are paused. Their serial run says what has to come of them; what is beside that is judged here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from random import Random
from typing import Any, ClassVar

from streams import Outcome, RetryPolicy, Row, Rows, Service, Table, choreography, on, outcome
from streams.engine.staging.arrival import Head
from streams.engine.staging.changes import HANDLERS
from streams.engine.staging.keys import HANDLER, prefix_of, split_lane_key
from streams.engine.waiting.operations.pauses import read_pause
from streams.errors import PermanentError, TransientError, UnknownSchema
from streams.logs import HANDLED
from streams.model.avro_types import derived_schema
from streams.model.choreography import Choreography
from streams.model.claim import PREFIX, claim_in, claim_of, with_claim
from streams.model.claim_checks import ClaimChecks
from streams.model.codecs import AvroCodec, JsonCodec, Schemas
from streams.model.envelope import EXPIRY, FINGERPRINT, new_headers, rfc3339
from streams.model.handlers import Handler
from streams.model.layout import CLAIMS, dead_letter_topic
from streams.model.operations import HANDLER_OPERATION, HandlerCommand, HandlerOperation, encode_operation
from streams.ports import TP, Record
from streams.testing.blobs import MemoryBlobs
from streams.testing.simulation.handlers import Handlers, HandlersPart, identity_of
from streams.testing.simulation.judge import sent_on
from streams.testing.simulation.machines import Outside, running
from streams.testing.simulation.plan import Finding, PlanStep
from streams.testing.simulation.run import Run
from tests.keyed import Keyed
from tests.simulation.letters import RETRY

#: Bytes of a payload from which on it goes by reference.
THRESHOLD = 1000
SIZES = (0, 10, THRESHOLD - 60, THRESHOLD, 3_000, 50_000)
#: Schemas that somebody announces some time; where all is JSON, their fingerprints.
SCHEMAS = tuple(b"%016x" % number for number in (1, 2))
#: What an answer has for `n` when the errand is given up.
GIVEN_UP = -1
HANDLED_BY = ("errands.run", "errands.audit", "errands.note")
#: Rows under a key of wide errands, how many of them each changes, and the bytes of a large one.
SHELVES, FILLED, LARGE = 50, 20, 30_000


class Errand(Keyed, frozen=True, kw_only=True):
    """What comes from outside: `fails` times `fails_in` fails, or it fails until it is healed, or for ever;
    `takes` so many seconds.
    """

    TOPIC: ClassVar[str] = "errands.asked.v1"
    i: int
    fails_in: str = ""
    fails: int = 0
    dies: str = ""
    takes: float = 0.0
    text: str = ""


class Hurried(Errand, frozen=True, kw_only=True):
    """As another application writes it."""

    urgent: bool = True


class Noted(Errand, frozen=True, kw_only=True):
    """As yet another application writes it."""

    notes: tuple[str, ...] = ("n",)
    weight: float | None = 1.5


class Done(Keyed, frozen=True, kw_only=True):
    """An errand is done, the n-th of its key."""

    TOPIC: ClassVar[str] = "errands.done.v1"
    SAME_KEY: ClassVar[bool] = True
    i: int
    n: int
    text: str = ""


class Tally(Row, frozen=True, kw_only=True):
    """How many there were, and a digest of all their texts in order."""

    n: int = 0
    digest: str = ""

    def and_now(self, text: str) -> Tally:
        return Tally(n=self.n + 1, digest=sha256(f"{self.digest}{text}".encode()).hexdigest()[:16])


class Shelf(Row, frozen=True, kw_only=True):
    """One of many rows under a key."""

    errands: tuple[int, ...] = ()
    text: str = ""


RUNS, AUDITS, NOTES = Table("runs", Tally), Table("audits", Tally), Table("notes", Tally)
KEPT = Table("shelves", Shelf)


class Fate:
    """What handlers meet outside."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._tries: Counter[tuple[str, int]] = Counter()

    def meet(self, handler: str, errand: Errand) -> None:
        """Fail, as the errand says."""
        if errand.fails_in != handler:
            return
        self._tries[errand.k, errand.i] += 1
        if errand.dies and not (self._outside.is_healed and errand.dies == "curable"):
            raise PermanentError(f"{errand.i} dies")
        if self._tries[errand.k, errand.i] <= errand.fails:
            raise TransientError(f"try {self._tries[errand.k, errand.i]} of {errand.i}")


@dataclass(frozen=True)
class Errands:
    """What an application of errands has. `wide`: many rows under a key, one of them large."""

    is_async: bool
    finer: bool
    holds: bool
    claims: bool
    answers: bool
    avro: bool = False
    wide: bool = False

    def part(self, run: Run) -> ErrandsPart:
        return ErrandsPart(run, self)

    def order_of(self, errand: Errand) -> str:
        return str(errand.i % 3) if self.finer else ""

    def wiring(self, at: Any) -> Choreography:
        """Its lines; `at` is called as a handler begins, with its name and its message."""
        service = Service("errands")
        retry = RetryPolicy(RETRY.immediate, RETRY.delays, hold_while_dead=self.holds)
        order_by = self.order_of if self.finer else None

        def decide(errand: Errand, row: Tally | None) -> Outcome:
            now = (row or Tally()).and_now(errand.text)
            return outcome(row=now, send=[Done(k=errand.k, i=errand.i, n=now.n, text=errand.text)])

        def give_up(errand: Errand, error: Exception) -> Outcome:
            del error
            return outcome(send=[Done(k=errand.k, i=errand.i, n=GIVEN_UP)])

        def handler(function: Any) -> Any:
            """A request, whose reply comes also where it is given up."""
            how: dict[str, Any] = {"on_give_up": give_up} if self.answers else {}
            return Handler("errands", function, [Done], {"row": RUNS}, retry=retry, order_by=order_by, **how)

        if self.is_async:

            @handler
            async def run(errand: Errand, row: Tally | None, *, fate: Fate, outside: Outside) -> Outcome:
                at("errands.run", errand)
                fate.meet("run", errand)
                await outside.ask(errand.takes)
                return decide(errand, row)
        else:

            @handler
            def run(errand: Errand, row: Tally | None, *, fate: Fate) -> Outcome:
                at("errands.run", errand)
                fate.meet("run", errand)
                return decide(errand, row)

        @service.handler(retry=retry, row=AUDITS)
        def audit(errand: Errand, row: Tally | None, *, fate: Fate) -> Outcome:
            at("errands.audit", errand)
            fate.meet("audit", errand)
            return outcome(row=(row or Tally()).and_now(errand.text))

        @service.handler(row=NOTES)
        def note(done: Done, row: Tally | None) -> Outcome:
            at("errands.note", done)
            return outcome(row=(row or Tally()).and_now(done.text))

        @service.handler(retry=retry, shelves=KEPT.any)
        def shelve(errand: Errand, shelves: Rows[Shelf]) -> Outcome:
            at("errands.shelve", errand)
            names = [str((errand.i * 7 + nth) % SHELVES) for nth in range(FILLED)]
            rows: dict[str, Shelf | None] = {
                name: Shelf(errands=(*(shelves(name) or Shelf()).errands, errand.i)) for name in names
            }
            rows[str(errand.i % SHELVES)] = None
            return outcome(shelves={**rows, "large": Shelf(errands=(errand.i,), text="x" * LARGE)})

        more = [shelve] if self.wide else []
        return choreography(on(Errand, run, audit, *more), on(Done, note))


def stored(seed: int, has: Errands) -> Errands:
    """The same with what some seeds have for codecs and rows, by numbers of their own."""
    rng = Random(f"{seed} formats")
    return replace(has, avro=rng.random() < 0.3, wide=rng.random() < 0.3)


def plan(rng: Random) -> tuple[Errands, list[PlanStep]]:
    """Errands of a seed, and what operators do."""
    has = Errands(*(rng.random() < odds for odds in (0.5, 0.4, 0.3, 0.4, 0.4)))
    steps: list[PlanStep] = []
    keys = "abcdef"[: rng.choice((1, 3, 6))]
    for number in range(rng.choice((4, 10, 25))):
        more: dict[str, Any] = {"text": f"{number}:".ljust(rng.choice(SIZES) if has.claims else 0, "x")}
        how = rng.choice(("", "", "", "fails", "fails", "dies"))
        if how:
            more["fails_in"] = rng.choice(("run", "audit"))
        if how == "fails":
            more["fails"] = rng.choice((1, 2, 3, 4))
        elif how == "dies":
            more["dies"] = rng.choice(("curable", "for ever"))
        more["takes"] = rng.choice((0.0, 0.0, 0.4, 1.5))
        special = rng.choice((None, None, None, None, 1.0, 6.0, *SCHEMAS))
        at = rng.uniform(0, 40)
        steps.append(
            PlanStep(at, "errand", (rng.choice(keys), number, more, special, int(rng.random() < 0.1)))
        )
        if rng.random() < 0.1:
            steps.append(PlanStep(at + rng.choice((0.0, 20.0)), "errand", steps[-1].what))
    steps += [PlanStep(rng.uniform(5, 40), "announce", (schema,)) for schema in SCHEMAS if rng.random() < 0.7]
    for _ in range(rng.choice((0, 0, 1, 4))):
        kind = rng.choice(("pause", "pause", "drain", "resume"))
        some = rng.choice((None, None, (0,), (1, 2)))
        steps.append(
            PlanStep(rng.uniform(0, 45), "command", (rng.choice(HANDLED_BY), kind, some, rng.random() < 0.3))
        )
    if has.claims:
        for _ in range(rng.choice((0, 1, 2))):
            steps.append(
                PlanStep(rng.uniform(0, 40), "bucket", (rng.choice(("down", "slow")), rng.choice((1.0, 9.0))))
            )
        if rng.random() < 0.3:
            steps.append(PlanStep(rng.uniform(5, 40), "damage", (rng.randrange(999),)))
    return has, steps


class ErrandsPart(HandlersPart):
    """The errands of a run."""

    fails_alike = False

    def __init__(self, run: Run, has: Errands) -> None:
        self._has = has
        self._outside = run.outside
        self._damaged: dict[str, bytes] = {}
        self._held: list[str] = []
        self._late: list[str] = []
        self._known: set[bytes] = set()
        self._schemas = Schemas()
        self._others: dict[bytes, Any] = dict(zip(SCHEMAS, others(is_avro=has.avro), strict=True))
        self.blobs = MemoryBlobs("payloads", now=run.clock.now, sleep=run.here.sleep)
        self._checks: ClaimChecks | None = None
        if has.claims:
            self._checks = ClaimChecks(self.blobs, bucket="payloads", threshold=THRESHOLD, cache_bytes=4_000)
        self.codecs = avro_codecs(self._schemas) if has.avro else codecs_of(self._known)
        resources = lambda: {"fate": Fate(self._outside), "outside": self._outside}  # noqa: E731
        super().__init__(run, Handlers(has.wiring(self._begins), resources))

    def claims(self) -> ClaimChecks | None:
        """Large payloads go by reference, where they do."""
        return self._checks

    # -- steps ----------------------------------------------------------------------------------------

    def do_errand(self, key: str, number: int, more: Mapping[str, Any], special: Any, away: int) -> None:
        """Somebody asks for an errand: of use for so many seconds, or written with a schema of its own."""
        run = self.run
        own = run.app.message_codecs[Errand.TOPIC]
        codec = self._others[special] if isinstance(special, bytes) else own
        headers = new_headers(Errand.TOPIC, key, source="outside", time=1e9, message_id=f"e{number}")
        headers.append((FINGERPRINT, codec.fingerprint))
        if isinstance(special, float):
            headers.append((EXPIRY, rfc3339(run.clock.now() + special).encode()))
        data = codec.encode(codec._kind(k=key, i=number, **more))
        if self._checks is not None and len(data) > THRESHOLD:
            claim = claim_of("payloads", Errand.TOPIC, f"e{number}", data)
            self._put(claim.name, data)
            headers, data = with_claim(headers, claim), b""
        tp = TP(Errand.TOPIC, (run.app.layout.partition_of(key.encode()) + away) % run.plan.partitions)
        run.cluster.produce(tp, key.encode(), data, headers)

    def do_announce(self, schema: bytes) -> None:
        """Somebody announces a schema."""
        self._known.add(schema)
        if self._has.avro:
            self._schemas.add(self._others[schema].schema)

    def do_command(self, handler: str, kind: str, partitions: tuple[int, ...] | None, twice: Any) -> None:
        """An operator pauses, drains or resumes a handler, in some partitions, perhaps from two terminals."""
        run = self.run
        run.operations += 1
        command = HandlerOperation(kind=HandlerCommand(kind), handler=handler, who="ann", why="why", at_ms=1)
        name = f"{kind}-{run.operations}"
        headers = new_headers(HANDLER_OPERATION, handler, source="desk", time=1e9, message_id=name)
        for number in range(run.plan.partitions):
            if partitions is None or number in partitions:
                for _ in range(1 + twice):
                    tp = TP(run.app.layout.operations, number)
                    run.cluster.produce(tp, handler.encode(), encode_operation(command), headers)

    def do_bucket(self, how: str, seconds: float) -> None:
        """The object store is away, or takes its time."""
        setattr(self.blobs, how, True if how == "down" else 1.5)
        self.run.later(seconds, setattr, self.blobs, how, False if how == "down" else 0.0)

    def do_damage(self, number: int) -> None:
        """An object is not what it was."""
        names = [name for name in self.blobs.names if name.startswith(PREFIX)]
        if names:
            name = names[number % len(names)]
            self._damaged.setdefault(name, self.blobs._objects[name].data)
            self.blobs.alter(name, b"?")

    def end_faults(self) -> None:
        """All is announced, mended and resumed; what holds others is replayed, and then discarded."""
        super().end_faults()
        for schema in SCHEMAS:
            self.do_announce(schema)
        self.blobs.down, self.blobs.slow = False, 0.0
        self._mend()
        for handler in HANDLED_BY:
            self.do_command(handler, "resume", None, False)
        if self._has.holds:
            for number in range(64):  # also for retries that a clock has put off
                kind = "discard" if number % 2 else "replay"
                self.run.later(20.0 + 20 * number, self.run.do_operate, kind, False)

    # -- judgement ------------------------------------------------------------------------------------

    def missing(self) -> list[str]:
        """What `HandlersPart` misses, and handlers that are not resumed."""
        paused: dict[tuple[int, bytes], bool] = {}
        for record in self.run.cluster.visible(self.run.app.layout.changelog("lane")):
            kind, name = split_lane_key(record.key or b"")
            if kind == HANDLER:
                paused[record.partition, name] = record.value is not None
        left = [f"{name.decode()} is paused in {number}" for (number, name), is_so in paused.items() if is_so]
        return left or super().missing() or [*self._gates()]

    def _gates(self) -> Iterator[str]:
        """Gates of lanes that have nothing to do, which are not what their rows say."""
        for worker in self.run.workers:
            for lane in worker.host.lanes.values() if worker is not None else ():
                if lane.store is not None and not lane.backlog:
                    rows = {local: read_pause(data) for local, data in lane.store.scan(HANDLERS)}
                    known = {
                        prefix + name.encode(): pause
                        for name, gate in lane.gates.items()
                        for prefix, pause in gate.pauses.items()
                    }
                    if known != rows:
                        yield f"lane {lane.number} has gates {known}, and rows {rows}"

    def judge(self) -> list[Finding]:
        """What `HandlersPart` judges; and order, pauses, dead letters and references."""
        return [
            *super().judge(),
            *self._order(),
            *self._given_up(),
            *self._references(),
            *self._pauses(),
            *self._answers(),
        ]

    def _pauses(self) -> Iterator[Finding]:
        for where in self._held[:1]:
            yield Finding("nothing is tried where a handler is held", where)
        for where in self._late[:1]:
            yield Finding("nothing is tried that has expired as it waited", where)

    def _begins(self, handler: str, message: Any) -> None:
        """Its lane must not hold the handler. A payload is fetched after it was asked."""
        process, run, arrival = running(), self.run, HANDLED.get()
        until = arrival.envelope.deadline if isinstance(arrival, Head) and not arrival.is_replay else None
        if until is not None and until < run.here.now():
            self._late.append(f"{handler} has {message!r}")
        if self._checks is not None:
            return
        partition = run.app.layout.partition_of(message.k.encode())
        for worker in run.workers:
            if worker is not None and worker.process is process and process is not None:
                lane = worker.host.lanes.get(process.layout.lane_of(partition))
                gate = lane.gates.get(handler) if lane is not None else None
                if gate is not None and prefix_of(partition) in gate.shut:
                    self._held.append(f"{handler} has {message!r}")

    def _order(self) -> Iterator[Finding]:
        """The errands of an ordering key take effect in the order of their log, but for letters and what came
        in a wrong partition.
        """
        once_dead = self._once_dead()
        away = {identity_of(each) for each in sent_on(self.run, Errand.TOPIC)}
        place = {each.identity: number for number, each in enumerate(self._logged())}
        effects: dict[tuple[str, str, str], list[int]] = defaultdict(list)
        for call in self.effective(self._dead()):
            identity, message = call.envelope.identity, call.message
            if call.place not in once_dead and identity not in away and isinstance(message, Errand):
                order = self._has.order_of(message) if call.handler == "errands.run" else ""
                effects[call.handler, message.key, order].append(place[identity])
        for which, order in effects.items():
            if order != sorted(order):
                yield Finding("effects are in the order of the log", f"{which}: {order}")

    def _answers(self) -> Iterator[Finding]:
        """Each errand that `run` has seen has one answer: it is done or given up."""
        if self._has.answers:
            answers = Counter(each.message.i for each in self._logged() if isinstance(each.message, Done))
            for number, times in answers.items():
                if times != 1:
                    yield Finding("a request has one answer", f"errand {number} has {times}")

    def _once_dead(self) -> set[tuple[str, bytes]]:
        found = set()
        for topic in (Errand.TOPIC, Done.TOPIC):
            for record in self.run.cluster.visible(dead_letter_topic(topic)):
                handler = dict(record.headers)["dlq-handler"].decode()
                found.add((handler, identity_of(record)))
                if not handler:
                    found |= {(each.name, identity_of(record)) for each in self._shape.wiring.handlers()}
        return found

    def _given_up(self) -> Iterator[Finding]:
        """What has no effect in the end has a reason."""
        steps = {step.kind for step in self.run.plan.steps}
        asked = [step.what for step in self.run.plan.steps if step.kind == "errand"]
        special = {what[1] for what in asked if isinstance(what[3], float)}
        for place, message in self._dead().items():
            if not isinstance(message, Errand) or steps & {"limit", "damage", "bucket"}:
                continue
            fails = message.fails_in == place[0].partition(".")[2] and (message.dies or message.fails >= 5)
            if not fails and message.i not in special:
                yield Finding("nothing good is given up", f"{place}: {message!r}")

    def _references(self) -> Iterator[Finding]:
        """Whatever a message refers to is there, and named by a row."""
        if self._checks is None:
            return
        rows: dict[bytes, bool] = {}
        for record in self.run.cluster.visible(self.run.app.layout.changelog(CLAIMS)):
            rows[record.key or b""] = record.value is not None
        for topic in self.run.app.routes:
            for record in self.run.cluster.visible(topic):
                claim = claim_in(dict(record.headers))
                at_home = self.run.app.layout.partition_of(record.key or b"") == record.partition
                if claim is not None and at_home and not rows.get(claim.name.encode()):
                    yield Finding("what a message refers to is named by a row", claim.name)
                if claim is not None and claim.name not in self.blobs.names:
                    yield Finding("what a message refers to is there", claim.name)

    def _payload(self, record: Record) -> bytes | None:
        claim = claim_in(dict(record.headers)) if self._checks is not None else None
        if claim is None:
            return super()._payload(record)
        there = self.blobs._objects.get(claim.name)
        return self._damaged.get(claim.name) or (there.data if there is not None else None)

    # -- objects --------------------------------------------------------------------------------------

    def _mend(self) -> None:
        for name, data in self._damaged.items():
            self.blobs.alter(name, data)
        self._damaged.clear()

    def _put(self, name: str, data: bytes) -> None:
        coroutine = MemoryBlobs.put(_Quiet(self.blobs), name, data, "application/json")  # type: ignore[arg-type]
        try:
            coroutine.send(None)
        except StopIteration:
            return
        raise AssertionError("a client waits for the object store")


class _Quiet:
    """The bucket of a client that is never slow or down."""

    def __init__(self, blobs: MemoryBlobs) -> None:
        self._blobs = blobs

    async def _request(self, method: str) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blobs, name)


def others(*, is_avro: bool) -> Iterator[Any]:
    """The codecs of those who write errands by the schemas that are announced."""
    for kind, fingerprint in zip((Hurried, Noted), SCHEMAS, strict=True):
        schema = derived_schema(kind).replace(f'"{kind.__name__}"', '"Errand"')
        codec: Any = AvroCodec(kind, schema, Schemas()) if is_avro else JsonCodec(Errand)
        if not is_avro:
            codec.fingerprint = fingerprint
        yield codec


def avro_codecs(schemas: Schemas) -> Any:
    """Avro, by the schemas that are known."""
    return lambda kind, _: AvroCodec(kind, derived_schema(kind), schemas)


def codecs_of(known: set[bytes]) -> Any:
    """JSON that can be read once its schema is among the known ones."""

    class Announced(JsonCodec[Any]):
        def __init__(self, kind: type[Any], subject: str) -> None:
            del subject
            super().__init__(kind)
            self._read = self.decode
            self.decode = self._read_known  # type: ignore[method-assign]

        def require(self, fingerprint: bytes | None) -> None:
            if fingerprint not in (None, self.fingerprint, *known):
                raise UnknownSchema((fingerprint or b"").decode())

        def _read_known(self, data: bytes, fingerprint: bytes | None) -> Any:
            self.require(fingerprint)
            return self._read(data, fingerprint)

    return Announced
