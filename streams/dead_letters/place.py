"""Where in the application's code an error was raised."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import PurePath
from types import FrameType

_LIBRARIES = tuple({sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def place_of(error: BaseException) -> str:
    """Where an error was raised: the innermost frame that is no library's; empty when it never was."""
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [pair for pair in frames if not pair[0].f_code.co_filename.startswith((*_LIBRARIES, "<"))]
    if not frames:
        return ""
    frame, line = (own or frames)[-1]
    return f"{_file_of(frame)}:{line} {frame.f_code.co_name}"


def _file_of(frame: FrameType) -> str:
    """A file by its place among the packages, the same on every machine."""
    depth = str(frame.f_globals.get("__name__", "")).count(".") + 1
    return "/".join(PurePath(frame.f_code.co_filename).parts[-depth:])
