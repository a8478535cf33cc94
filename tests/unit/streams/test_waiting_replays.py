"""The queue of an ordering key against two lists: what is replayed, then what came since."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from streams.engine.waiting import queue as waiting
from streams.engine.waiting.queue import REPLAYED, Reason, WaitingQueue, read_queue, set_queue
from tests.effort import examples

pytestmark = pytest.mark.promise("dead-letters")

SIZES = st.integers(1, 9)


class Queues(RuleBasedStateMachine):
    """Messages are numbers of bytes, stored under the numbers that the queue gives them."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: WaitingQueue | None = None
        self.stored: dict[int, int] = {}
        self.replays: list[int] = []
        self.rest: list[int] = []
        self.held: tuple[Reason, int, int] | None = None
        self.now = 1

    @rule(size=SIZES)
    def comes(self, size: int) -> None:
        if self.queue is None:
            self.queue = waiting.begin(Reason.RETRY, due_ms=self.now + 50, attempts=3, size=size)
            assert (self.queue.reason, self.queue.due_ms) == (Reason.RETRY, self.now + 50)
            assert self.queue.attempts == 3
            self.stored[0] = size
        else:
            self.stored[self.queue.next] = size
            self.queue = waiting.append(self.queue, size)
        self.rest.append(size)

    @rule(size=SIZES)
    def is_replayed(self, size: int) -> None:
        before, self.now = self.queue, self.now + 1
        if before is not None and not self.replays:
            self.held = (before.reason, before.due_ms, before.attempts)
        self.queue = waiting.replayed(before, size, self.now)
        self.stored[REPLAYED | (self.queue.next_replay - 1)] = size
        self.replays.append(size)
        if len(self.replays) == 1:
            assert (self.queue.reason, self.queue.due_ms) == (Reason.REPLAY, self.now)
            assert self.queue.attempts == 0

    @precondition(lambda self: self.queue is not None)
    @rule(reason=st.sampled_from(Reason), due_ms=st.integers(0, 2**53), attempts=st.integers(0, 9))
    def is_put_off(self, reason: Reason, due_ms: int, attempts: int) -> None:
        self.queue = waiting.postpone(self.queue, reason, due_ms=due_ms, attempts=attempts)
        assert (self.queue.reason, self.queue.due_ms, self.queue.attempts) == (reason, due_ms, attempts)

    @precondition(lambda self: self.queue is not None)
    @rule()
    def head_goes(self) -> None:
        self.now += 1
        self.queue = waiting.advance(self.queue, self.stored.pop(self.queue.head), self.now)
        (self.replays or self.rest).pop(0)
        self.after_a_head()

    @precondition(lambda self: self.rest)
    @rule()
    def what_holds_is_released(self) -> None:
        self.now += 1
        number = self.queue.first
        was_head = number == self.queue.head
        self.queue = waiting.released(self.queue, number, self.stored.pop(number), self.now)
        self.rest.pop(0)
        if was_head:
            self.after_a_head()
        else:
            self.held = (Reason.NEXT, self.now, 0) if self.rest else None

    @precondition(lambda self: self.replays)
    @rule(data=st.data())
    def a_replay_is_taken_out(self, data: st.DataObject) -> None:
        self.now += 1
        assert self.queue.numbers == sorted(self.stored.keys() & {self.queue.first, *self.of_replays})
        at = data.draw(st.integers(0, len(self.replays) - 1))
        number = self.of_replays[at]
        before = self.queue
        self.queue = waiting.released(self.queue, number, self.stored.pop(number), self.now)
        self.replays.pop(at)
        if at == 0:
            self.after_a_head()
        else:
            kept = (before.reason, before.due_ms, before.attempts, before.head)
            assert (self.queue.reason, self.queue.due_ms, self.queue.attempts, self.queue.head) == kept

    @property
    def of_replays(self) -> list[int]:
        return sorted(number for number in self.stored if number & REPLAYED)

    @precondition(lambda self: self.rest)
    @rule(grown=st.integers(-1, 5))
    def what_holds_is_woken(self, grown: int) -> None:
        number = self.queue.first
        grown = max(grown, 1 - self.stored[number])
        self.stored[number] += grown
        self.rest[0] += grown
        self.queue = waiting.woken(self.queue, number, grown, self.now)
        if number == self.queue.head:
            assert (self.queue.reason, self.queue.due_ms) == (Reason.REPLAY, self.now)
        else:
            self.held = (Reason.REPLAY, self.now, 0)

    def after_a_head(self) -> None:
        if self.queue is None:
            self.held = None
        elif not self.replays and self.held is not None:
            assert (self.queue.reason, self.queue.due_ms, self.queue.attempts) == self.held
            self.held = None
        else:
            assert self.queue.reason is (Reason.REPLAY if self.replays else Reason.NEXT)
            assert (self.queue.due_ms, self.queue.attempts) == (self.now, 0)

    @invariant()
    def it_is_what_the_lists_say(self) -> None:
        everything = self.replays + self.rest
        if self.queue is None:
            assert everything == []
            assert self.stored == {}
            return
        assert (self.queue.length, self.queue.bytes) == (len(everything), sum(everything))
        assert self.stored[self.queue.head] == everything[0]
        assert len(self.stored) == len(everything)
        assert read_queue(set_queue(b"h\0name", self.queue).value) == self.queue


Queues.TestCase.settings = settings(max_examples=examples(200), stateful_step_count=40)
TestQueues = Queues.TestCase
