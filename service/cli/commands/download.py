"""`grpo download`: saves a job's adapter on this disk, complete and verified, or leaves no file."""

import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer

from service.cli.http.client import JOBS, Client
from service.cli.http.partial import Partial
from service.cli.options import Checkpoint, JobId, client_of
from service.cli.terminal.errors import CommandError, interruptible
from service.cli.terminal.output import JsonFlag, print_line
from service.cli.terminal.progress import transfer
from service.jobs.results.vllm_command import serve_line
from service.platform.archives import BadArchive
from service.platform.archives import unpack as unpack_into

ATTEMPTS = 5
NOTHING_LEFT = "range_not_satisfiable"
WORDS = ("final", "best")
"""Values of `--checkpoint` that mean another checkpoint in each job."""
SHA256 = re.compile(r"[0-9a-f]{64}")


def download(
    context: typer.Context,
    job_id: JobId,
    to: Annotated[Path, typer.Option(help="Folder to write into.", file_okay=False)] = Path(),
    checkpoint: Checkpoint = None,
    extract: Annotated[bool, typer.Option("--extract", help="Unpack into a folder that PEFT loads.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Download the trained adapter (the whole model of a job with "lora": "full")."""
    path, sha256 = fetch_adapter(client_of(context), job_id, to, checkpoint=checkpoint)
    serve = None
    if extract:
        path = unpack(path)
        serve = _serve_line(path)
    document = {"path": str(path), "sha256": sha256} | ({"serve": serve} if serve else {})
    text = f"{path}  sha256 {sha256}" + (f"\n{serve}" if serve else "")
    print_line(document, text, as_json=as_json)


def _serve_line(folder: Path) -> str | None:
    """The command that serves the unpacked weights in vLLM; None if they have no manifest."""
    manifest = folder / "manifest.json"
    if not manifest.is_file():
        return None
    return serve_line(json.loads(manifest.read_text(encoding="utf-8")), name=folder.name, path=str(folder))


def fetch_adapter(
    client: Client, job_id: str, to: Path, *, checkpoint: str | None = None
) -> tuple[Path, str]:
    """Downloads `<job>.tar.gz` into `to`; returns its path and its verified SHA-256.

    A checkpoint's archive is named by its id; the words `best` and `final` follow the job's.
    A lost connection is resumed; after Ctrl-C the next command resumes the download.
    Raises CommandError (also if the digest differs), Interrupted.
    """
    name = f"{job_id}-{checkpoint}" if checkpoint in WORDS else checkpoint or job_id
    target = to / f"{name}.tar.gz"
    return target, fetch(client, f"{JOBS}/{job_id}/adapter", target, checkpoint=checkpoint)


def fetch(client: Client, path: str, target: Path, **params: Any) -> str:
    """Downloads `path` to `target`; returns the verified SHA-256. Raises CommandError, Interrupted."""
    with _folder(target.parent), Partial.of(target) as partial, interruptible(partial.interrupt_message):
        sha256 = _transfer(client, path, partial, **params)
        if not SHA256.fullmatch(sha256):
            raise CommandError("the service gave no sha256 for this download", code="damaged")
        if (found := partial.sha256()) != sha256:
            partial.forget()
            raise CommandError(f"the download is damaged: sha256 {found} instead of {sha256}", code="damaged")
        os.replace(partial.path, target)
    return sha256


@contextmanager
def _folder(folder: Path) -> Iterator[None]:
    """Creates the folder and its parents; if the block fails, those that are empty are removed again."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        with suppress(OSError):  # not empty: a partial download that can be resumed
            for each in missing:
                each.rmdir()
        raise


def unpack(archive: Path, folder: Path | None = None) -> Path:
    """Unpacks into `folder`, by default beside the archive under its name; an existing folder is replaced.

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
    """Writes the body to `partial`; returns the service's SHA-256 of it, or an empty text."""
    attempt = 0
    with transfer(f"download {partial.name}") as advance:
        while True:
            attempt += 1
            headers = {"Accept-Encoding": "identity", **partial.range}
            try:
                with client.streaming(path, headers=headers, **params) as response:
                    is_rest = response.status_code == httpx.codes.PARTIAL_CONTENT
                    partial.begin(response.headers.get("etag", ""), is_rest=is_rest)
                    total = _total(response)
                    for chunk in response.iter_raw():
                        advance(partial.add(chunk), total)
                    return str(response.headers.get("x-checksum-sha256", ""))
            except CommandError as error:
                if error.code != NOTHING_LEFT or not partial.range:
                    raise
                partial.forget()  # all bytes are here; only a new download returns their digest
            except httpx.TransportError as error:
                if attempt >= ATTEMPTS:
                    raise CommandError(f"the download was cut off: {error}", code="unreachable") from error
                time.sleep(0.5 * attempt)


def _total(response: httpx.Response) -> int | None:
    whole = response.headers.get("content-range", "").rpartition("/")[2]
    total = whole or response.headers.get("content-length")
    return int(total) if total else None
