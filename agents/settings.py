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

    choreography: Way = Field(default=Way.STOCK_FIRST, description="first step of an order: stock or payment")
    gateway_patience: float = Field(
        default=10.0, gt=0, description="total seconds for one call to the gateway, retries included"
    )
    gateway_attempts: int = Field(
        default=0, ge=0, description="maximum attempts of a call (0: as many as gateway_patience allows)"
    )
    gateway_url: str = Field(default="", description="URL of the payment gateway (empty: the local stack's)")
    orders_way: OrdersWay = Field(
        default=OrdersWay.PLACED,
        description="how orders are handled: placed (choreography), submitted (saga) or both (half each)",
    )
    api_host: str = Field(default="127.0.0.1", description="address on which the orders API listens")
    api_port: int = Field(
        default=0,
        ge=0,
        lt=2**16,
        description="port of the orders API in the worker of slot 0; slot n adds n (0: workers have none)",
    )
    api_connections: int = Field(
        default=8, ge=3, description="maximum connections to PostgreSQL of one orders API"
    )
    api_patience: float = Field(
        default=5.0,
        gt=0,
        description="how long a request waits for PostgreSQL before it is answered with 503",
    )
    api_max_body: int = Field(default=900_000, ge=1, description="maximum size of a request's body")
    api_rate: float = Field(
        default=0.0, ge=0, description="maximum requests per second of one client (0: no limit)"
    )
    api_caller_header: str = Field(
        default="",
        pattern=r"^([A-Za-z0-9!#$%&'*+.^_`|~-]+)?$",
        description="header in which a proxy names the authenticated caller, who owns its idempotency keys",
    )
    api_projection: bool = Field(
        default=True, description="let the orders API also write the status of orders into PostgreSQL"
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
