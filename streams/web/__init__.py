"""The debugging pages of a worker and their JSON: its lanes, their state, and their rows.

Reads only, but for operations; on loopback, and elsewhere by a token. Nothing here knows Faust:
`streams.worker.web` mounts `routes.application`.
"""
