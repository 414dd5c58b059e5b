"""`grpo push`: a job's weights with their model card into a repository of the Hugging Face hub.

Boundary: the token comes from HF_TOKEN and goes to the hub alone; HF_ENDPOINT selects another hub.
"""

import os
import re
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from service.cli.commands.download import fetch_adapter, unpack
from service.cli.options import Checkpoint, JobId, client_of
from service.cli.terminal.errors import CommandError
from service.cli.terminal.output import JsonFlag, print_line

REPOSITORY = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}")


def push(
    context: typer.Context,
    job_id: JobId,
    repo: Annotated[str, typer.Option(help="ORG/NAME; created if it does not exist.")],
    private: Annotated[bool, typer.Option("--private", help="Make it private.")] = False,
    checkpoint: Checkpoint = None,
    as_json: JsonFlag = False,
) -> None:
    """Upload a job's adapter, model card and manifest to the Hugging Face hub, with HF_TOKEN."""
    token = os.environ.get("HF_TOKEN", "").strip()
    if not token:
        hint = "create a token with write permission on the hub's settings page, and set HF_TOKEN to it"
        raise CommandError("HF_TOKEN is not set", code="no_token", hint=hint)
    _check_name(repo)
    with tempfile.TemporaryDirectory(prefix="grpo-push-") as scratch:
        archive, sha256 = fetch_adapter(client_of(context), job_id, Path(scratch), checkpoint=checkpoint)
        url = _upload(unpack(archive), repo, token, private=private, message=f"{job_id}, sha256 {sha256}")
    print_line({"url": url, "sha256": sha256}, url, as_json=as_json)


def _check_name(repo: str) -> None:
    """Raises CommandError for a name that no repository of the hub can have."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    if not REPOSITORY.fullmatch(repo):
        raise CommandError(f"{repo} is not a repository: write ORG/NAME", param="repo")
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise CommandError(f"{repo} is not a repository: {error}", param="repo") from None


def _upload(folder: Path, repo: str, token: str, *, private: bool, message: str) -> str:
    """Uploads the whole folder in one commit; returns the repository's URL."""
    import httpx2  # the hub's HTTP library
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    hub = HfApi(token=token, library_name="grpo-service")
    try:
        url = hub.create_repo(repo, private=True if private else None, exist_ok=True)
        hub.upload_folder(repo_id=repo, folder_path=folder, commit_message=f"Upload {message}")
    except HfHubHTTPError as error:
        status = error.response.status_code
        reason = error.server_message or f"{status} {error.response.reason_phrase}"
        hint = "does this HF_TOKEN have write permission there?" if status < 500 else None
        raise CommandError(f"the hub refused: {reason}", code="hub_refused", hint=hint) from None
    except (OSError, httpx2.HTTPError) as error:
        hint = "nothing was uploaded: check the network, or HF_ENDPOINT"
        message = f"no response from {hub.endpoint}: {error or type(error).__name__}"
        raise CommandError(message, code="hub_unreachable", hint=hint) from None
    return str(url)
