"""The lane, in the order of a message's trip: intake, admission, dispatch, attempt, commit.

What a failure leaves behind, with the default policy:

| failed call | next call | kept in | after a kill |
|---|---|---|---|
| first, second | at once | memory: no row, no transaction | the message is read again: its first call |
| third to fifth | after 10, 60, 300 s | a row of the waiting table | the row is recovered: the same call |
| sixth | none: a dead letter | the dead letter's row | nothing is called again |

So two failures and a success are one transaction. A call that a kill ends is counted nowhere. An open breaker
or a pause makes the first or second failure a row at once. The handlers of a message are committed together:
a kill before that makes the next owner call all of them again, also one that had succeeded.
`way/failure.py` decides and stages the row with its count and due time; `waiting/due.py` gives a due
row its new entry.

What a kill leaves at each step of a commit (`commit.py`):

| killed after | in Kafka | the next owner |
|---|---|---|
| staged, begun, sent, offsets_sent | nothing: the next producer aborts the transaction | calls again |
| the request to commit | what the coordinator decided: all or nothing | recovers, or calls again |
| committed | all; RocksDB lacks it | recovers the rows from the changelogs |
| applied | all, and in RocksDB | goes on |
"""
