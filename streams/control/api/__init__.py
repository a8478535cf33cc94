"""The server of a worker: JSON under /api, health and metrics, and the pages of a console if there is one."""

from streams import http as http  # where its packages are missing, the error names the extra
