"""Payloads by reference: the claim check, how payloads are checked in and out, and the sweeper."""
