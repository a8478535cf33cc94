"""What people ask for, as messages: operations on dead letters and on handlers."""
