"""What users import is named in three places, and costs no more than it must."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import grimp
import pytest

import streams

ROOT = Path(streams.__file__).parent
HEAVY = {"faust", "mode", "aiokafka", "rocksdict", "boto3", "botocore", "aiohttp"}


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
