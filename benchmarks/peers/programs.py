"""What peers' programs need and the project does not: fetched and compiled when they are to run."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.peers.workload import COUNTED, MADE
from benchmarks.sections import NotMeasured
from streams.local.artifacts import JavaPart, cache_dir, class_path, java

HERE = Path(__file__).parent
QUIX_REQUIREMENTS = HERE / "quix-requirements.txt"
STREAMS_SOURCE = HERE / "KafkaStreamsPeer.java"
INSTALL_BOUND = 600.0
"""Seconds after which an installation is given up."""

STREAMS = JavaPart(
    name="kafka-streams-4.1.0",
    title="Kafka Streams 4.1.0 with Avro",
    coordinates=(
        "org.apache.kafka:kafka-streams:4.1.0",
        "org.apache.avro:avro:1.12.0",
        "org.slf4j:slf4j-simple:1.7.36",
    ),
    size="16 jars, about 93 MB",
    digest="e3701c6f37b31d40bafea6a44076f65e2f819d06ba96abadcab33a26e98e2780",
)
COMPILER = JavaPart(
    name="ecj-3.42.0",
    title="a Java compiler",  # the runtime that the project installs has none
    coordinates=("org.eclipse.jdt:ecj:3.42.0",),
    size="1 jar, about 3 MB",
    digest="2d7eadd9d9880dae0f75f2c808ad81ee8315f44697471f0a0cfd45e2a7d43002",
)


def quix_python(say: Callable[[str], None]) -> Path:
    """A Python that has Quix Streams. Raises NotMeasured."""
    return peer_python("quixstreams", "Quix Streams", QUIX_REQUIREMENTS, say)


def peer_python(name: str, title: str, requirements: Path, say: Callable[[str], None]) -> Path:
    """A Python that has a peer, in an environment of its own: its pins need not agree with ours.

    Raises:
        NotMeasured: it could not be installed.
    """
    pins = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:12]
    home = cache_dir() / f"{name}-{pins}"
    python = home / "bin" / "python"
    installed = home / "installed"  # comes last: an installation that was cut short is made again
    if not installed.exists():
        say(f"installing {title} into an environment of its own ...")
        shutil.rmtree(home, ignore_errors=True)
        venv.create(home, with_pip=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run([*pip, "--require-hashes", "-r", str(requirements)], f"install {title}")
        installed.touch()
    return python


def streams_command(out: Path, say: Callable[[str], None]) -> list[str]:
    """Compile the Kafka Streams program into `out`; returns the command that runs it.

    Raises:
        JavaPartMissing: its libraries or the compiler could not be fetched.
        NotMeasured: it does not compile.
    """
    libraries = class_path(STREAMS, say)
    compiler = class_path(COMPILER, say)
    compiled = ["-21", "-nowarn", "-cp", libraries, "-d", str(out), str(STREAMS_SOURCE)]
    run([str(java()), "-jar", compiler, *compiled], "compile the Kafka Streams program")
    flags = ["-Xms512m", "-Xmx2g", "--enable-native-access=ALL-UNNAMED"]
    log = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    classes = os.pathsep.join([str(out), libraries])
    schemas = [json.dumps(MADE), json.dumps(COUNTED)]
    return [str(java()), *flags, log, "-cp", classes, STREAMS_SOURCE.stem, *schemas]


def run(
    command: Sequence[str],
    what: str,
    *,
    within: float = INSTALL_BOUND,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run what installs something; `environment` is added to ours.

    Raises:
        NotMeasured: it failed, or took longer than `within` seconds.
    """
    given = {**os.environ, **(environment or {})}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=within, check=False, env=given)
    except subprocess.TimeoutExpired:
        raise NotMeasured(f"cannot {what} within {within:.0f} s: is the network up?") from None
    if done.returncode != 0:
        last = (done.stderr or done.stdout).strip().splitlines()[-3:]
        raise NotMeasured(f"cannot {what}: {' / '.join(last) or 'no output'}")
