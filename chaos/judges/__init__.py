"""Rules that the evidence of a run must keep, each a pure function."""
