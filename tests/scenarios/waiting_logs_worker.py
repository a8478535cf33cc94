"""The order application's worker, whose log calls wait for the reader of its log: without that protection."""

from unittest.mock import patch

from agents import worker
from agents.settings import OrderSettings

patch("streams.logs.detach", lambda _: None).start()
app = worker.create_worker(OrderSettings.read_or_exit())
