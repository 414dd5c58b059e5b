"""`grpo download`: a job's adapter on this disk, whole and verified or not at all."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer

from service.cli.http import complete
from service.cli.http.client import JOBS, Client
from service.cli.http.partial import Partial
from service.cli.options import client_of
from service.cli.terminal.errors import CommandError
from service.cli.terminal.interrupts import explained
from service.cli.terminal.output import JsonFlag, console, print_json
from service.cli.terminal.progress import transfer
from service.jobs.results.vllm_command import serve_line
from service.platform.archives import BadArchive
from service.platform.archives import unpack as unpack_into

ATTEMPTS = 5
NOTHING_LEFT = "range_not_satisfiable"
SHA256 = re.compile(r"[0-9a-f]{64}")


def download(
    context: typer.Context,
    job_id: Annotated[str, typer.Argument(metavar="JOB", autocompletion=complete.jobs)],
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
    serve = _serve_line(path, checkpoint or job_id) if extract else ""
    if as_json:
        print_json({"path": str(path), "sha256": sha256} | ({"serve": serve} if serve else {}))
    else:
        console.print(f"{path}  sha256 {sha256}", soft_wrap=True)
        if serve:
            console.print(serve, soft_wrap=True)


def _serve_line(folder: Path, name: str) -> str:
    """How vLLM serves what was unpacked; empty where nothing beside the weights says it."""
    manifest = folder / "manifest.json"
    if not manifest.is_file():
        return ""
    return serve_line(json.loads(manifest.read_text(encoding="utf-8")), name=name, path=str(folder))


def fetch_adapter(
    client: Client, job_id: str, to: Path, *, checkpoint: str | None = None
) -> tuple[Path, str]:
    """Downloads `<job>.tar.gz` into `to`; returns its path and its verified SHA-256.

    A broken transfer goes on where it stopped, one that was broken off by Ctrl-C with the next command.
    Raises CommandError where the digest is another, Interrupted.
    """
    target = to / f"{checkpoint or job_id}.tar.gz"
    return target, fetch(client, f"{JOBS}/{job_id}/adapter", target, checkpoint=checkpoint)


def fetch(client: Client, path: str, target: Path, **params: Any) -> str:
    """Downloads `path` to `target`; returns the verified SHA-256. Raises CommandError, Interrupted."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with Partial.of(target) as partial, explained(partial.meaning):
        sha256 = _transfer(client, path, partial, **params)
        if not sha256:
            raise CommandError("the service gave no sha256 for this download", code="damaged")
        if (found := partial.sha256()) != sha256:
            partial.forget()
            raise CommandError(f"the download is damaged: sha256 {found} instead of {sha256}", code="damaged")
        os.replace(partial.path, target)
    return sha256


def unpack(archive: Path, folder: Path | None = None) -> Path:
    """Unpacks beside the archive, into a folder of its name or the given one; one that was there is replaced.

    Links, devices and names that leave the folder are refused.
    """
    folder = folder or archive.with_name(archive.name.removesuffix(".tar.gz"))
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


def _transfer(client: Client, path: str, partial: Partial, **params: Any) -> str:
    """Writes the body to `partial`; returns the SHA-256 that the service gives for it, or an empty text."""
    with transfer(f"download {partial.name}") as advance:
        for attempt in range(1, ATTEMPTS + 1):
            headers = {"Accept-Encoding": "identity", **partial.range}
            try:
                with client.streaming(path, headers=headers, **params) as response:
                    is_rest = response.status_code == httpx.codes.PARTIAL_CONTENT
                    partial.begin(response.headers.get("etag", ""), is_rest=is_rest)
                    total = _total(response)
                    for chunk in response.iter_raw():
                        advance(partial.add(chunk), total)
                return _promised(response)
            except CommandError as error:
                if error.code != NOTHING_LEFT or not partial.range:
                    raise
                partial.forget()  # all of it is there already: seen again from its beginning
            except httpx.TransportError as error:
                if attempt == ATTEMPTS:
                    raise CommandError(f"the download broke off: {error}", code="unreachable") from error
                time.sleep(0.5 * attempt)
    raise AssertionError("the last attempt returns or raises")


def _total(response: httpx.Response) -> int | None:
    whole = response.headers.get("content-range", "").rpartition("/")[2]
    total = whole or response.headers.get("content-length")
    return int(total) if total else None


def _promised(response: httpx.Response) -> str:
    sha256: str = response.headers.get("x-checksum-sha256", "")
    return sha256 if SHA256.fullmatch(sha256) else ""
