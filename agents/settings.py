"""The settings of the order application, beside those of every application."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from streams import Settings
from streams.errors import SettingsError


class Way(StrEnum):
    """The order of the choreography."""

    STOCK_FIRST = "stock-first"
    PAYMENT_FIRST = "payment-first"


class OrdersWay(StrEnum):
    """The way of the orders that the API takes."""

    PLACED = "placed"
    SUBMITTED = "submitted"
    BOTH = "both"


class OrderSettings(Settings):
    """Settings of the order application."""

    choreography: Way = Field(default=Way.STOCK_FIRST, description="what comes first: stock or payment")
    gateway_patience: float = Field(
        default=10.0, gt=0, description="how long a call to the gateway is tried in all, in seconds"
    )
    gateway_attempts: int = Field(
        default=0, ge=0, description="attempts of a call at most; 0: as many as patience allows"
    )
    gateway_url: str = Field(default="", description="payment gateway; empty: that of the local stack")
    orders_way: OrdersWay = Field(
        default=OrdersWay.PLACED,
        description="placed: by choreography; submitted: by a saga; both: half of the orders either way",
    )
    api_host: str = Field(default="127.0.0.1", description="address that the orders API listens on")
    api_port: int = Field(
        default=0,
        ge=0,
        lt=2**16,
        description="port of the orders API in the worker of slot 0, slot n the n-th after; 0: none",
    )
    api_connections: int = Field(default=8, ge=3, description="connections to PostgreSQL of one orders API")
    api_patience: float = Field(
        default=5.0, gt=0, description="how long a request waits for PostgreSQL, until it is answered 503"
    )
    api_max_body: int = Field(default=900_000, ge=1, description="bytes of a request's body at most")
    api_rate: float = Field(
        default=0.0, ge=0, description="requests a second that one client may make; 0: any number"
    )
    api_caller_header: str = Field(
        default="",
        pattern=r"^([A-Za-z0-9!#$%&'*+.^_`|~-]+)?$",
        description="header with the authenticated caller, which a proxy sets: each has keys of its own",
    )
    api_projection: bool = Field(
        default=True, description="whether the orders API also takes over the ends of orders"
    )
    idempotency_hours: float = Field(
        default=24.0, gt=0, description="how long the answer to an idempotency key is kept"
    )

    def gateway(self) -> str:
        """Where the payment gateway is. Raises SettingsError when nothing says."""
        if self.gateway_url:
            return self.gateway_url
        processes = self.local_stack().get("processes", {})
        url = processes.get("gateway", {}).get("url") if isinstance(processes, dict) else None
        if not url:
            raise SettingsError(
                f"the local stack under {self.var} runs no gateway: set STEADFAUST_GATEWAY_URL,"
                " or start the stack in the project's directory"
            )
        return str(url)
