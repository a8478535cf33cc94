"""Our assignor on the group protocol: members are given lanes, expanded to all topics (docs/adr/0003)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from faust.assignor import PartitionAssignor

from streams.model.application import Application
from streams.model.policy.assignment import Assignment, Member, assign

_encode = msgspec.json.Encoder().encode


class LaneAssignor(PartitionAssignor):
    """Speaks for one worker: what it is, and what it was given. Lives in the consumer's thread."""

    def __init__(self, app: Any, replicas: int = 0) -> None:
        super().__init__(app, replicas=replicas)
        self.assigned = Assignment()
        #: Lanes of which this worker's disk has a copy, from a process before it: until it is given lanes, it
        #: asks for these before others, as a standby does.
        self.kept: tuple[int, ...] = ()
        self._generation = -1
        #: Whether this worker cannot commit, and wants no lanes; see `streams.model.policy.fitness`.
        self.unfit = False
        self._lanes: Application = app.lane_application
        self._standbys: int = app.standbys
        self._generation_of: Callable[[], int] = app.current_generation
        self._request_rebalance: Callable[[], None] = app.request_rebalance
        self._asked = False

    @property
    def name(self) -> str:
        """The protocol's name: members with another one cannot join the group."""
        return "steadfaust-lanes"

    @property
    def version(self) -> int:
        """Version of the metadata's form.

        What is encoded has the fields of version 0. A broker looks into it only when a member of the protocol
        `consumer` is in the group, or joins it (KIP-848): it cannot read this then, and keeps the two apart.
        With the right fields it would mix them, and give partitions by an assignor of its own.
        """
        return 1

    def metadata(self, topics: set[str]) -> ConsumerProtocolMemberMetadata:
        """The metadata of this worker when it joins."""
        layout = self._lanes.layout
        member = Member(
            layout.partitions,
            layout.lanes,
            tuple(sorted(topics)),
            self.assigned.active,
            self.assigned.standby if self.assigned.members else self.kept,
            self._generation,
            str(self.app.conf.canonical_url),
            self.unfit,
        )
        return ConsumerProtocolMemberMetadata(self.version, sorted(topics), _encode(member))

    def assign(
        self, cluster: Any, member_metadata: Mapping[str, Any]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        """Called on the group's leader: decide for all."""
        members = {
            name: msgspec.json.decode(metadata.user_data, type=Member)
            for name, metadata in member_metadata.items()
        }
        layout, is_source = self._lanes.layout, self._lanes.wiring.is_source
        decided = {}
        common = {layout.operations}
        for name, given in assign(members, self._standbys, common).items():
            numbers = sorted(p for lane in given.active for p in layout.partitions_of(lane))
            expanded = [(topic, numbers) for topic in given.topics if not is_source(topic)] if numbers else []
            for topic in filter(is_source, given.topics):  # it has any number of them
                there = cluster.partitions_for_topic(topic) or ()
                expanded.append((topic, sorted(p for p in there if layout.home_of(p) in numbers)))
            decided[name] = ConsumerProtocolMemberAssignment(self.version, expanded, _encode(given))
        return decided

    def on_assignment(self, assignment: Any) -> None:
        """Called on each member with what it was given, before its rebalance callback.

        A static member that comes back soon is given what its predecessor had, without anybody deciding:
        where that no longer fits, it refuses, or asks once for a decision.
        """
        given = msgspec.json.decode(assignment.user_data, type=Assignment)
        layout = self._lanes.layout
        if not given.error and (given.partitions, given.lanes) != (layout.partitions, layout.lanes):
            given = Assignment(
                error=f"the group's lanes were cut as {given.partitions} partitions in {given.lanes} lanes:"
                " stop all workers, and wait for their sessions to end, before changing either"
            )
        self.assigned = given
        self._generation = self._generation_of()
        if not given.error and not self._asked and self._is_stale(given):
            self._asked = True
            self._request_rebalance()

    def _is_stale(self, given: Assignment) -> bool:
        own = str(self.app.conf.canonical_url)
        moved = any(given.owners.get(lane) != own for lane in given.active)
        return moved or bool(set(self._lanes.sources) - set(given.topics))
