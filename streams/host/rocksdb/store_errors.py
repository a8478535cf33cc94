"""Translates errors of RocksDB, or of the file system below it, for a lane."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NamedTuple

from streams.errors import StoreBroken, StoreBusy, StoreUnavailable


class _Cause(NamedTuple):
    """The problem, and what to do about it."""

    what: str
    advice: str


#: Known errors of the machine. The lane keeps its store after these, and also after unknown ones.
_CAUSES = {
    errno.ENOSPC: _Cause("the disk is full", "make room there"),
    errno.EDQUOT: _Cause("the disk quota is used up", "make room there, or raise the quota"),
    errno.EMFILE: _Cause(
        "this process has too many open files",
        "raise its limit (ulimit -n; LimitNOFILE= of systemd; --ulimit nofile of a container)",
    ),
    errno.ENFILE: _Cause("this machine has too many open files", "raise fs.file-max"),
    errno.EROFS: _Cause("the file system is read-only", "see why (dmesg), and mount it for writing"),
    errno.EIO: _Cause(
        "the disk fails",
        "see dmesg; where the disk stays bad, stop the worker, delete the directory, and use another disk",
    ),
    errno.ENXIO: _Cause("the disk is gone", "see dmesg, and attach it again"),
    errno.ENODEV: _Cause("the disk is gone", "see dmesg, and attach it again"),
    errno.ENOTCONN: _Cause("the file system is not connected", "mount it again"),
    errno.ESTALE: _Cause("the file system was exported anew", "mount it again"),
    errno.ETIMEDOUT: _Cause("the disk does not answer", "see dmesg"),
    errno.EAGAIN: _Cause("the disk does not answer now", "see dmesg"),
    errno.EBUSY: _Cause("the disk is busy", "see what else uses the directory (fuser), and dmesg"),
    errno.EUCLEAN: _Cause("the file system is damaged", "see dmesg, unmount it and check it (fsck)"),
    errno.EBADMSG: _Cause("the file system is damaged", "see dmesg, unmount it and check it (fsck)"),
    errno.EACCES: _Cause("this process may not use the files", "give it the directory (chown)"),
    errno.EPERM: _Cause("this process may not use the files", "give it the directory (chown)"),
    errno.ENOMEM: _Cause("the machine is out of memory", "give the worker more, or run fewer on it"),
    errno.EFBIG: _Cause("a file may not grow any more", "raise the limit of file sizes (ulimit -f)"),
}
_TEXTS = {os.strerror(number): cause for number, cause in _CAUSES.items()}
#: After a failed write, RocksDB writes nothing until the database is opened again.
_EARLIER = "Writer has previous error"
_HELD = ("lock hold by current process", os.strerror(errno.EAGAIN))
#: Beginnings of RocksDB's errors if it cannot read the content of its files. "Invalid argument" is not among
#: them, because a failed read of a healthy database may end in it.
_DAMAGE = ("Corruption: ", "Not implemented: ")
#: A system error, which RocksDB may quote after those: "Corruption: Can't access /1.sst: IO error: ...".
_OF_THE_SYSTEM = "IO error"
_MISSING = os.strerror(errno.ENOENT)
_UNKNOWN = _Cause(
    "the store cannot be used",
    "see dmesg; where it stays so, stop the worker, delete the directory, and start it again",
)


def store_error(path: Path, error: Exception) -> StoreBusy | StoreBroken | StoreUnavailable:
    """Translate an error of the store by its text, because rocksdict raises a bare Exception. Any exception
    other than that or an OSError is the caller's mistake, and is raised.
    """
    text = str(error)
    if "/LOCK" in text and any(held in text for held in _HELD):
        return StoreBusy(f"the store in {path} is open elsewhere ({text}): close its previous owner first")
    if not isinstance(error, OSError) and type(error) is not Exception:
        raise error
    if _is_damage(error, text):
        return StoreBroken(
            f"the store in {path} cannot be used ({text}): wipe it and rebuild it from the changelogs"
        )
    cause = _cause_of(error, text)
    return StoreUnavailable(
        f"{cause.what}: {path}: {cause.advice}. The lane keeps its copy, and goes on by itself ({text})"
    )


def _is_damage(error: Exception, text: str) -> bool:
    """Whether a file is damaged or missing. Only then is the store wiped; other system errors may pass."""
    if isinstance(error, OSError) or _OF_THE_SYSTEM in text:
        return _MISSING in text
    return text.startswith(_DAMAGE) or _MISSING in text


def _cause_of(error: Exception, text: str) -> _Cause:
    if isinstance(error, OSError) and error.errno in _CAUSES:
        return _CAUSES[error.errno]
    for found, cause in _TEXTS.items():
        if found in text:
            return cause
    return _Cause("a write failed before", "see the errors before this one") if _EARLIER in text else _UNKNOWN
