"""The debugging pages of a worker and their JSON: what it owns, how that stands, and the rows in it.

Reads only, but for operations on dead letters; on loopback only. Nothing here knows Faust:
`streams.runtime.web` mounts `routes.application`.
"""
