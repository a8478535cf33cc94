"""Orchestrated sagas: definitions, the handler that runs them on a lane, and participants.

These are the public names. Modules of the library import each other directly.
"""

from streams.saga.definition import Saga, saga
from streams.saga.engine import Admission, admitted, orchestrate, turned_away
from streams.saga.messages import Command, Repair, Reply, SagaTransition, saga_id
from streams.saga.participant import Answer, Participant, done, later, refused
from streams.saga.participation import Participation
from streams.saga.state import SagaRow
from streams.saga.steps import NEVER, PATIENT, Backoff, Refusal, Step, step
from streams.saga.views import ChoreographedSaga, Course, SagaView, Seen, choreographed

__all__ = [
    "NEVER",
    "PATIENT",
    "Admission",
    "Answer",
    "Backoff",
    "ChoreographedSaga",
    "Command",
    "Course",
    "Participant",
    "Participation",
    "Refusal",
    "Repair",
    "Reply",
    "Saga",
    "SagaRow",
    "SagaTransition",
    "SagaView",
    "Seen",
    "Step",
    "admitted",
    "choreographed",
    "done",
    "later",
    "orchestrate",
    "refused",
    "saga",
    "saga_id",
    "step",
    "turned_away",
]
