import importlib.util
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from streams.local.artifacts import JavaPart, class_path, digest_of, java
from streams.local.errors import JavaPartMissing
from tests.waiting import BOUND

pytestmark = pytest.mark.stack  # processes that fetch

RESOLVER = """
import pathlib, sys, time
work = pathlib.Path(sys.argv[sys.argv.index("--cache-dir") + 1])
time.sleep(0.2)
for folder, name in (("jars", "core.jar"), ("modules", "client.jar")):
    (work / "envs" / folder).mkdir(parents=True)
    (work / "envs" / folder / name).write_text(sys.argv[-1])
"""
FAILING_RESOLVER = 'raise SystemExit("the index is out of reach")'


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STEADFAUST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "resolver"))
    resolve_with(tmp_path, RESOLVER)
    return tmp_path / "cache"


def silent(_: str) -> None:
    """Say nothing."""


def resolve_with(tmp_path: Path, program: str) -> None:
    """Put a resolver of our own where `python -m jgo` finds it first."""
    module = tmp_path / "resolver" / "jgo" / "__main__.py"
    module.parent.mkdir(parents=True, exist_ok=True)
    module.with_name("__init__.py").touch()
    module.write_text(program)


@pytest.fixture
def wanted(tmp_path: Path, cache: Path) -> JavaPart:
    expected = tmp_path / "expected"
    expected.mkdir(exist_ok=True)
    for name in ("core.jar", "client.jar"):
        (expected / name).write_text("a:core:1+a:client:1")
    return JavaPart("core-1", "Core 1", ("a:core:1", "a:client:1"), "2 jars", digest_of(expected))


def test_a_part_is_fetched_once_for_the_class_path(wanted: JavaPart, cache: Path) -> None:
    said: list[str] = []
    first, second = (class_path(wanted, said.append) for _ in range(2))
    assert first == second == f"{cache}/core-1/client.jar:{cache}/core-1/core.jar"
    assert said == ["fetching Core 1 (2 jars) ..."]


def test_two_who_need_a_part_at_once_fetch_it_once(wanted: JavaPart, cache: Path) -> None:
    said: list[str] = []
    threads = [threading.Thread(target=class_path, args=(wanted, said.append)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND)
    assert len(said) == 1
    assert (cache / "core-1").is_dir()


def test_altered_jars_are_refused_and_leave_nothing(wanted: JavaPart, cache: Path) -> None:
    with pytest.raises(JavaPartMissing, match="Core 1 was fetched but is not what was pinned"):
        class_path(replace(wanted, digest="0" * 64), silent)
    assert not [path for path in cache.iterdir() if path.is_dir()]


def test_failed_fetch_says_why_and_can_be_tried_again(tmp_path: Path, wanted: JavaPart, cache: Path) -> None:
    resolve_with(tmp_path, FAILING_RESOLVER)
    why = rf"Core 1: the index is out of reach .* log: {cache}/core-1\.log"
    with pytest.raises(JavaPartMissing, match=why):
        class_path(wanted, silent)
    resolve_with(tmp_path, RESOLVER)
    assert class_path(wanted, silent)


def test_without_the_java_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    why = r"Java runtime .* is not installed: pip install 'steadfaust\[local\]'"
    with pytest.raises(JavaPartMissing, match=why):
        java()


def test_what_a_killed_fetch_left_is_removed(wanted: JavaPart, cache: Path) -> None:
    left = cache / "core-1.fetching-abc" / "m2"
    left.mkdir(parents=True)
    class_path(wanted, silent)
    assert not left.parent.exists()


ONE_JAR = """
class MavenContext:
    def __init__(self, repo_cache): self.home = repo_cache
    def project(self, group, name): self.name = name; return self
    def at_version(self, version): self.version = version; return self
    def artifact(self, classifier): self.classifier = classifier; return self
    def resolve(self):
        path = self.home / "org" / f"{self.name}-{self.version}-{self.classifier}.jar"
        path.parent.mkdir(parents=True)
        path.write_text("store")
"""


def test_a_jar_that_brings_its_dependencies_is_fetched_alone(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "resolver" / "jgo" / "maven.py").write_text(ONE_JAR)
    (tmp_path / "store-1-all.jar").write_text("store")
    store = JavaPart("store-1", "Store 1", ("a:store:1",), "one jar", digest_of(tmp_path), classifier="all")
    assert class_path(store, silent) == f"{cache}/store-1/store-1-all.jar"
