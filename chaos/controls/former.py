"""`python -m chaos.controls.former (PATH | -m MODULE) ARGUMENT..`: a program of the database edge, as it is.

With its control, its sessions stay at a former primary: none is cut.
"""

from __future__ import annotations

import os
import runpy
import sys

from chaos.controls.hasty import CONTROL, Control
from streams.postgres.connecting import Server
from streams.postgres.primary import Primary


def _keep(_: Primary, __: Server) -> None:
    """Cut nothing."""


if __name__ == "__main__":
    if os.environ.get(CONTROL) == Control.FORMER_PRIMARY_KEPT:
        Primary._cut = _keep  # type: ignore[method-assign,assignment]
    if sys.argv[1] == "-m":
        sys.argv = sys.argv[2:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = sys.argv[1:]
        runpy.run_path(sys.argv[0], run_name="__main__")
