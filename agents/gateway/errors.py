"""How asking the payment gateway can fail: for good, or for now."""

from __future__ import annotations

from streams import PermanentError
from streams.errors import SteadfaustError, TransientError


class GatewayRefused(PermanentError):
    """The gateway will never do this: the request is wrong, or contradicts what was done before.

    Attributes:
        operation: the business operation of the request.
        status: the HTTP status of the answer.
        body: the answer's body, which says why.
    """

    def __init__(self, operation: str, status: int, body: str) -> None:
        self.operation = operation
        self.status = status
        self.body = body
        super().__init__(f"{operation}: the payment gateway refused it with {status}: {body}")


class GatewayInvalid(GatewayRefused):
    """The gateway calls the values of the request malformed: it was not done and can never be."""


class GatewayUnavailable(TransientError):
    """No answer came in the time allowed. The operation may have been done: ask again under the same name.

    Attributes:
        operation: the business operation of the request.
        attempts: how many requests were made.
        seconds: how long that took in total.
        last: what went wrong last; None when not even one attempt ended.
    """

    def __init__(self, operation: str, attempts: int, seconds: float, last: Exception | None) -> None:
        self.operation = operation
        self.attempts = attempts
        self.seconds = seconds
        self.last = last
        super().__init__(
            f"{operation}: no answer from the payment gateway in {seconds:.1f} s and {attempts} attempts, "
            f"last: {last or 'no attempt ended'}"
        )


class Unanswered(SteadfaustError):
    """One attempt brought no answer that can be relied on; it is retried while there is time."""
