"""Certificates for tests of TLS, made by openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

from conftest import skip_or_fail


class Certificate(NamedTuple):
    """PEM files: a certificate that signed itself (so it is its own authority), and its key."""

    certificate: str
    key: str


def revocations(folder: Path, authority: Certificate, *revoked: Certificate) -> str:
    """The path of the authority's list of certificates that it has revoked. ``folder``: an empty one."""
    (folder / "known").touch()
    (folder / "ca.cnf").write_text(
        f"[ca]\ndefault_ca = ours\n[ours]\ndatabase = {folder}/known\ndefault_md = sha256\ndefault_crl_days = 2\n"
    )
    tool = [
        "openssl",
        "ca",
        "-config",
        f"{folder}/ca.cnf",
        "-keyfile",
        authority.key,
        "-cert",
        authority.certificate,
    ]
    for one in revoked:
        subprocess.run([*tool, "-revoke", one.certificate], capture_output=True, check=True)
    made = f"{folder}/revoked.pem"
    subprocess.run([*tool, "-gencrl", "-out", made], capture_output=True, check=True)
    return made


def certificate(folder: Path, name: str) -> Certificate:
    """A certificate of 127.0.0.1 for two days; without openssl there is no test."""
    made = Certificate(f"{folder}/{name}.pem", f"{folder}/{name}.key")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", made.key, "-out", made.certificate]
    try:
        subprocess.run(command, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        skip_or_fail(f"openssl cannot make a certificate: {error}")
    return made
