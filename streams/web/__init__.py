"""The debugging pages of a worker and their JSON: what it owns, how that stands, and the rows in it.

Reads only, but for operations; on loopback, and elsewhere by a token. Nothing here knows Faust:
`streams.runtime.faust.web` mounts `routes.application`.
"""
