"""Faust's example `withdrawals`, with its two windows, on the lanes: docs/faust.md sets the two side by side.

By hand:

    export STEADFAUST_APP_ID=withdrawals      # in both terminals
    steadfaust up
    faust -A examples.withdrawals worker      # in a second terminal
    python -m examples.withdrawals            # sends withdrawals of one minute
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

import msgspec

from streams import Message, Outcome, Row, Service, Table, Timer, Worker, choreography, on, outcome


class Withdrawal(Message, frozen=True, kw_only=True):
    TOPIC = "examples.withdrawals.v1"
    user: str
    country: str
    amount: float
    date: float  # epoch seconds

    @property
    def key(self) -> str:
        return self.user


class WithdrawalOfCountry(Withdrawal, frozen=True, kw_only=True):
    TOPIC = "examples.withdrawals.of.country.v1"

    @property
    def key(self) -> str:
        return self.country


class WindowExpired(Message, frozen=True, kw_only=True):
    TOPIC, SAME_KEY = "examples.withdrawals.window.expired.v1", True
    country: str
    date: float

    @property
    def key(self) -> str:
        return self.country


class Total(Row, frozen=True, kw_only=True):
    amount: float = 0.0


Window = Callable[[Withdrawal | WindowExpired], str]


def tumbling(seconds: int) -> Window:
    """The subkey of a row: the beginning of the window that a message is in."""
    return lambda message: str(int(message.date // seconds * seconds))


HOURLY, OF_10_S = tumbling(3600), tumbling(10)
USER_TO_TOTAL, COUNTRY_TO_TOTAL = Table("user-to-total", Total), Table("country-to-total", Total)
bank = Service("bank")


@bank.handler(sends=[WithdrawalOfCountry], total=USER_TO_TOTAL.by(HOURLY))
def track_user_withdrawal(withdrawal: Withdrawal, total: Total | None) -> Outcome:
    of_country = WithdrawalOfCountry(**msgspec.structs.asdict(withdrawal))
    return outcome(total=Total(amount=(total or Total()).amount + withdrawal.amount), send=[of_country])


@bank.handler(sends=[WindowExpired], total=COUNTRY_TO_TOTAL.by(OF_10_S))
def track_country_withdrawal(withdrawal: WithdrawalOfCountry, total: Total | None) -> Outcome:
    expired = WindowExpired(country=withdrawal.country, date=withdrawal.date)
    timer = Timer(name=OF_10_S(withdrawal), due=withdrawal.date // 10 * 10 + 20, message=expired)
    return outcome(total=Total(amount=(total or Total()).amount + withdrawal.amount), timers=[timer])


@bank.handler(total=COUNTRY_TO_TOTAL.by(OF_10_S))
def expire_window(expired: WindowExpired, total: Total | None) -> Outcome:
    return outcome(total=None)


wiring = choreography(
    on(Withdrawal, track_user_withdrawal),
    on(WithdrawalOfCountry, track_country_withdrawal),
    on(WindowExpired, expire_window),
)
app = Worker(wiring)


async def main() -> None:
    begin = time.time()
    async with app.client("produce") as client:
        for number in range(600):
            user, country = f"user_{random.randrange(500)}", f"country_{random.randrange(5)}"
            amount, date = random.uniform(0, 25_000), begin + number / 10
            sent = Withdrawal(user=user, country=country, amount=amount, date=date)
            await client.send(sent, message_id=f"{begin}-{number}")


if __name__ == "__main__":
    asyncio.run(main())
