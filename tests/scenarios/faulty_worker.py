"""The order application's worker, with the faults that a scenario's environment scripts."""

from agents.settings import OrderSettings
from agents.worker import create_worker
from streams.testing import faults_from_environment

app = create_worker(OrderSettings.read_or_exit(), faults_from_environment())
