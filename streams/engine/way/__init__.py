"""The steps of a message through a lane: intake, admission, dispatch, attempt, commit.

What follows a failed call of a handler, with the default policy:

| failed call | what follows | where its count is |
|---|---|---|
| first, second | the handler is called again at once | in memory: no row, no transaction |
| third to fifth | a row of the waiting table: the handler is called after 10, 60, 300 s | in the row |
| sixth | a dead letter, or the reply that the handler gives when it gives up | in the dead letter |

The handlers of a message are committed together: one transaction has the outcome, waiting row or dead letter
of each, all inbox ids and the position. What a kill costs depends on whether that transaction was committed:

| killed | after that |
|---|---|
| before the commit | the message is read again; all its handlers start over, even those that had succeeded |
| after it, while a handler waits | the row is recovered; only that handler is called, when the row is due |
| after it, while none waits | nothing is called again |

So calls before a kill are counted only in committed rows. Without a kill, two failures followed by a success
need no extra transaction. If the breaker is open or the handler is paused, the first or second failure leads
to a waiting row without further calls. A message that a lane sends to itself is tried once before it is read
(`way/loopback.py`); an error there is not counted. `way/failure.py` decides what follows, and stages the row.
`waiting/due.py` gives a due row its new entry.

What a kill leaves at each step of a commit (`commit.py`):

| killed after | in Kafka | the next owner |
|---|---|---|
| staged, begun, sent, offsets_sent | nothing: the next producer aborts it | calls handlers again |
| the request to commit | all or nothing, as the coordinator decided | recovers, or calls handlers again |
| committed | everything; RocksDB lacks it | recovers the rows from the changelogs |
| applied | everything, also in RocksDB | continues |
"""
