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


class OrderSettings(Settings):
    """What an operator of the order application can choose."""

    choreography: Way = Field(default=Way.STOCK_FIRST, description="what comes first: stock or payment")
    gateway_patience: float = Field(
        default=10.0, gt=0, description="how long a call to the gateway is tried in all, in seconds"
    )
    gateway_attempts: int = Field(
        default=0, ge=0, description="attempts of a call at most; 0: as many as patience allows"
    )
    gateway_url: str = Field(default="", description="payment gateway; empty: that of the local stack")

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
