"""What ends a process, and what is only the failure of what raised it."""

import asyncio
import signal
import sys
from collections.abc import Iterator
from functools import partial
from types import FrameType
from typing import Any

import pytest

from streams.errors import ends_process, text_of
from streams.escapes import Contained, Escaped, calling, contain_tasks, original
from streams.logs import handling

pytestmark = pytest.mark.promise("whatever-is-raised")


@pytest.fixture
def handlers() -> Iterator[None]:
    """Whatever a test sets for SIGINT and SIGTERM is undone."""
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


def raised_by(function: Any) -> BaseException:
    try:
        function()
    except BaseException as error:  # noqa: BLE001 - the answer has it
        return error
    raise AssertionError("it raises")


def leave(_number: int, _frame: FrameType | None) -> None:
    sys.exit(3)


class Host:
    def leave(self, _number: int, _frame: FrameType | None, *, status: int = 3) -> None:
        sys.exit(status)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("handler", [leave, Host().leave, partial(Host().leave, status=4)])
def test_an_exit_by_a_signal_ends_the_process(handler: Any) -> None:
    signal.signal(signal.SIGTERM, handler)
    error = raised_by(lambda: signal.raise_signal(signal.SIGTERM))
    assert isinstance(error, SystemExit)
    assert ends_process(error)
    with pytest.raises(SystemExit):
        calling(signal.raise_signal, signal.SIGTERM)


@pytest.mark.usefixtures("handlers")
def test_an_interrupt_by_the_keyboard_ends_the_process() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert ends_process(raised_by(lambda: signal.raise_signal(signal.SIGINT)))


def interrupted() -> None:
    raise KeyboardInterrupt


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("function", [interrupted, sys.exit, partial(next, iter(()))])
def test_what_a_library_raises_ends_no_process(function: Any) -> None:
    signal.signal(signal.SIGTERM, leave)
    assert not ends_process(raised_by(function))


@pytest.mark.usefixtures("handlers")
def test_an_interrupt_ends_no_loop_that_takes_signals() -> None:
    async def main() -> bool:
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: None)
        return ends_process(raised_by(interrupted))

    assert not asyncio.run(main())


def test_an_error_whose_text_exits_can_be_told() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            return str(sys.exit(1))

    assert text_of(Silent()) == "(Silent cannot be shown: SystemExit)"


async def test_a_contained_coroutine_is_closed_and_cancelled_as_before() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except BaseException as error:
            ended.append(type(error).__name__)
            raise

    task = asyncio.create_task(Contained(work()))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    begun = Contained(work())
    begun.send(None)
    begun.close()
    never_begun = asyncio.create_task(Contained(work()))
    never_begun.cancel()
    await asyncio.wait([never_begun])
    assert ended == ["CancelledError", "GeneratorExit"]


async def test_only_tasks_of_what_is_handled_are_contained() -> None:
    loop, made = asyncio.get_running_loop(), []

    def factory(loop: Any, coro: Any, **options: Any) -> Any:
        made.append(coro)
        return asyncio.Task(coro, loop=loop, **options)

    class Handled:
        def log_ids(self) -> dict[str, str]:
            return {}

    async def leaves() -> None:
        raise SystemExit(7)

    loop.set_task_factory(factory)
    contain_tasks(loop)
    contain_tasks(loop)  # a second lane of the worker
    await asyncio.create_task(asyncio.sleep(0))
    assert not isinstance(made[-1], Contained)
    handling(Handled())
    with pytest.raises(Escaped, match="SystemExit: 7") as caught:
        await asyncio.create_task(leaves())
    assert isinstance(original(caught.value), SystemExit)
    assert len(made) == 2
