"""The lane, in the order of a message's trip: intake, admission, dispatch, attempt, commit."""
