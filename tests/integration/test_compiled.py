"""The compiled hot path does what the sources do: the lane's own tests run on it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from streams.host import compiling
from streams.host.compiling import HOT, CannotCompile, compile_into

PROJECT = Path(__file__).parents[2]
#: Deliveries, duplicates, dead letters, retries, timers, claim checks, operators, sagas; and what holds under
#: crashes and fences.
TESTS = (
    "claims", "claims_waiting", "crashes", "delivery", "dead_letters", "desk", "desk_claims", "drains",
    "giving_up", "loopback", "pauses", "pauses_attempts", "references", "retries", "rows", "sagas", "timers",
)  # fmt: skip
#: What reads and writes bytes: its numbers have 64 bits when it is compiled.
BYTES = (
    "runtime/test_partition_records", "streams/test_avro_bytes", "streams/test_avro_ranges",
    "streams/test_envelope", "streams/test_layout", "streams/test_record_batches",
    "streams/test_record_writing",
)  # fmt: skip

pytestmark = pytest.mark.timeout(1800)
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


@pytest.fixture(scope="module")
def compiled(pytestconfig: pytest.Config) -> dict[str, str]:
    """Beside what pytest keeps: compiled again when the sources are others, or Python is."""
    assert pytestconfig.cache is not None
    return {**os.environ, **compile_into(pytestconfig.cache.mkdir("compiled"))}


def python(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)


def where_modules_are(environment: dict[str, str]) -> list[str]:
    code = "import agents.worker, streams.engine.life.lane; " + "".join(
        f"import streams.{module}; print(streams.{module}.__file__);" for module in HOT
    )
    settings = {"STEADFAUST_APP_ID": "x", "STEADFAUST_BOOTSTRAP": "x", "STEADFAUST_GATEWAY_URL": "http://x"}
    ran = python({**environment, **settings}, "-c", code)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.split()


@needs_compiler
def test_a_module_is_compiled_and_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a package of one module: mypyc looks at all of ours for half a minute."""
    package = tmp_path / "parcels"
    package.mkdir()
    for name, code in (
        ("__init__", ""),
        ("weight", "def double(kilos: int) -> int:\n    return 2 * kilos\n"),
    ):
        (package / f"{name}.py").write_text(code)
    monkeypatch.setattr(compiling, "PACKAGE", package)
    monkeypatch.setattr(compiling, "HOT", ("weight",))
    environment = {**os.environ, **compile_into(tmp_path / "made")}
    ran = python(environment, "-c", "import parcels.weight as w; print(w.double(2), w.__file__)")
    doubled, file = ran.stdout.split()
    assert doubled == "4"
    assert file.startswith(f"{tmp_path}/made/")
    assert file.endswith(".so")


@needs_compiler
@pytest.mark.verify("a minute of compiling: another test compiles a small package, lanes run from sources")
def test_a_worker_runs_what_was_compiled(compiled: dict[str, str]) -> None:
    assert [path for path in where_modules_are(compiled) if not path.endswith(".so")] == []


@needs_compiler
@pytest.mark.verify("it compiles once more: the copy, compiled alike, covers it")
def test_what_a_wheel_has_installed_is_compiled_without_being_told(tmp_path: Path) -> None:
    left = shutil.ignore_patterns(".*", "var", "build", "dist", "__pycache__", "*.egg-info")
    shutil.copytree(PROJECT, tmp_path / "project", ignore=left)
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path))
    command = [sys.executable, "-m", "pip", "wheel", *options, str(tmp_path / "project")]
    environment = {**os.environ, "STEADFAUST_COMPILED": "1"}
    subprocess.run(command, env=environment, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("steadfaust-*.whl")
    installed = tmp_path / "installed"
    shutil.unpack_archive(wheel, installed, "zip")
    assert list(installed.glob("streams/console/templates/*.html"))
    ran = where_modules_are({**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": str(installed)})
    assert [path for path in ran if not (path.startswith(str(installed)) and path.endswith(".so"))] == []


@needs_compiler
@pytest.mark.verify("a minute of compiling: the same tests run on the sources, a small package is compiled")
def test_lanes_work_alike_when_compiled(compiled: dict[str, str]) -> None:
    files = [f"tests/lane/test_lane_{name}.py" for name in TESTS]
    files += [f"tests/unit/{name}.py" for name in BYTES]
    profile = f"--hypothesis-profile={settings.get_current_profile_name()}"
    # `append`: pytest would put the sources before the copy. The copy has no tests, so these are found.
    options = ("-q", "-p", "no:cacheprovider", "-m", "not stack", "--import-mode=append", profile)
    told = {**compiled, "STEADFAUST_TESTS_ARE_COMPILED": "1"}
    ran = python(told, "-m", "pytest", *options, *files)
    assert ran.returncode == 0, ran.stdout[-3000:]
    assert " passed" in ran.stdout


@needs_compiler
@pytest.mark.verify("test_whatever_happens_every_invariant_holds has the same runs on the sources")
def test_simulated_runs_are_the_same_when_compiled(compiled: dict[str, str]) -> None:
    runs = ("-m", "tests.simulation", "--seeds", "0:60", "--digests")
    compiled_ones, others = (
        python({**environment, "PYTHONHASHSEED": "0"}, *runs) for environment in (compiled, os.environ)
    )
    assert compiled_ones.returncode == others.returncode == 0, compiled_ones.stdout + others.stdout
    assert compiled_ones.stdout.splitlines()[:-1] == others.stdout.splitlines()[:-1]


@needs_compiler
def test_only_changed_sources_are_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Path] = []
    monkeypatch.setattr(compiling, "_compile", lambda target: (calls.append(target), target.mkdir()))
    target = tmp_path / "made"
    environment = compile_into(target)
    assert compile_into(target) == environment
    assert len(calls) == 1
    (target / "compiled-from").write_text("other sources")
    monkeypatch.setattr(compiling, "_compile", calls.append)
    compile_into(target)
    assert len(calls) == 2


def test_without_a_compiler_it_says_what_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/nowhere/cc -pthread")
    with pytest.raises(CannotCompile, match=r"a C compiler are needed.*'/nowhere/cc' was not found"):
        compile_into(tmp_path / "made")


def test_the_command_prints_the_environment(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    code = (
        "import streams.host.compiling as c; c._compile = lambda target: None;"
        "from streams.cli.main import main; main()"
    )
    ran = python(dict(os.environ), "-c", code, "compile", "--into", str(tmp_path / "made"), "--json")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {
        "PYTHONSAFEPATH": "1",
        "PYTHONPATH": f"{tmp_path / 'made'}{os.pathsep}{PROJECT}",
    }
