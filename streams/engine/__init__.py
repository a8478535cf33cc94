"""The engine: what makes the guarantee. Read it in this order.

| folder | what is in it |
|---|---|
| `way/` | a message's way through a lane: intake, admission, dispatch, attempt, failure, commit |
| `waiting/` | what waits in a lane: retries, timers, dead letters, and operators' requests about them |
| `life/` | a lane's life: it opens, recovers, follows as a standby, ends; where it stands in its topics |
| `staging/` | the state that the three share: what is decided and not yet committed |

Imports go down: `life` to `way` to `waiting` to `staging`.
"""
