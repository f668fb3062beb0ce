"""Certificates for tests, made by openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple


class Certificate(NamedTuple):
    """The files of a certificate that has signed itself, so that it is its own authority."""

    pem: Path
    key: Path


def make_certificate(
    folder: Path, names: str = "IP:127.0.0.1,DNS:localhost", name: str = "service"
) -> Certificate:
    """Make a certificate that is valid for two days for these subject alternative names."""
    made = Certificate(folder / f"{name}.pem", folder / f"{name}.key")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "2", "-subj", f"/CN={name}", "-addext", f"subjectAltName={names}"),
            *("-keyout", str(made.key), "-out", str(made.pem)),
        ],
        check=True,
        capture_output=True,
    )
    made.key.chmod(0o600)
    return made
