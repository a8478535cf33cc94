"""A root file system with Python, this project and C libraries in it, and nothing else: no /etc, no zones, no
users, no /tmp, no home.
"""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_TRIPLET = f"{os.uname().machine}-linux-gnu"
#: No user of that machine, which has none.
UID = 54321


def _needed() -> list[Path]:
    libraries = [Path("/usr/lib64"), *(Path("/usr/lib", name) for name in (_TRIPLET, "ssl"))]
    loaders = [Path(each) for each in ("/lib64", "/lib")]
    return [
        each
        for each in (*libraries, *loaders, Path(sys.base_prefix), Path(sys.prefix), ROOT)
        if each.exists()
    ]


def why_not() -> str:
    """Why there can be none here; empty: it can."""
    if os.geteuid():
        return "only root can mount and change its root"
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    return "" if tried.returncode == 0 else f"unshare: {tried.stderr.decode().strip()}"


class BareMachine:
    """Makes commands that run there; `home` is the one directory that they can write."""

    def __init__(self, folder: Path) -> None:
        if reason := why_not():
            pytest.skip(reason)
        self.root, self.home = folder / "root", folder / "home"
        self.home.mkdir(parents=True)
        os.chown(self.home, UID, 0)
        self._script = folder / "enter.sh"
        script = ["set -e"]
        for each in _needed():
            place = self.root / each.relative_to("/")
            if each.is_symlink() and each.parent == Path("/"):
                self.root.mkdir(exist_ok=True)
                place.symlink_to(each.readlink())
                continue
            place.mkdir(parents=True, exist_ok=True)
            script.append(f"mount --rbind {shlex.quote(str(each))} {shlex.quote(str(place))}")
        (self.root / "dev").mkdir(parents=True, exist_ok=True)
        for name in ("null", "urandom"):
            (self.root / "dev" / name).touch()
            script.append(f"mount --bind /dev/{name} {self.root}/dev/{name}")
        (self.root / "home").mkdir()
        script.append(f"mount --bind {self.home} {self.root}/home")
        script.append(f'exec chroot --userspec={UID}:0 {self.root} "$@"')
        self._script.write_text("\n".join(script))

    def command(self, *words: str) -> list[str]:
        """The command that runs another one there."""
        inside = ["/bin/sh", str(self._script), *words]
        return ["unshare", "--mount", "--propagation", "private", *inside]

    def run(self, *words: str, **settings: str) -> subprocess.CompletedProcess[str]:
        """Run a command there to its end, with these variables and no others."""
        environment = {"PATH": os.environ["PATH"], **settings}
        return subprocess.run(
            self.command(*words), env=environment, capture_output=True, text=True, check=False
        )
