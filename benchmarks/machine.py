"""The machine and the versions that figures belong to."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

import psutil

from streams.host.compiling import CannotCompile, compile_into
from streams.local.artifacts import KAFKA, java

_ADDITIONS = 10_000_000
_PACKAGES = ("faust-streaming", "aiokafka", "rocksdict", "fastavro", "msgspec", "uvloop")


def describe_machine() -> dict[str, str | int | float]:
    """What a reader must know to place the figures, ready for the report."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {_kernel()}",
        "python": platform.python_version(),
        "java": _java_version(),
        "kafka": KAFKA.name.removeprefix("kafka-"),
        **{name: version(name) for name in _PACKAGES},
    }


def seconds_of_additions() -> float:
    """What ten million additions take one core of this machine now, in seconds of its time: the same machine
    may have twice the speed on another day.
    """
    took = []
    for _ in range(3):
        began = time.process_time()
        total = 0
        for number in range(_ADDITIONS):
            total += number
        took.append(time.process_time() - began)
    return round(min(took), 2)


def in_words(machine: dict[str, str | int | float]) -> str:
    """The same as one sentence."""
    versions = ", ".join(f"{name} {machine[name]}" for name in _PACKAGES)
    return (
        f"{machine['cores']} cores ({machine['processor']}), {machine['memory_gb']} GB, {machine['system']}; "
        f"Python {machine['python']}, Java {machine['java']}, Kafka {machine['kafka']}, {versions};"
        f" the hot path {machine.get('hot_path', 'not compiled')}."
        f" Ten million additions took Python {machine['additions_s']} s before it."
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _java_version() -> str:
    version = subprocess.run([str(java()), "-version"], capture_output=True, text=True, check=True)
    return version.stderr.split('"')[1]


def _kernel() -> str:
    """Its version without the builder's additions."""
    return ".".join(platform.release().split(".")[:2])


#: In the environment of programs that this process starts.
_MARK = "BENCH_COMPILED"
#: What has a program run from the sources all the same.
FROM_SOURCES: Mapping[str, str] = {"PYTHONPATH": "", "PYTHONSAFEPATH": ""}


def use_compiled(var: Path, say: Callable[[str], None]) -> None:
    """Have every program that is started from here on run the compiled library, if it can be compiled."""
    say("compiling the hot path")
    try:
        os.environ.update(compile_into(var / "compiled"))
    except CannotCompile as error:
        say(f"not compiled, so all is measured from the sources: {error}")
    else:
        os.environ[_MARK] = "1"


def is_compiled() -> bool:
    """Whether it could be."""
    return _MARK in os.environ
