"""Settings: one source, `STEADFAUST_*` environment variables, read by the composition root only.

Faust is handed what it needs; its own environment names are not consulted. One module has
them all.
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

#: Access keys of the local stack's S3: no secret.
LOCAL_KEYS = ("local", "local-secret")
LOCAL_BUCKET = "event-payloads"
#: What lanes do unless a setting says otherwise.
_LANE = LaneOptions()


class Bucket(NamedTuple):
    """Where payloads are kept; an empty endpoint is Amazon's, empty keys are found by the client itself."""

    name: str
    endpoint: str
    access_key: str
    secret_key: str
    region: str


class Settings(PeerSettings, BrokerSettings, TraceSettings):
    """Settings of operators. Times in seconds unless the name says otherwise, sizes in bytes."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore", allow_inf_nan=False)

    app_id: str = Field(
        default="steadfaust", description="names the group, the changelogs and the transactional ids"
    )
    agents_id: str = Field(
        default="", description="names the group and changelogs of plain agents; empty: app_id with -agents"
    )
    var: Path = Field(default=Path("var"), description="where the local stack, slots and local stores live")
    partitions: int = Field(
        default=4, ge=1, description="partitions of every topic; for good, see docs/operating.md"
    )
    lanes: int = Field(
        default=2, ge=1, description="lanes over those partitions: the most workers that share the load"
    )
    standbys: int = Field(default=1, ge=0, description="followers of each lane on other workers")
    replication: int = Field(
        default=0, ge=0, description="replication factor; 0: three, or fewer on fewer brokers"
    )
    web_port: int = Field(
        default=6066, ge=0, description="port of the worker in slot 0, slot n the n-th after it; 0: any"
    )
    metrics: bool = Field(
        default=True, description="whether workers measure themselves, and answer /metrics for Prometheus"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="the least that workers log; debug: each transition of a saga, too"
    )
    session_timeout: float = Field(
        default=10.0, gt=0, description="silence after which a worker's lanes move on"
    )
    heartbeat: float = Field(
        default=2.0, gt=0, description="between heartbeats; under a third of session_timeout"
    )
    producer: Literal["newest", "v1"] = Field(
        default="newest",
        description="protocol of transactions: the newest that the cluster has, or the one that all have",
    )
    max_batch: int = Field(default=_LANE.max_batch, ge=1, description="messages in one transaction at most")
    linger: float = Field(
        default=_LANE.linger,
        ge=0,
        description="how long a commit waits for more messages at least: fewer transactions, later ones",
    )
    max_in_flight: int = Field(
        default=_LANE.max_in_flight,
        ge=1,
        description="keys of a lane with an outbound call under way at most",
    )
    max_ahead: int = Field(
        default=_LANE.max_ahead,
        ge=0,
        description="how far above a position messages of other keys are committed while one takes its time,"
        " in offsets; 0: all of its partition number wait",
    )
    loopback: bool = Field(
        default=_LANE.loopback,
        description="whether a lane handles what it sends to itself in the transaction that writes it; false"
        " while workers of a version before it run",
    )
    max_message_bytes: int = Field(
        default=_LANE.max_message_bytes, ge=100_000, description="largest record, and largest row"
    )
    retry_delays: str = Field(
        default="10,60,300",
        description="seconds that a failed message waits before each later try, as many as there are",
    )
    outage_patience: float = Field(
        default=_LANE.outage_patience,
        ge=0,
        allow_inf_nan=False,
        description="how long a message's late tries are not spent while nothing of its handler succeeds",
    )
    schema_patience: float = Field(
        default=_LANE.schema_patience,
        ge=0,
        allow_inf_nan=False,
        description="how long a message waits for its schema to be announced, before it is a dead letter",
    )
    max_waiting_bytes: int = Field(
        default=_LANE.max_waiting_bytes,
        ge=MIB,
        description="bytes of one key that may wait for a handler on disk; further ones are dead letters",
    )
    hold_back: float = Field(
        default=_LANE.hold_back,
        ge=0,
        allow_inf_nan=False,
        description="for how long a partition is not read where a key's queue is half full; 0: it is read on",
    )
    max_replays: int = Field(
        default=_LANE.max_replays, ge=1, description="failed replays after which a dead letter is parked"
    )
    edit_dead_letters: bool = Field(
        default=False, description="whether operators may edit a dead letter and replay that"
    )
    saga_limit: float = Field(
        default=_LANE.saga_limit, gt=0, description="how long a saga may take until it is shown as stalled"
    )
    inbox_retention_days: float = Field(default=_LANE.inbox_retention / DAY, gt=0)
    dead_letter_retention_days: float = Field(default=_LANE.dead_letter_retention / DAY, gt=0)
    message_retention_days: float = Field(
        default=_LANE.message_retention / DAY,
        gt=0,
        description="how long the cluster keeps messages at most; for their payloads",
    )
    postgres_url: str = Field(
        default="",
        description="postgresql://user@host:port/database; empty: that of the local stack",
        repr=False,
    )
    postgres_password_file: str = Field(
        default="", description="file with the password of the user that postgres_url names"
    )
    outbox: Literal["poll", "cdc"] = Field(
        default="poll",
        description="who relays the outbox: polling relays, or change data capture by Kafka Connect",
    )
    connect_url: str = Field(
        default="", description="http://... of Kafka Connect; empty: that of the local stack"
    )
    outbox_after: Literal["mark", "delete", "archive"] = Field(
        default="mark", description="what to do with a published row: it is marked, deleted, or archived"
    )
    outbox_poll: float = Field(
        default=0.2, gt=0, description="after which a relay looks at the outbox without a notification"
    )
    outbox_retention_days: float = Field(
        default=7, gt=0, description="how long published rows are kept, marked or archived"
    )
    cleanup_every: float = Field(
        default=3600,
        ge=0,
        description="between cleanups of outbox and inboxes by a relay or an API; 0: none, commands do it",
    )
    outbox_slot_warn_bytes: int = Field(
        default=512 * MIB,
        ge=1,
        description="log that PostgreSQL keeps for change data capture before operators are warned",
    )
    s3_bucket: str = Field(
        default="", description="for large payloads; empty: that of the local stack, or none without one"
    )
    s3_endpoint: str = Field(
        default="", description="URL of a store; empty: the running local stack's, or else Amazon's"
    )
    s3_region: str = Field(default="", description="empty: what the machine says")
    s3_access_key: str = Field(default="", description="empty: what the machine says", repr=False)
    s3_secret_key: str = Field(default="", repr=False)
    s3_secret_key_file: str = Field(default="", description="file with the key, in its place")
    claim_threshold: int = Field(
        default=DEFAULT_THRESHOLD, ge=1, description="bytes of a payload that still travels in its record"
    )
    claim_bytes_in_flight: int = Field(
        default=64 * MIB, ge=1, description="bytes of payloads on their way, and as many in handlers' hands"
    )
    claim_cache_bytes: int = Field(default=32 * MIB, ge=0, description="payloads kept for the next handler")

    @field_validator("*")
    @classmethod
    def _usable(cls, value: Any, info: ValidationInfo) -> Any:
        check_value(info.field_name or "", value)
        return without_empty(value) if info.field_name == "bootstrap" else value

    @classmethod
    def read(cls) -> Self:
        """The settings of this process's environment. Raises SettingsError, which names each wrong one."""
        try:
            return cls()
        except ValidationError as error:
            shown = [name for name, field in cls.model_fields.items() if field.repr]
            raise SettingsError(what_is_wrong(error, shown)) from None

    @classmethod
    def read_or_exit(cls) -> Self:
        """The settings of this process's environment, checked; a mistake in them ends it with one line."""
        try:
            check_names(os.environ, cls.model_fields)
            return cls.read_checked()
        except (SettingsError, ValueError) as error:
            raise SystemExit(f"error: {error}") from error

    @classmethod
    def read_checked(cls) -> Self:
        """The settings of this process's environment, which also fit together; names that are no settings are
        passed by. Raises SettingsError.
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
        """The application's cut. Raises SettingsError, also where an application on a cluster has no name."""
        if self.bootstrap and "app_id" not in self.model_fields_set:
            raise SettingsError(
                "STEADFAUST_BOOTSTRAP is set, and STEADFAUST_APP_ID is not: name the application, in every"
                " process of it: workers take its lanes, and a relay announces schemas on its topics. Two"
                " with one name would take each other's. One that has run without a name is called"
                f" {self.app_id!r}"
            )
        return Layout(self.app_id, self.partitions, self.lanes)

    def agents_group(self) -> str:
        """The group of plain agents. Raises SettingsError when it is that of the lanes."""
        group = self.agents_id or f"{self.app_id}-agents"
        if group == self.app_id:
            raise SettingsError(
                f"agents_id is {group!r}, and so is app_id: lanes and plain agents cannot share a group;"
                " give the lanes another app_id"
            )
        return group

    def duplicates_within(self) -> float:
        """For how many seconds after a message its duplicate may come: as long as dead letters are kept, and
        the longest way of retries. Raises SettingsError as `lane_options` does.
        """
        options = self.lane_options()
        return options.dead_letter_retention + longest_path(options.retry)

    def lane_options(self) -> LaneOptions:
        """How lanes work. Raises SettingsError when retentions contradict each other."""
        inbox, dead_letters = self.inbox_retention_days * DAY, self.dead_letter_retention_days * DAY
        delays = self._delays()
        try:
            retry = RetryPolicy(delays=delays)
        except SettingsError as error:
            raise SettingsError(f"STEADFAUST_RETRY_DELAYS is {self.retry_delays!r}: {error}") from error
        check_retention(inbox=inbox, dead_letters=dead_letters, longest_retry=longest_path(retry))
        if self.heartbeat * 3 > self.session_timeout:
            raise SettingsError(
                f"heartbeat of {self.heartbeat:g} s is over a third of session_timeout"
                f" ({self.session_timeout:g} s): one lost heartbeat would cost the worker its lanes; lower"
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
        """Where large payloads go; None when neither a setting nor a running local stack says. Endpoint and
        keys are those of the stack's S3, whatever the bucket is called, unless `s3_endpoint` is set. Raises
        SettingsError for an endpoint without a bucket.
        """
        if self.s3_endpoint and not self.s3_bucket:
            raise SettingsError(
                f"STEADFAUST_S3_ENDPOINT is {self.s3_endpoint!r}, and no bucket is named: set"
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
        """Where Kafka is, and how to get in. Raises SettingsError when neither a setting nor a running local
        stack says where, or the settings contradict each other.
        """
        return Brokers(self.bootstrap or str(self.local_stack()["bootstrap"]), self.security())

    def postgres(self) -> str:
        """The URL of PostgreSQL. Raises SettingsError when neither a setting nor a local stack has it, or no
        user is named for the password's file.
        """
        if self.postgres_password_file:
            return self._with_password()
        return self.postgres_url or self._local(
            "postgres",
            "PostgreSQL: set STEADFAUST_POSTGRES_URL, or name `databases` in [tool.steadfaust.local] and"
            " start it again",
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
        """Where Kafka Connect is. Raises SettingsError when neither a setting nor a local stack says."""
        return self.connect_url or self._local(
            "connect",
            "Kafka Connect: set STEADFAUST_CONNECT_URL, or start it with `steadfaust up --cdc`",
        )

    def _local(self, name: str, advice: str) -> str:
        """The address of a process of the local stack. Raises SettingsError with what to do."""
        processes = self.local_stack().get("processes", {})
        found = processes.get(name) if isinstance(processes, dict) else None
        if not found:
            raise SettingsError(f"the local stack under {self.var} runs no {advice}")
        return str(found["url"])

    def local_stack(self) -> dict[str, object]:
        """The state file of the running local stack. Raises SettingsError when there is none."""
        path = self.var / "stack.json"
        try:
            found: dict[str, object] = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise SettingsError(
                f"no local stack at {path} ({error}): start one with `steadfaust up`,"
                " or set STEADFAUST_BOOTSTRAP"
            ) from error
        return found
