"""The lane, in the order of a message's trip: intake, admission, dispatch, attempt, commit.

What a failed call of a handler leads to, with the default policy:

| failed call | what follows | where its count is |
|---|---|---|
| first, second | the handler is called again at once | in memory: no row, no transaction |
| third to fifth | a row of the waiting table: the handler is called after 10, 60, 300 s | in the row |
| sixth | a dead letter, or the reply that the handler gives when it gives up | in the dead letter |

The handlers of a message are committed together: the outcome of each, or its waiting row or dead letter, all
inbox ids and the position are one transaction. What a kill costs depends on whether it was committed:

| killed | after that |
|---|---|
| before | it is read again; all its handlers begin with their first call, also one that had succeeded |
| after, a handler waits | its row is recovered, and it alone is called, when it is due |
| after, none waits | nothing is called again |

So calls before a kill are counted only in rows that were committed. Without a kill, two failures and a
success take no transaction more. An open breaker or a pause makes the first or second failure a row without
further calls. A message that a lane sends to itself is tried once before it is read (`way/loopback.py`): an
error there is not counted. `way/failure.py` decides what follows, and stages the row; `waiting/due.py` gives
a due row its new entry.

What a kill leaves at each step of a commit (`commit.py`):

| killed after | in Kafka | the next owner |
|---|---|---|
| staged, begun, sent, offsets_sent | nothing: the next producer aborts the transaction | calls again |
| the request to commit | what the coordinator decided: all or nothing | recovers, or calls again |
| committed | all; RocksDB lacks it | recovers the rows from the changelogs |
| applied | all, and in RocksDB | goes on |
"""
