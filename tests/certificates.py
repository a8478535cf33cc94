"""Certificates of brokers and clients, made for a test: good ones, and each kind of bad one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)


@dataclass(frozen=True)
class Authority:
    folder: Path
    ca: trustme.CA

    @classmethod
    def at(cls, folder: Path) -> Authority:
        folder.mkdir()
        ca = trustme.CA()
        ca.cert_pem.write_to_path(str(folder / "ca.pem"))
        return cls(folder, ca)

    @property
    def file(self) -> str:
        return str(self.folder / "ca.pem")

    def signed(self, name: str, *identities: str, expired: bool = False) -> str:
        """A key and its certificate in one file, PEM as Kafka reads it; the file's path."""
        ended = datetime.now(UTC) - timedelta(days=1) if expired else None
        made = self.ca.issue_cert(*identities, not_after=ended)
        key = load_pem_private_key(made.private_key_pem.bytes(), password=None)
        text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        path = self.folder / f"{name}.pem"
        path.write_bytes(text + b"".join(each.bytes() for each in made.cert_chain_pems))
        return str(path)
