"""The settings of a worker, read from `STEADFAUST_*` environment variables when it starts.

Nothing else in the library reads the environment. Faust gets its configuration from here; its own environment
variables are ignored.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self
from urllib.parse import quote, urlsplit

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_settings import SettingsConfigDict

from streams.brokers import Brokers, BrokerSettings, PeerSettings, secret
from streams.engine.staging.inbox import check_retention
from streams.environment import PREFIX, check_names, check_value, what_is_wrong, without_empty
from streams.errors import SettingsError
from streams.model.application import LaneOptions
from streams.model.claim import DEFAULT_THRESHOLD
from streams.model.layout import Layout
from streams.model.policy.retry import RetryPolicy, longest_path
from streams.tracing.settings import TraceSettings
from streams.units import DAY, MIB

#: Access keys of the local stack's S3. They are not secret.
LOCAL_KEYS = ("local", "local-secret")
LOCAL_BUCKET = "event-payloads"
#: Defaults for lanes.
_LANE = LaneOptions()


class Bucket(NamedTuple):
    """Where payloads are stored. An empty endpoint is Amazon S3, empty keys are those that boto3 finds."""

    name: str
    endpoint: str
    access_key: str
    secret_key: str
    region: str


class Settings(PeerSettings, BrokerSettings, TraceSettings):
    """Settings of a worker. Times are in seconds unless the name says otherwise, sizes in bytes."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore", allow_inf_nan=False)

    app_id: str = Field(
        default="steadfaust",
        description="application id, from which group, changelogs and transactional ids are named",
    )
    agents_id: str = Field(
        default="", description="application id of plain Faust agents (empty: app_id with -agents)"
    )
    var: Path = Field(default=Path("var"), description="folder of the local stack, slots and local stores")
    partitions: int = Field(
        default=4,
        ge=1,
        description="partitions of every topic; only `steadfaust reshard` can change it later",
    )
    lanes: int = Field(
        default=2, ge=1, description="lane count: the maximum number of workers that share the load"
    )
    standbys: int = Field(default=1, ge=0, description="standby copies of each lane on other workers")
    replication: int = Field(
        default=0,
        ge=0,
        description="replication factor of new topics (0: three, or fewer with fewer brokers)",
    )
    web_port: int = Field(
        default=6066, ge=0, description="port of the worker in slot 0; slot n adds n (0 picks free ports)"
    )
    metrics: bool = Field(
        default=True, description="collect metrics and serve them for Prometheus at /metrics"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="minimum log level; debug includes every transition of a saga"
    )
    session_timeout: float = Field(
        default=10.0, gt=0, description="silence after which a worker's lanes move to other workers"
    )
    heartbeat: float = Field(
        default=2.0, gt=0, description="time between heartbeats; at most a third of session_timeout"
    )
    producer: Literal["newest", "v1"] = Field(
        default="newest",
        description="transaction protocol: the newest of the cluster, or v1, which every cluster supports",
    )
    max_batch: int = Field(default=_LANE.max_batch, ge=1, description="maximum messages in one transaction")
    linger: float = Field(
        default=_LANE.linger,
        ge=0,
        description="minimum wait of a commit for more messages: fewer transactions, more delay",
    )
    max_in_flight: int = Field(
        default=_LANE.max_in_flight,
        ge=1,
        description="maximum keys of a lane with an outbound call in progress",
    )
    max_ahead: int = Field(
        default=_LANE.max_ahead,
        ge=0,
        description="maximum offsets by which other keys are committed ahead of a slow message"
        " (0: all messages of its partition number wait)",
    )
    loopback: bool = Field(
        default=_LANE.loopback,
        description="handle a message that a lane sends to itself in the transaction that writes it; set to"
        " false while workers of a version without this run",
    )
    max_message_bytes: int = Field(
        default=_LANE.max_message_bytes, ge=100_000, description="maximum size of a record or a row"
    )
    retry_delays: str = Field(
        default="10,60,300",
        description="delays in seconds before the delayed retries of a message; any number of them",
    )
    outage_patience: float = Field(
        default=_LANE.outage_patience,
        ge=0,
        allow_inf_nan=False,
        description="during a full outage, how long delayed retries do not count against the limit",
    )
    schema_patience: float = Field(
        default=_LANE.schema_patience,
        ge=0,
        allow_inf_nan=False,
        description="how long a message waits for its schema to be announced before it is dead-lettered",
    )
    max_waiting_bytes: int = Field(
        default=_LANE.max_waiting_bytes,
        ge=MIB,
        description="maximum bytes of one key that wait for a handler; further messages are dead-lettered",
    )
    hold_back: float = Field(
        default=_LANE.hold_back,
        ge=0,
        allow_inf_nan=False,
        description="how long a partition is not read while a key's queue is half full (0: always read)",
    )
    max_replays: int = Field(
        default=_LANE.max_replays,
        ge=1,
        description="number of failed replays after which a dead letter is parked",
    )
    edit_dead_letters: bool = Field(
        default=False, description="allow operators to edit a dead letter before a replay"
    )
    saga_limit: float = Field(
        default=_LANE.saga_limit, gt=0, description="age at which an unfinished saga is shown as stalled"
    )
    inbox_retention_days: float = Field(
        default=_LANE.inbox_retention / DAY, gt=0, description="how long handled ids are kept, at least"
    )
    dead_letter_retention_days: float = Field(
        default=_LANE.dead_letter_retention / DAY, gt=0, description="how long dead letters are kept"
    )
    message_retention_days: float = Field(
        default=_LANE.message_retention / DAY,
        gt=0,
        description="longest retention of message topics in the cluster; payloads are kept as long",
    )
    postgres_url: str = Field(
        default="",
        description="postgresql://user@host:port/database (empty: the local stack's)",
        repr=False,
    )
    postgres_password_file: str = Field(
        default="", description="file with the password of the user in postgres_url"
    )
    outbox: Literal["poll", "cdc"] = Field(
        default="poll",
        description="what publishes the outbox: poll (polling relays) or cdc (change data capture)",
    )
    connect_url: str = Field(default="", description="URL of Kafka Connect (empty: the local stack's)")
    outbox_after: Literal["mark", "delete", "archive"] = Field(
        default="mark", description="what happens to a published row: mark, delete or archive"
    )
    outbox_poll: float = Field(default=0.2, gt=0, description="longest time between two polls of the outbox")
    outbox_retention_days: float = Field(
        default=7, gt=0, description="how long published rows are kept, whether marked or archived"
    )
    cleanup_every: float = Field(
        default=3600,
        ge=0,
        description="time between cleanups of outbox and inboxes (0: only commands clean up)",
    )
    outbox_slot_warn_bytes: int = Field(
        default=512 * MIB,
        ge=1,
        description="size of the log kept for change data capture at which health warns",
    )
    s3_bucket: str = Field(
        default="", description="bucket for large payloads (empty: the local stack's, if it runs)"
    )
    s3_endpoint: str = Field(
        default="",
        description="URL of the object store (empty: the local stack's if it runs, otherwise Amazon S3)",
    )
    s3_region: str = Field(default="", description="region of the bucket (empty: as boto3 finds it)")
    s3_access_key: str = Field(default="", description="access key (empty: as boto3 finds it)", repr=False)
    s3_secret_key: str = Field(default="", description="secret of the access key", repr=False)
    s3_secret_key_file: str = Field(
        default="", description="file with the secret key, instead of s3_secret_key"
    )
    claim_threshold: int = Field(
        default=DEFAULT_THRESHOLD, ge=1, description="largest payload that travels in its record"
    )
    claim_bytes_in_flight: int = Field(
        default=64 * MIB,
        ge=1,
        description="maximum bytes of payloads in transfer, and again in use by handlers",
    )
    claim_cache_bytes: int = Field(
        default=32 * MIB, ge=0, description="maximum bytes of payloads cached for the next handler"
    )

    @field_validator("*")
    @classmethod
    def _usable(cls, value: Any, info: ValidationInfo) -> Any:
        check_value(info.field_name or "", value)
        return without_empty(value) if info.field_name == "bootstrap" else value

    @classmethod
    def read(cls) -> Self:
        """Read the settings from the environment. Raises SettingsError, which names each wrong one."""
        try:
            return cls()
        except ValidationError as error:
            shown = [name for name, field in cls.model_fields.items() if field.repr]
            raise SettingsError(what_is_wrong(error, shown)) from None

    @classmethod
    def read_or_exit(cls) -> Self:
        """Read and check the settings. A mistake ends the process with a one-line message."""
        try:
            check_names(os.environ, cls.model_fields)
            return cls.read_checked()
        except (SettingsError, ValueError) as error:
            raise SystemExit(f"error: {error}") from error

    @classmethod
    def read_checked(cls) -> Self:
        """Read the settings, and check that they fit together. Names that are not settings are ignored.
        Raises SettingsError.
        """
        settings = cls.read()
        settings.layout()
        settings.lane_options()
        settings.agents_group()
        settings.security()
        settings.peers()
        settings.check_traces()
        return settings

    def layout(self) -> Layout:
        """Partitions and lane count. Raises SettingsError if bootstrap is set, but app_id is not."""
        if self.bootstrap and "app_id" not in self.model_fields_set:
            raise SettingsError(
                "STEADFAUST_BOOTSTRAP is set, but STEADFAUST_APP_ID is not: set it in every process of the"
                " application, because two applications with the same id would share lanes and topics. An"
                f" application that ran without an id so far is called {self.app_id!r}"
            )
        return Layout(self.app_id, self.partitions, self.lanes)

    def agents_group(self) -> str:
        """The consumer group of plain agents. Raises SettingsError if it is also the group of the lanes."""
        group = self.agents_id or f"{self.app_id}-agents"
        if group == self.app_id:
            raise SettingsError(
                f"agents_id and app_id are both {group!r}: lanes and plain agents cannot share a group;"
                " give the lanes another app_id"
            )
        return group

    def duplicates_within(self) -> float:
        """Seconds after a message during which a replay may repeat it: the retention of dead letters plus the
        longest retry path. Raises SettingsError, as `lane_options` does.
        """
        options = self.lane_options()
        return options.dead_letter_retention + longest_path(options.retry)

    def lane_options(self) -> LaneOptions:
        """The options of lanes. Raises SettingsError if values contradict each other."""
        inbox, dead_letters = self.inbox_retention_days * DAY, self.dead_letter_retention_days * DAY
        delays = self._delays()
        try:
            retry = RetryPolicy(delays=delays)
        except SettingsError as error:
            raise SettingsError(f"STEADFAUST_RETRY_DELAYS is {self.retry_delays!r}: {error}") from error
        check_retention(inbox=inbox, dead_letters=dead_letters, longest_retry=longest_path(retry))
        if self.heartbeat * 3 > self.session_timeout:
            raise SettingsError(
                f"heartbeat ({self.heartbeat:g} s) is more than a third of session_timeout"
                f" ({self.session_timeout:g} s), so one lost heartbeat could cost the worker its lanes; lower"
                " STEADFAUST_HEARTBEAT"
            )
        return LaneOptions(
            max_batch=self.max_batch,
            max_backlog=self.max_batch * 3,
            max_worker_backlog=self.max_batch * 9 // 2,
            linger=self.linger,
            max_ahead=self.max_ahead,
            loopback=self.loopback,
            max_in_flight=self.max_in_flight,
            max_message_bytes=self.max_message_bytes,
            inbox_retention=inbox,
            dead_letter_retention=dead_letters,
            message_retention=self.message_retention_days * DAY,
            fenced_pause=self.heartbeat * 1.5,
            retry=retry,
            outage_patience=self.outage_patience,
            schema_patience=self.schema_patience,
            max_waiting_bytes=self.max_waiting_bytes,
            hold_back=self.hold_back,
            max_replays=self.max_replays,
            edit_dead_letters=self.edit_dead_letters,
            saga_limit=self.saga_limit,
        )

    def _delays(self) -> tuple[float, ...]:
        try:
            return tuple(float(delay) for delay in self.retry_delays.split(",") if delay.strip())
        except ValueError:
            raise SettingsError(
                f"STEADFAUST_RETRY_DELAYS is {self.retry_delays!r}: give seconds, such as 10,60,300"
            ) from None

    def bucket(self) -> Bucket | None:
        """The bucket for large payloads. None if neither the settings nor a running local stack have one.
        Unless `s3_endpoint` is set, endpoint and keys are those of the local stack, if it runs. Raises
        SettingsError for an endpoint without a bucket.
        """
        if self.s3_endpoint and not self.s3_bucket:
            raise SettingsError(
                f"STEADFAUST_S3_ENDPOINT is {self.s3_endpoint!r}, but there is no bucket: set"
                " STEADFAUST_S3_BUCKET"
            )
        local = "" if self.s3_endpoint else self._local_s3()
        name = self.s3_bucket or (LOCAL_BUCKET if local else "")
        if not name:
            return None
        key = secret("S3_SECRET_KEY", SecretStr(self.s3_secret_key), self.s3_secret_key_file)
        keys = LOCAL_KEYS if local else (self.s3_access_key, key)
        return Bucket(name, local or self.s3_endpoint, *keys, self.s3_region)

    def _local_s3(self) -> str:
        """The endpoint of the local stack's S3; empty when none runs."""
        try:
            processes = self.local_stack().get("processes", {})
        except SettingsError:
            return ""
        found = processes.get("s3") if isinstance(processes, dict) else None
        return str(found["url"]) if found else ""

    def brokers(self) -> Brokers:
        """The brokers. Raises SettingsError if neither the settings nor a running local stack have any, or if
        the settings contradict each other.
        """
        return Brokers(self.bootstrap or str(self.local_stack()["bootstrap"]), self.security())

    def postgres(self) -> str:
        """The URL of PostgreSQL. Raises SettingsError if neither the settings nor a local stack have one, or
        if there is a password file, but no user.
        """
        if self.postgres_password_file:
            return self._with_password()
        return self.postgres_url or self._local(
            "postgres",
            "PostgreSQL: set STEADFAUST_POSTGRES_URL, or name `databases` in [tool.steadfaust.local] and"
            " restart it",
        )

    def _with_password(self) -> str:
        url = urlsplit(self.postgres_url)
        user, _, hosts = url.netloc.rpartition("@")
        if not user or ":" in user:
            raise SettingsError(
                "STEADFAUST_POSTGRES_PASSWORD_FILE is set: give STEADFAUST_POSTGRES_URL with a user and"
                " without a password, as in postgresql://user@host:port/database"
            )
        password = secret("POSTGRES_PASSWORD", SecretStr(""), self.postgres_password_file)
        return url._replace(netloc=f"{user}:{quote(password, safe='')}@{hosts}").geturl()

    def connect(self) -> str:
        """The URL of Kafka Connect. Raises SettingsError if neither settings nor a local stack have it."""
        return self.connect_url or self._local(
            "connect",
            "Kafka Connect: set STEADFAUST_CONNECT_URL, or start it with `steadfaust up --cdc`",
        )

    def _local(self, name: str, advice: str) -> str:
        """The URL of a process of the local stack. Raises SettingsError with `advice` if it does not run."""
        processes = self.local_stack().get("processes", {})
        found = processes.get(name) if isinstance(processes, dict) else None
        if not found:
            raise SettingsError(f"the local stack under {self.var} runs no {advice}")
        return str(found["url"])

    def local_stack(self) -> dict[str, object]:
        """The state file of the running local stack. Raises SettingsError if there is none."""
        path = self.var / "stack.json"
        try:
            found: dict[str, object] = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise SettingsError(
                f"no local stack at {path} ({error}): start one with `steadfaust up`,"
                " or set STEADFAUST_BOOTSTRAP"
            ) from error
        return found
