"""The commands `agents`, `tables`, `models` and `model`, which list the parts of a Worker.

Faust registers commands by name, so importing this module replaces Faust's own. For any other app they list
what Faust lists. None of them needs a broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from inspect import cleandoc
from typing import Any

import msgspec
from faust.cli import faust as built_in

from streams.host.app import LaneApp
from streams.model.choreography import Choreography

__all__ = ["agents", "model", "models", "tables"]


def summary(of: Any) -> str:
    """The first paragraph of an object's docstring; `<N/A>`, as in Faust, if it has none."""
    text = cleandoc(of.__doc__ or "")
    return text.partition("\n\n")[0].replace("\n", " ") or "<N/A>"


def classes(wiring: Choreography) -> Iterator[type[msgspec.Struct]]:
    """Every message and row class of a wiring, each once."""
    rows = [table.row for table in wiring.tables().values()]
    yield from dict.fromkeys([*wiring.messages().values(), *rows])


class agents(built_in.agents):
    """List handlers, and agents."""

    async def run(self, *, local: bool) -> None:
        """Print each handler with the topics that it takes, then each agent with its own."""
        found = sorted(self.app.agents.values(), key=lambda agent: agent.name)
        listed = [self.agent_to_row(agent) for agent in found if local or self._maybe_topic(agent)]
        self.say(self.tabulate([*self._handlers(), *listed], headers=self.headers, title=self.title))

    def _handlers(self) -> Iterator[tuple[str, str, str]]:
        if not isinstance(self.app, LaneApp):
            return
        wiring = self.app.wiring
        for handler in sorted(wiring.handlers(), key=lambda each: each.name):
            topics = [topic for topic, route in wiring.routes.items() if handler in route.handlers]
            yield handler.name, ", ".join(topics), summary(handler)


class tables(built_in.tables):
    """List tables of lanes, and Faust's."""

    async def run(self) -> None:
        """Print each table with the description of its rows."""
        listed = [(table.name, table.help or "<N/A>") for table in self.app.tables.values()]
        if isinstance(self.app, LaneApp):
            ours = self.app.wiring.tables()
            listed = [(name, summary(ours[name].row)) for name in sorted(ours)] + listed
        self.say(self.tabulate(listed, headers=["name", "help"], title=self.title))


class models(built_in.models):
    """List messages and rows, and Faust's models."""

    async def run(self, *, builtins: bool) -> None:
        """Print the name of each class with its description."""
        found = self.models(builtins)
        ours: list[tuple[str, str]] = []
        if isinstance(self.app, LaneApp):
            ours = sorted((name_of(each), summary(each)) for each in classes(self.app.wiring))
            found = [each for each in found if builtins or not each.__module__.startswith("faust.")]
        listed = [*ours, *(self.model_to_row(each) for each in found)]
        self.say(self.tabulate(listed, headers=self.headers, title=self.title))


class model(built_in.model):
    """Show the fields of a message, a row, or a model."""

    async def run(self, name: str) -> None:
        """Print each field with its type and default."""
        ours = classes(self.app.wiring) if isinstance(self.app, LaneApp) else ()
        found = next((each for each in ours if name in (name_of(each), each.__name__)), None)
        if found is None:
            await super().run(name)
            return
        rows = [field_of(each) for each in msgspec.structs.fields(found)]
        title = name_of(found)
        self.say(self.tabulate(rows, headers=self.headers, title=title, wrap_last_row=False))


def name_of(kind: type[Any]) -> str:
    """The class name with its module, because it may be in any module of the application."""
    return f"{kind.__module__}.{kind.__qualname__}"


def field_of(field: msgspec.structs.FieldInfo) -> tuple[str, str, str]:
    """The field's name, type and default, the way Faust shows fields of models; `*` if it has no default."""
    kind = field.type.__name__ if isinstance(field.type, type) else str(field.type)
    if field.default is not msgspec.NODEFAULT:
        return field.name, kind, repr(field.default)
    made = field.default_factory is not msgspec.NODEFAULT
    return field.name, kind, f"{field.default_factory.__name__}()" if made else "*"
