"""A message whose key is its field `k`."""

from streams.model.message import Message


class Keyed(Message, frozen=True):
    """Base of the messages of tests."""

    k: str

    @property
    def key(self) -> str:
        return self.k
