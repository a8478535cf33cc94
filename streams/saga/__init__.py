"""Sagas, orchestrated: definitions that read as prose, an engine on the lane, and participants."""
