"""PgBouncer before a PostgreSQL of the tests."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from streams.local import loopback, postgres
from tests import effort
from tests.waiting import BOUND, eventually

#: What docs/operating.md has PgBouncer ignore, where it is to take the settings of sessions.
IGNORED = (
    "tcp_keepalives_idle, tcp_keepalives_interval, tcp_keepalives_count,"
    " client_connection_check_interval, idle_in_transaction_session_timeout"
)


def require_pgbouncer() -> None:
    """Skip where it is missing; fail in `make verify`."""
    if shutil.which("pgbouncer") is None:
        missing = "PgBouncer is not installed: apt-get install pgbouncer"
        if effort.is_all():
            pytest.fail(missing)
        pytest.skip(missing)


@contextmanager
def pgbouncer(folder: Path, url: str, mode: str = "transaction", ignored: str = "") -> Iterator[str]:
    """The URL of a database by PgBouncer, with five sessions of the server."""
    at = urlsplit(url)
    reserved = loopback.reserve()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "users").write_text(f'"{postgres.USER}" ""\n')
    (folder / "pgbouncer.ini").write_text(
        f"[databases]\n* = host={at.hostname} port={at.port}\n[pgbouncer]\nlisten_addr = {loopback.HOST}\n"
        f"listen_port = {reserved.port}\nunix_socket_dir =\nauth_type = trust\nauth_file = {folder}/users\n"
        f"pool_mode = {mode}\ndefault_pool_size = 5\nmax_client_conn = 200\nserver_tls_sslmode = disable\n"
        f"so_reuseport = 1\nignore_startup_parameters = {ignored}\n"
    )
    command = ["pgbouncer", str(folder / "pgbouncer.ini")]
    if os.geteuid() == 0:  # it refuses root
        command = [*postgres._AS_NOBODY, *command]
    with (folder / "pgbouncer.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/")
    try:
        eventually(lambda: _answers(reserved.port, at.path[1:]), "PgBouncer answers")
        yield f"postgresql://{postgres.USER}@{loopback.HOST}:{reserved.port}{at.path}"
    finally:
        process.terminate()
        process.wait(BOUND)
        reserved.release()


def _answers(port: int, database: str) -> bool:
    return asyncio.run(loopback.postgres_answers(port, postgres.USER, database))
