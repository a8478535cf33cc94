"""The lane's protocol as a model, explored exhaustively: `python -m chaos.model`."""
