"""S3 on this machine: S3Proxy over a folder, in which a bucket is a folder and an object a file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from streams.local.errors import BadDeclaration
from streams.local.loopback import HOST
from streams.local.processes import Companion

NAME = "s3"
"""The companion's name: `stack.url("s3")`."""

ACCESS_KEY, SECRET_KEY = "local", "local-secret"
"""Access keys of clients. No secret: each program on the loopback interface may read the objects."""


def companion(java: Path, class_path: str, home: Path, port: int, buckets: Sequence[str]) -> Companion:
    """S3Proxy on a port over the folder `home`, ready when it shows the first bucket; makes the buckets.

    Raises:
        BadDeclaration: a bucket has a name that S3 does not take.
    """
    for bucket in buckets:
        if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", bucket):
            raise BadDeclaration(
                f"a bucket cannot be named {bucket!r}: use 3 to 63 lower-case letters, digits,"
                " dots and dashes"
            )
        (home / bucket).mkdir(parents=True, exist_ok=True)
        # Whether it may be listed without a signature, as the question whether S3 is ready does.
        (home / bucket).chmod(0o755)
    properties = {
        "s3proxy.endpoint": f"http://{HOST}:{port}",
        "s3proxy.authorization": "aws-v2-or-v4",
        "s3proxy.identity": ACCESS_KEY,
        "s3proxy.credential": SECRET_KEY,
        # boto3 sends a checksum with a deletion of many, which S3 wants and S3Proxy does not know.
        "s3proxy.ignore-unknown-headers": "true",
        "jclouds.provider": "filesystem-nio2",
        "jclouds.filesystem.basedir": str(home),
    }
    flags = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    settings = [f"-D{name}={value}" for name, value in properties.items()]
    command = [str(java), *flags, *settings, "-cp", class_path, "org.gaul.s3proxy.Main"]
    return Companion([*command, "--properties", "/dev/null"], ready=f"/{buckets[0]}?max-keys=1")
