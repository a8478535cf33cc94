"""What is wrong, of all workers together: warnings with their cause, since when, and what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from textwrap import shorten
from urllib.parse import quote, urlencode

from msgspec.structs import replace

from streams.control.base.refused import refused
from streams.control.overview.flow_answers import (
    Flow,
    HandlerPart,
    NamedSaga,
    TopicPart,
    Warned,
    WorkerPart,
    lanes_text,
    letters_link,
    saga_link,
    topic_link,
    worker_link,
)
from streams.engine.waiting.queue import Reason
from streams.model.application import Application

#: Characters of an error beside a problem.
_WIDTH = 160
#: A lag grows when there are so many messages more than a minute ago, and more than these seconds of work.
GROWN, SECONDS_OF_WORK = 1000, 10.0
#: A saga may hold a customer's money: those that need a decision come before dead letters.
SAGAS_FIRST = 1 << 40
#: The first words of the one warning that all workers and lanes share while Kafka is away.
AWAY = "Kafka does not answer"
BROKERS = "Check the brokers: lanes continue by themselves once they answer."


def of_kafka(workers: Sequence[WorkerPart]) -> Iterable[Warned]:
    """One warning for all lanes that make no progress because Kafka does not answer."""
    away = {lane: idle for worker in workers for lane, idle in worker.away.items()}
    if away:
        since = f"without progress for {max(away.values()):.0f} s"
        text = f"{AWAY}: {lanes_text(sorted(away))} {'are' if len(away) > 1 else 'is'} {since}"
        yield Warned(
            text=text,
            link="#workers",
            where="the lanes",
            grave=True,
            word="Stopped",
            about="Kafka",
            do=BROKERS,
        )


def of_gone_handlers(app: Application, handlers: Iterable[HandlerPart]) -> list[Warned]:
    """A warning for each handler that no worker has, and messages wait for."""
    return [
        Warned(
            text=f"{_count(each.waits, 'message')} {'waits' if each.waits == 1 else 'wait'} for"
            f" {each.handler}, which no worker has: was it renamed?",
            link=f"/waiting?{urlencode({'handler': each.handler})}",
            where="waiting messages",
            grave=True,
            word="Stopped",
            do="Start a worker that has it, or give the handler its former name.",
        )
        for each in handlers
        if each.waits and each.handler not in app.handlers
    ]


def of_silent(workers: Iterable[WorkerPart], moved_within: float) -> Iterable[Warned]:
    """A warning for each worker that does not answer: the lanes of one that has died move within so long."""
    wait = (
        f"Wait: its lanes move to the other workers within {moved_within:.0f} s by themselves. If they do"
        " not, stop it and start it again."
    )
    for each in workers:
        if each.silent:
            owns = lanes_text(each.owns) if each.owns else "no lane"
            yield Warned(
                text=f"The worker {each.name} does not answer, and owns {owns}",
                link=worker_link(each.url),
                where="the worker",
                grave=bool(each.owns),
                word="Silent",
                about=f"Worker {each.name}",
                why=each.silent[:1].upper() + each.silent[1:],
                since=each.since,
                do=wait if each.owns else "Start it again; if it hangs, kill it first.",
            )


def of_slow(workers: Iterable[WorkerPart]) -> Iterable[Warned]:
    """A warning for each worker whose event loop stands for most of the time."""
    for each in workers:
        if (pace := each.pace) is not None and pace.slow:
            name = f"Slot {each.slot}" if each.slot >= 0 else each.name
            yield Warned(
                text=f"{name} is slow: its event loop is {pace.late:.1f} s late",
                link=worker_link(each.url),
                where="the worker",
                word="Slow",
                about=f"Worker {each.name}",
                why=f"Its event loop was blocked for {pace.stood:.0%} of the last ten seconds; the process"
                f" used {pace.cpu:.0%} of a core",
                do="Check whether the machine is short of CPU or memory, or a handler blocks the event loop."
                " If you stop the worker, its lanes move to the others.",
            )


def of_handlers(handlers: Iterable[HandlerPart]) -> Iterable[Warned]:
    """Warnings of handlers that are paused, fail, or have dead letters."""
    for each in sorted(handlers, key=lambda handler: handler.handler):
        if each.paused:
            text = f"{each.handler} is paused in {_count(each.paused, 'partition')}: its messages wait"
            link = f"/handlers/{quote(each.handler, safe='')}"
            yield Warned(
                text=text,
                link=link,
                where="who paused it, and why",
                grave=True,
                word="Stopped",
                about=each.handler,
                why=each.pause,
                since=each.since,
                do="Resume it when the reason is gone: its messages then run, in order.",
            )
        if each.breakers:
            wait = _count(each.waits, "message") if each.waits else "its messages"
            yield Warned(
                text=f"{each.handler} fails, and {wait} wait{'s' if each.waits == 1 else ''}",
                link=f"/handlers/{quote(each.handler, safe='')}",
                where="the handler",
                word="Late",
                about=each.handler,
                why=f"The circuit breaker is open in {_count(each.breakers, 'lane')}"
                + (f": {shorten(each.error, _WIDTH, placeholder=' …')}" if each.error else ""),
                since=each.since,
                do="Fix what the handler calls. The handler retries by itself.",
            )
        if each.letters:
            them = "it" if each.letters == 1 else "them"
            text = f"{_count(each.letters, 'message')} failed for good in {each.handler}"
            if held := each.waiting.get(Reason.DEAD, 0):
                text += f", and {held:,} wait{'s' if held == 1 else ''} behind {them}"
            if not each.handler:
                text = _refused(each)
            if each.held_sagas:
                late = f"{_count(each.held_sagas, 'saga')} {'is' if each.held_sagas == 1 else 'are'}"
                text += f"; {late} overdue because of {them}"
            link = letters_link(each.handler)
            yield Warned(
                text=text,
                link=link,
                where="dead letters",
                grave=True,
                word="Needs a decision",
                about=f"Dead letters of {each.handler}" if each.handler else "Refused before any handler",
                why=_why_dead(each),
                weight=each.letters,
                since=each.letters_since,
                do=f"Mend the cause, then replay {them}; or discard {them}.",
            )


def _refused(part: HandlerPart) -> str:
    """How many messages were refused before a handler saw them, and for what, in a heading."""
    by_error: Counter[str] = Counter()
    for each in part.letter_errors:
        by_error[each.error] += each.count
    were = "was" if part.letters == 1 else "were"
    head = f"{_count(part.letters, 'message')} {were} refused before any handler"
    if len(by_error) == 1 and part.letters > 1:
        return f"{head}: they {refused(next(iter(by_error)), 2)}"
    if part.letters == 1:
        return f"{head}: it {refused(next(iter(by_error)))}" if by_error else head
    known = ", ".join(f"{count} {refused(error, count)}" for error, count in by_error.most_common())
    return f"{head}: {known}" if known else head


def _why_dead(part: HandlerPart) -> str:
    """The error of the largest group of dead letters, and how many groups there are."""
    if not part.letter_errors:
        return ""
    first = part.letter_errors[0]
    error = shorten(f"{first.error}: {first.text}" if first.text else first.error, _WIDTH, placeholder=" …")
    if len(part.letter_errors) == 1:
        return error if part.letters == 1 else f"Such as {error}"
    groups = f"The largest of {len(part.letter_errors)} groups"
    return f"{groups} has {first.count} of the {part.letters} dead letters, such as {error}"


def of_topics(topics: Iterable[TopicPart]) -> Iterable[Warned]:
    """A warning for each topic of which the lag grows."""
    for each in topics:
        grown = each.lag - each.lag_before
        if grown >= GROWN and each.lag > each.rate * SECONDS_OF_WORK:
            text = f"{each.topic} is handled more slowly than it is written: {each.lag} messages wait,"
            yield Warned(
                text=f"{text} {grown} more than a minute ago",
                link=topic_link(each.topic),
                where="the topic",
                do="Find out which of its handlers is slow, or start more workers.",
            )


def of_sagas(flow: Flow) -> Iterable[Warned]:
    """Warnings of sagas that wait for an operator, and of those that are overdue. One that has a dead letter
    is named with that.
    """
    lanes = flow.counts.values()
    if failed := flow.sagas.get("failed", 0):
        first = min((each.failed_saga for each in lanes if each.failed_saga), key=_since, default=None)
        text = f"{_count(failed, 'saga')} {'needs' if failed == 1 else 'need'} a decision"
        decide = Warned(
            text=text,
            link="/sagas?status=failed",
            where="failed sagas",
            grave=True,
            word="Needs a decision",
            about="Sagas",
            do="Mend the cause, then try again; or say that it was done by hand; or go on without it.",
            weight=SAGAS_FIRST + failed,
        )
        yield _of_first(first, failed, decide)
    if (late_ones := flow.stalled - flow.held_sagas) > 0:
        first = min((each.overdue_saga for each in lanes if each.overdue_saga), key=_since, default=None)
        text = f"{_count(late_ones, 'saga')} should have ended by now"
        do = "Its page says what of it waits, or is a dead letter. It goes on by itself once that is handled."
        late = Warned(
            text=text, link="/sagas?stalled=1", where="overdue sagas", word="Overdue", about="Sagas", do=do
        )
        yield _of_first(first, late_ones, late)


def _since(saga: NamedSaga) -> str:
    return saga.since


def _of_first(saga: NamedSaga | None, count: int, warned: Warned) -> Warned:
    """The warning with the only saga, or the oldest of several, and why it does not go on."""
    if saga is None:  # it has gone on since it was counted
        return warned
    why = shorten(saga.why, _WIDTH, placeholder=" …")
    if count > 1:
        return replace(warned, why=f"The oldest, {saga.id}: {why}", since=saga.since)
    return replace(
        warned,
        text=f"{saga.id} {warned.text.removeprefix('1 saga ')}",
        about=f"Saga {saga.id}",
        why=f"It {why[3:]}" if why.startswith("it ") else why,
        since=saga.since,
        link=saga_link(saga.id),
        where="the saga",
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
