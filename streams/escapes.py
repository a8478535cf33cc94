"""Keeps what is no Exception from ending more than the work that raised it.

asyncio raises the SystemExit and KeyboardInterrupt of any task out of `run_forever`. `except Exception`
catches neither, nor GeneratorExit, BaseExceptionGroup and the panic of a module in Rust. Raised by a handler,
by what it calls or by a task that it starts, each is a failure of its message, and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import copy_context
from typing import Any, ParamSpec, TypeVar, cast

from streams.errors import CancelledError, ends_process, shown
from streams.logs import HANDLED, Identified, handling

P = ParamSpec("P")
T = TypeVar("T")

#: What asyncio lets out of its loop.
_OUT_OF_THE_LOOP = (SystemExit, KeyboardInterrupt)
_ORDINARY = (Exception, asyncio.CancelledError)


class Escaped(Exception):
    """Stands for something raised that is no Exception, where only an Exception can go on.

    Attributes:
        error: what was raised.
    """

    def __init__(self, error: BaseException) -> None:
        self.error = error
        super().__init__(shown(error))


def original(error: BaseException) -> BaseException:
    """The error itself, where an Escaped stands for it."""
    return error.error if isinstance(error, Escaped) else error


def ordinary(error: BaseException) -> Exception:
    """The error, or an Escaped that stands for it."""
    return error if isinstance(error, Exception) else Escaped(error)


def calling(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function. Raises what it raises; Escaped for what is no Exception, but for cancellation."""
    try:
        return function(*args, **kwargs)
    except _ORDINARY:
        raise
    except BaseException as error:
        if ends_process(error):
            raise
        raise Escaped(error) from error


class Contained(Coroutine[Any, Any, T]):
    """A coroutine of somebody else's, to be awaited or made a task: what it raises that is no Exception comes
    as an Escaped. Closing and cancelling it is as before.
    """

    def __init__(
        self, inner: Coroutine[Any, Any, T], kinds: tuple[type[BaseException], ...] = (BaseException,)
    ) -> None:
        """`kinds` are those that come as an Escaped."""
        self._inner = inner
        self._kinds = kinds

    def send(self, value: Any) -> Any:
        """Run to the next wait."""
        try:
            return self._inner.send(value)
        except BaseException as error:
            self._contain(error)
            raise

    def throw(self, kind: Any, value: Any = None, _traceback: Any = None) -> Any:
        """Raise an error where the coroutine waits; run to its next wait. A GeneratorExit comes from what
        it awaits, such as a thread; passed on as it is, it would close the coroutine and all that awaits it.
        """
        thrown = kind if value is None else value
        if isinstance(thrown, GeneratorExit):
            thrown = Escaped(thrown)
        try:
            return self._inner.throw(thrown)
        except BaseException as error:
            self._contain(error)
            raise

    def close(self) -> None:
        """End it where it waits."""
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return cast(Generator[Any, Any, T], self)  # it has what `await` calls

    def __iter__(self) -> Contained[T]:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)  # asyncio's debugger looks for `cr_frame` and the like

    def _contain(self, error: BaseException) -> None:
        """Raises Escaped if the error is not to come as it is."""
        if not isinstance(error, _ORDINARY) and isinstance(error, self._kinds) and not ends_process(error):
            raise Escaped(error) from error


async def run_apart(work: Coroutine[Any, Any, Any], handled: Identified) -> BaseException | None:
    """Await a handler's coroutine in a task of its own, so that it may cancel that. Log lines in it name
    `handled`. Returns what it raised, or None. Raises CancelledError where the caller was cancelled.
    """
    loop = asyncio.get_running_loop()
    contain_tasks(loop)
    context = copy_context()
    context.run(handling, handled)
    task: asyncio.Task[Any] = loop.create_task(Contained(work), context=context)
    try:
        await task
    except asyncio.CancelledError as error:
        caller = asyncio.current_task()
        if caller is not None and caller.cancelling():
            raise
        return cancelled(error)
    except Exception as error:  # noqa: BLE001 - the answer has it
        return original(error)
    return None


def cancelled(error: asyncio.CancelledError) -> CancelledError:
    """A cancellation that is a failure, with words of its own: asyncio's has none."""
    told = CancelledError(str(error) or "something that it waited for was cancelled")
    told.__cause__ = error
    return told.with_traceback(error.__traceback__)


def contain_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """From now on, a task that is started while a message or job is handled does not end the loop. Others
    are as they were, and so is a task factory that was set before.
    """
    before = loop.get_task_factory()
    if isinstance(before, _TaskFactory):
        return
    loop.set_task_factory(_TaskFactory(before))


class _TaskFactory:
    def __init__(self, before: Any) -> None:
        self._before = before

    def __call__(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> Any:
        if HANDLED.get() is not None and asyncio.iscoroutine(coro) and not isinstance(coro, Contained):
            coro = Contained(coro, _OUT_OF_THE_LOOP)
        if self._before is not None:
            return self._before(loop, coro, **options)
        return asyncio.Task(coro, loop=loop, **options)
