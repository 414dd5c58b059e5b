"""A certificate for servers of the tests."""

import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for judge.example that signs itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    chain, key = folder / "chain.pem", folder / "key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]
    names = ["-subj", "/CN=judge.example", "-addext", "subjectAltName=DNS:judge.example"]
    files = ["-keyout", str(key), "-out", str(chain), "-days", "2"]
    subprocess.run([*command, *names, *files], check=True, capture_output=True)
    return chain, key
