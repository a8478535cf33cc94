"""What users import is named in three places, and costs no more than it must."""

from __future__ import annotations

import dataclasses
import inspect
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

import grimp
import pytest

import streams
import streams.saga
import streams.testing
from streams import SteadfaustError, errors

ROOT = Path(streams.__file__).parent
HEAVY = {"faust", "mode", "aiokafka", "rocksdict", "boto3", "botocore", "aiohttp"}
FACES = (streams, streams.saga, streams.testing)
FACE = {
    f"{face.__name__}.{name}": each
    for face in FACES
    for name in face.__all__
    if isinstance(each := getattr(face, name), type | FunctionType)
}


@pytest.mark.parametrize("face", ["streams", "streams.saga", "streams.testing"])
def test_every_name_of_a_face_is_there(face: str) -> None:
    module = import_module(face)
    assert len(module.__all__) == len(set(module.__all__))
    assert [name for name in module.__all__ if getattr(module, name, None) is None] == []
    with pytest.raises(AttributeError, match="no attribute 'NotThere'"):
        module.NotThere  # noqa: B018 - what it does when it is asked is what is tested


@pytest.mark.parametrize("face", ["streams", "streams.saga", "streams.testing"])
def test_handlers_load_no_kafka_client_and_no_store(face: str) -> None:
    program = f"import sys, {face}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    loaded = subprocess.check_output([sys.executable, "-c", program], text=True).split()
    assert {"streams", "msgspec"} <= set(loaded)
    assert HEAVY & set(loaded) == set()


def test_no_module_of_the_library_imports_from_the_face() -> None:
    """What it needs is in a room, and the rooms have one direction."""
    graph = grimp.build_graph("streams", cache_dir=None)
    assert "streams.errors" in graph.find_modules_directly_imported_by("streams")
    assert graph.find_modules_that_directly_import("streams") == set()


def test_the_library_has_few_modules_outside_its_rooms() -> None:
    assert len(list(ROOT.glob("*.py"))) <= 9


def functions(thing: Any) -> Iterator[tuple[str, FunctionType, str]]:
    """A function, or the public methods and properties of a class, each with what it says."""
    if isinstance(thing, FunctionType):
        yield "", thing, thing.__doc__ or ""
    for name, found in vars(thing).items() if inspect.isclass(thing) else ():
        function = getattr(found, "fget", None) or getattr(found, "__func__", found)
        if isinstance(function, FunctionType) and not name.startswith("_"):
            yield f".{name}", function, found.__doc__ or ""


def fields(thing: Any) -> list[str]:
    if dataclasses.is_dataclass(thing):
        return [each.name for each in dataclasses.fields(thing) if each.init and each.name[0] != "_"]
    return [*getattr(thing, "__struct_fields__", ())]


def options_and_errors(function: FunctionType) -> set[str]:
    """What is given by keyword alone, and the library's errors that its own lines raise."""
    parameters = inspect.signature(function).parameters.values()
    options = {each.name for each in parameters if each.kind is each.KEYWORD_ONLY}
    names = re.findall(r"raise (\w+)", inspect.getsource(function))
    return options | {name for name in names if issubclass(getattr(errors, name, object), SteadfaustError)}


def unsaid(names: Iterable[str], text: str) -> list[str]:
    return [each for each in names if not re.search(rf"\b{each}\b", text)]


def test_each_name_says_what_it_means_takes_and_raises() -> None:
    lacking = []
    for name, thing in FACE.items():
        bases = thing.__mro__ if inspect.isclass(thing) else [thing]
        text = "\n".join(each.__doc__ or "" for each in bases if each.__module__.startswith("streams"))
        lacking += [f"{name}: {each}" for each in unsaid(fields(thing), text)]
        for method, function, says in functions(thing):
            if not says.startswith("As `"):  # a fake's method, as that of the port
                missing = unsaid(options_and_errors(function), says)
                lacking += [f"{name}{method}: {each}" for each in missing or [""][bool(says) :]]
    assert lacking == []
