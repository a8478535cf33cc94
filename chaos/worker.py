"""The order application's worker in a chaos run, with the faults that its environment scripts."""

from __future__ import annotations

from agents.settings import OrderSettings
from agents.worker import create_app
from streams.runtime.app import settings_or_exit
from streams.testing.faults import faults_from_environment

app = create_app(settings_or_exit(OrderSettings), faults_from_environment())
