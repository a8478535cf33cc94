"""Sagas: lists, counts and the row of each."""
