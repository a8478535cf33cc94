"""docker-compose.yml in a real engine, in a project of its own, for tests.

Images are those that the engine has or can pull. Secrets are made in a copy of `ops/`, beside nothing that a
person uses.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.waiting import BOUND, eventually

ROOT = Path(__file__).parents[2]
#: Seconds for all to become healthy, and for an image to be built, which compiles the hot path.
HEALTHY, BUILT = 900, 3600
#: Services of our image, in the order of an upgrade.
WORKERS = ("worker-1", "worker-2", "worker-3")
OURS = (*WORKERS, "api", "relay", "gateway")
PORTS = ("API_PORT", "PAGES_PORT", "PROMETHEUS_PORT", "GRAFANA_PORT")


class CommandFailed(AssertionError):
    """A command of the engine ended with an error."""


def run(*command: str, bound: float = BOUND, text: str = "", **environment: str) -> str:
    """The standard output of a command. Raises CommandFailed with all that it wrote."""
    done = subprocess.run(
        command, env=os.environ | environment, input=text, capture_output=True, text=True, timeout=bound,
        check=False,
    )  # fmt: skip
    if done.returncode:
        raise CommandFailed(f"{' '.join(command)}: {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def why_no_engine() -> str:
    """Why docker-compose.yml cannot run here; empty when it can."""
    if shutil.which("docker") is None:
        return "there is no docker command"
    for command in (("info", "--format", "{{.ServerVersion}}"), ("compose", "version")):
        try:
            run("docker", *command)
        except (CommandFailed, subprocess.TimeoutExpired) as error:
            return f"no container engine with Compose answers: {error}"
    return ""


@dataclass
class Composed:
    """One project of docker-compose.yml.

    Attributes:
        folder: where its `secrets` and `ops` are.
        project: its name, which its containers, volumes and networks begin with.
        image: of our services, for the next `compose`.
        options: the files beyond docker-compose.yml, and profiles.
    """

    folder: Path
    project: str
    image: str
    options: Sequence[str] = ()
    ports: dict[str, int] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    def compose(self, *arguments: str, bound: float = BOUND) -> str:
        ports = {name: str(port) for name, port in self.ports.items()}
        return run(
            *("docker", "compose", "--project-name", self.project, "--project-directory", str(self.folder)),
            *("--file", str(ROOT / "docker-compose.yml"), *self.options, *arguments),
            bound=bound, ORDERS_IMAGE=self.image, **ports, **self.environment,
        )  # fmt: skip

    def up(self, *arguments: str) -> None:
        """Start services, and wait until they are healthy."""
        self.compose("up", "--no-build", "--detach", "--wait", *arguments, bound=HEALTHY)

    def inside(self, service: str, *command: str) -> str:
        return self.compose("exec", "--no-TTY", service, *command)

    def inspected(self) -> dict[str, dict[str, Any]]:
        """Each container, ended ones too, by its service."""
        ids = self.compose("ps", "--all", "--quiet").split()
        found = json.loads(run("docker", "inspect", *ids))
        return {each["Config"]["Labels"]["com.docker.compose.service"]: each for each in found}

    def kill(self, service: str) -> None:
        """End the process of a worker, as the kernel does when memory is short; wait until it is well."""
        before = self.inspected()[service]["RestartCount"]
        self.inside(service, "python", "-c", _KILL)

        def is_back() -> bool:
            now = self.inspected()[service]
            return now["RestartCount"] > before and now["State"]["Health"]["Status"] == "healthy"

        eventually(is_back, f"{service} is restarted, and healthy", every=1.0, bound=HEALTHY)

    def secret(self, name: str) -> str:
        return (self.folder / "secrets" / name).read_text().strip()

    def page(self, path: str) -> tuple[int, str]:
        """Status and text of a page of worker-1."""
        headers = {"Authorization": f"Bearer {self.secret('web-token')}"}
        request = Request(f"http://127.0.0.1:{self.ports['PAGES_PORT']}{path}", headers=headers)
        try:
            with urlopen(request, timeout=BOUND) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()


#: A worker's process is below the init process of its container, which cannot be killed from within.
_KILL = """
import os, pathlib, signal
for each in pathlib.Path("/proc").glob("[0-9]*"):
    if each.name not in ("1", str(os.getpid())) and b"agents.worker" in (each / "cmdline").read_bytes():
        os.kill(int(each.name), signal.SIGKILL)
"""


@contextmanager
def composed(folder: Path, image: str, ports: dict[str, int], mode: str) -> Iterator[Composed]:
    """The project of one mode (plain, tls or cdc), all healthy; removed afterwards, volumes too."""
    shutil.copytree(ROOT / "ops", folder / "ops")
    run(str(folder / "ops" / "make-secrets.sh"))
    options = {
        "plain": (),
        "tls": ("--file", str(ROOT / "deploy" / "compose.tls.yml")),
        "cdc": ("--profile", "cdc"),
    }[mode]
    environment = {"STEADFAUST_OUTBOX": "cdc"} if mode == "cdc" else {}
    project = f"verify-{mode}-{os.getpid()}"
    made = Composed(folder, project, image, options, ports, environment)
    try:
        fetch_images(made)
        made.up()
        yield made
    finally:
        (folder / "logs").write_text(made.compose("logs", "--no-color", "--timestamps"))
        made.compose("down", "--volumes", bound=HEALTHY)


def fetch_images(made: Composed) -> None:
    """Skip the test where the engine has not got an image of the file, and cannot pull it."""
    for image in made.compose("config", "--images").split():
        try:
            run("docker", "image", "inspect", image)
        except CommandFailed:
            try:
                run("docker", "pull", "--quiet", image, bound=HEALTHY)
            except CommandFailed as error:
                pytest.skip(f"the engine has no image {image}, and cannot pull it: {error}")
