"""`grpo push`: a job's weights with their model card into a repository of the Hugging Face hub.

Boundary: the token comes from HF_TOKEN and goes to the hub alone; HF_ENDPOINT names another hub.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from service.cli.commands.download import fetch_adapter, unpack
from service.cli.http import complete
from service.cli.options import client_of
from service.cli.terminal.errors import CommandError
from service.cli.terminal.output import JsonFlag, print_json, say

REPOSITORY = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}")


def push(
    context: typer.Context,
    job_id: Annotated[str, typer.Argument(metavar="JOB", autocompletion=complete.jobs)],
    repo: Annotated[str, typer.Option(help="ORG/NAME; made where it does not exist.")],
    private: Annotated[bool, typer.Option("--private", help="Make it private.")] = False,
    checkpoint: Annotated[
        str | None, typer.Option(help="best, or a checkpoint's id, instead of the final one.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Upload a job's adapter, model card and manifest to the Hugging Face hub, with HF_TOKEN."""
    token = os.environ.get("HF_TOKEN", "").strip()
    if not token:
        hint = "make a token that may write on the hub's settings page, and set HF_TOKEN to it"
        raise CommandError("HF_TOKEN is not set", code="no_token", hint=hint)
    if not REPOSITORY.fullmatch(repo):
        raise CommandError(f"{repo} is no repository: write ORG/NAME", param="repo")
    with client_of(context) as client, tempfile.TemporaryDirectory(prefix="grpo-push-") as scratch:
        archive, sha256 = fetch_adapter(client, job_id, Path(scratch), checkpoint=checkpoint)
        url = _upload(unpack(archive), repo, token, private=private, message=f"{job_id}, sha256 {sha256}")
    if as_json:
        print_json({"url": url, "sha256": sha256})
    else:
        say(url)


def _upload(folder: Path, repo: str, token: str, *, private: bool, message: str) -> str:
    """One commit of the whole folder; answers the repository's URL."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    hub = HfApi(token=token, library_name="grpo-service")
    try:
        made = hub.create_repo(repo, private=True if private else None, exist_ok=True)
        hub.upload_folder(repo_id=repo, folder_path=folder, commit_message=f"Upload {message}")
    except HfHubHTTPError as error:
        told = error.server_message or f"{error.response.status_code} {error.response.reason_phrase}"
        hint = (
            "has this HF_TOKEN the permission to write there?" if error.response.status_code < 500 else None
        )
        raise CommandError(f"the hub refused: {told}", code="hub_refused", hint=hint) from None
    except OSError as error:
        raise CommandError(f"no answer from the hub: {error}", code="unreachable") from None
    return str(made)
