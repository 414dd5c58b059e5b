"""`grpo download`: a job's adapter on this disk, whole and verified or not at all."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

from service.cli.client import JOBS, Client
from service.cli.errors import CommandError
from service.cli.options import client_of
from service.cli.output import JsonFlag, console, print_json, stderr
from service.unpack import BadArchive
from service.unpack import unpack as unpack_into

ATTEMPTS = 5
SHA256 = re.compile(r"[0-9a-f]{64}")


def download(
    context: typer.Context,
    job_id: Annotated[str, typer.Argument(metavar="JOB")],
    to: Annotated[Path, typer.Option(help="Folder to write into.", file_okay=False)] = Path(),
    checkpoint: Annotated[
        str | None, typer.Option(help="A checkpoint's id instead of the final one.")
    ] = None,
    extract: Annotated[bool, typer.Option("--extract", help="Unpack into a folder that PEFT loads.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Download the trained adapter (the whole model of a job with "lora": "full")."""
    with client_of(context) as client:
        path, sha256 = fetch_adapter(client, job_id, to, checkpoint=checkpoint)
    if extract:
        path = unpack(path)
    if as_json:
        print_json({"path": str(path), "sha256": sha256})
    else:
        console.print(f"{path}  sha256 {sha256}", soft_wrap=True)


def fetch_adapter(
    client: Client, job_id: str, to: Path, *, checkpoint: str | None = None
) -> tuple[Path, str]:
    """Downloads `<job>.tar.gz` into `to`; returns its path and its verified SHA-256.

    A broken transfer goes on where it stopped. Raises CommandError where the digest is another.
    """
    to.mkdir(parents=True, exist_ok=True)
    target = to / f"{checkpoint or job_id}.tar.gz"
    with tempfile.TemporaryDirectory(dir=to, prefix=".download-") as folder:
        partial = Path(folder) / target.name
        sha256 = _transfer(client, f"{JOBS}/{job_id}/adapter", partial, checkpoint=checkpoint)
        if (found := _sha256(partial)) != sha256:
            raise CommandError(f"the download is damaged: sha256 {found} instead of {sha256}", code="damaged")
        os.replace(partial, target)
    return target, sha256


def unpack(archive: Path) -> Path:
    """Unpacks beside the archive, into a folder of its name; one that was there is replaced.

    Links, devices and names that leave the folder are refused.
    """
    folder = archive.with_name(archive.name.removesuffix(".tar.gz"))
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".unpack-") as scratch:
        fresh = Path(scratch) / "content"
        try:
            unpack_into(archive, fresh)
        except BadArchive as error:
            raise CommandError(f"{archive} cannot be unpacked: {error}") from error
        if folder.exists():
            shutil.move(folder, Path(scratch) / "replaced")
        os.replace(fresh, folder)
    return folder


def _transfer(client: Client, path: str, partial: Path, **params: Any) -> str:
    """Writes the body to `partial`; returns the SHA-256 that the service gives for it."""
    etag = None
    with partial.open("wb") as file, _bar() as advance:
        for attempt in range(1, ATTEMPTS + 1):
            headers = {"Accept-Encoding": "identity"}
            if etag:
                headers |= {"Range": f"bytes={file.tell()}-", "If-Range": etag}
            try:
                with client.streaming(path, headers=headers, **params) as response:
                    etag = response.headers.get("etag", "")
                    if response.status_code != httpx.codes.PARTIAL_CONTENT:
                        file.seek(0)
                        file.truncate()
                    for chunk in response.iter_raw():
                        file.write(chunk)
                        advance(file.tell(), response)
                return _promised(response)
            except httpx.TransportError as error:
                if attempt == ATTEMPTS:
                    raise CommandError(f"the download broke off: {error}", code="unreachable") from error
                time.sleep(0.5 * attempt)
    raise AssertionError("the last attempt returns or raises")


def _promised(response: httpx.Response) -> str:
    sha256: str = response.headers.get("x-checksum-sha256", "")
    if not SHA256.fullmatch(sha256):
        raise CommandError("the service gave no sha256 for this download", code="damaged")
    return sha256


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _bar() -> Iterator[Callable[[int, httpx.Response], None]]:
    """A progress bar on standard error: advance(bytes so far, response)."""
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as progress:
        task = progress.add_task("download", total=None)

        def advance(num_bytes: int, response: httpx.Response) -> None:
            whole = response.headers.get("content-range", "").rpartition("/")[2]
            total = whole or response.headers.get("content-length")
            progress.update(task, completed=num_bytes, total=int(total) if total else None)

        yield advance
