"""Kafka Connect with Debezium on this machine: one worker, whose connector reads the database's log."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from streams.local import artifacts, loopback
from streams.local.busy_timeout import Say
from streams.local.companions import RunningCompanion
from streams.postgres.cdc.connector import worker_properties

NAME = "connect"
"""The companion's name: `stack.url("connect")`."""

HEAP = "256m"


def part(java: Path, home: Path, port: int, *, bootstrap: str, database: str, say: Say) -> RunningCompanion:
    """A worker that finds Kafka at `bootstrap` and reads the database of this URL.

    Raises:
        JavaPartMissing: its jars could not be fetched.
    """
    jars = [artifacts.class_path(each, say) for each in (artifacts.CONNECT, artifacts.LOG4J)]
    home.mkdir(parents=True, exist_ok=True)
    properties, logging = home / "worker.properties", home / "log4j2.properties"
    properties.write_text(worker_properties())
    logging.write_text(_LOGGING)
    flags = [f"-Xmx{HEAP}", "-XX:+UseSerialGC", "--enable-native-access=ALL-UNNAMED"]
    flags.append(f"-Dlog4j2.configurationFile={logging}")
    main = "org.apache.kafka.connect.cli.ConnectDistributed"
    where = f"{loopback.HOST}:{port}"
    at = urlsplit(database)
    return RunningCompanion(
        command=[str(java), *flags, "-cp", ":".join(jars), main, str(properties)],
        url=f"http://{where}",
        where=where,
        answers=partial(loopback.http_answers, port, "/health"),
        revives=True,
        env={
            "CDC_BOOTSTRAP": bootstrap,
            "CDC_LISTEN": where,
            "CDC_HOST": loopback.HOST,
            "CDC_DATABASE_HOST": str(at.hostname),
            "CDC_DATABASE_PORT": str(at.port),
            "CDC_DATABASE_NAME": at.path.removeprefix("/"),
            "CDC_DATABASE_USER": str(at.username),
            "CDC_DATABASE_PASSWORD": "",
        },
    )


_LOGGING = """\
rootLogger.level=INFO
rootLogger.appenderRef.out.ref=OUT
appender.out.type=Console
appender.out.name=OUT
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d{yyyy-MM-dd'T'HH:mm:ss.SSSXXX} %p %c{1} %m%n
# These print every setting at each start, hundreds of lines.
logger.config.name=org.apache.kafka.common.config
logger.config.level=WARN
logger.producer.name=org.apache.kafka.clients
logger.producer.level=WARN
logger.connect.name=org.apache.kafka.connect.runtime
logger.connect.level=INFO
"""
