"""Addresses of messages that wait."""

from __future__ import annotations

from streams.control.api.web_request import Read, asks
from streams.control.waiting.waiting import list_waiting
from streams.control.waiting.waiting_answers import WAITING_PATH, WaitingPage

ROUTES = (Read(WAITING_PATH, asks(list_waiting, WaitingPage)),)
