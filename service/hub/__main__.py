"""The child process that sends requests to the hub: `python -m service.hub ID [--revision R] --home HOME …`.

Checks a model's size, downloads its description (config, tokenizer) and with `--weights` all of it. Prints
one line of JSON. HF_ENDPOINT and HF_TOKEN select the hub and the account. Files are resumed after a kill.
"""

import argparse
import errno
import fcntl
import json
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from huggingface_hub import HfApi, constants, hf_hub_url
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import build_hf_headers, disable_progress_bars

from grpo_engine.contract.manifest import sha256_of
from grpo_engine.files.atomic_folder import fsync
from grpo_engine.files.model_folder import unsupported_format
from service.hub.models import HubError, HubModel, as_line, folder_of, is_complete

LIBRARY = "grpo-service"
TIMEOUT_SECONDS = 20
MAX_DESCRIPTION_BYTES = 200 * 2**20
GB = 10**9
HUB = re.sub("//[^/]*@", "//***@", constants.ENDPOINT)
"""The hub's address for messages to tenants, without the password that a mirror's address may contain."""


@dataclass(frozen=True)
class HubFile:
    """One file of a repository."""

    name: str
    size_bytes: int
    sha256: str | None
    """None for a small file, which git stores itself."""

    @property
    def is_weights(self) -> bool:
        return self.name.startswith("model") and self.name.endswith(".safetensors")

    @property
    def is_description(self) -> bool:
        """Configuration, tokenizer and chat template; never code."""
        return PurePosixPath(self.name).suffix in (".json", ".jinja", ".txt", ".model")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("id")
    parser.add_argument("--revision")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--max-bytes", type=int)
    parser.add_argument("--keep-free-bytes", type=int, help="check the disk; bytes to leave free on it")
    parser.add_argument("--weights", action="store_true")
    given = parser.parse_args()
    disable_progress_bars()
    try:
        with named_errors(given.id, given.revision):
            print(as_line(obtain(given)))
    except HubError as error:
        print(as_line(error))
        return 1
    return 0


def obtain(given: argparse.Namespace) -> HubModel:
    """Check the model and download what is missing. Raises HubError."""
    info = HfApi(library_name=LIBRARY).model_info(
        given.id, revision=given.revision, files_metadata=True, timeout=TIMEOUT_SECONDS
    )
    files = [
        HubFile(each.rfilename, each.size or 0, each.lfs.sha256 if each.lfs else None)
        for each in info.siblings or ()
        if "/" not in each.rfilename
    ]
    weights = [file for file in files if file.is_weights]
    description = [file for file in files if file.is_description]
    model = HubModel(given.id, str(info.sha), sum(file.size_bytes for file in [*weights, *description]))
    _check(model, weights, description, given.max_bytes)
    folder = folder_of(given.home, model.id, model.revision)
    wanted = description + (weights if given.weights else [])
    if given.keep_free_bytes is not None:
        _check_disk(model, folder, given.home, given.keep_free_bytes)
    if not all((folder / file.name).is_file() for file in wanted):
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            for file in wanted:
                download(model, file, folder)
    _check_format(model, folder)
    if not is_complete(folder, {file.name for file in weights}):
        reason = f"the safetensors files of {model.id} are not those of its index"
        raise HubError("model_not_supported", reason)
    return model


def _check(
    model: HubModel, weights: list[HubFile], description: list[HubFile], max_bytes: int | None
) -> None:
    if not weights:
        reason = f"{model.id} has no model*.safetensors"
        raise HubError("model_not_supported", reason, "Only safetensors weights are loaded.")
    if not any(file.name == "config.json" for file in description):
        raise HubError("model_not_supported", f"{model.id} has no config.json")
    if sum(file.size_bytes for file in description) > MAX_DESCRIPTION_BYTES:
        raise HubError("model_not_supported", f"the configuration and tokenizer of {model.id} are too large")
    if max_bytes is not None and model.size_bytes > max_bytes:
        size = f"{model.size_bytes / GB:.1f} GB"
        reason = f"{model.id} has {size}, more than the limit of {max_bytes / GB:.1f} GB"
        raise HubError("model_too_large", reason, "The operator's GRPO_HUB_MAX_BYTES is the limit.")


def _check_format(model: HubModel, folder: Path) -> None:
    with suppress(ValueError, RecursionError):  # what is not JSON is refused with the job
        config = json.loads((folder / "config.json").read_bytes())
        if reason := unsupported_format(config, is_quantized_again=False):
            raise HubError("model_not_supported", f"{model.id} cannot be loaded: {reason}")


def _check_disk(model: HubModel, folder: Path, home: Path, keep_free_bytes: int) -> None:
    present = sum(file.stat().st_size for file in folder.glob("*")) if folder.is_dir() else 0
    home.mkdir(parents=True, exist_ok=True)
    missing, free = model.size_bytes - present, shutil.disk_usage(home).free
    if missing > 0 and free < missing + keep_free_bytes:
        reason = f"{model.id} needs {missing / GB:.1f} GB more on the disk, where {free / GB:.1f} GB are free"
        raise HubError("disk_full", reason, "Free space, or `grpo models remove` a model.")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process downloads a model; others wait. The lock ends with the process."""
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def download(model: HubModel, file: HubFile, folder: Path) -> None:
    """Download one file, or the rest of it after a kill. Raises HubError if its content is wrong."""
    target, part = folder / file.name, folder / f"{file.name}.part"
    if target.is_file():
        return
    with part.open("ab") as out:
        if out.tell() > file.size_bytes:
            out.truncate(0)
            out.seek(0)  # otherwise the next byte would be requested after the file's end
        http_get(
            hf_hub_url(model.id, file.name, revision=model.revision),
            out,
            resume_size=out.tell(),
            headers=build_hf_headers(library_name=LIBRARY),
            expected_size=file.size_bytes,
        )
    if file.sha256 is not None and file.sha256 != sha256_of(part):
        part.unlink()
        reason = f"{file.name} of {model.id} does not have the checksum that the hub states"
        raise HubError("hub_unreachable", reason, is_temporary=True)
    fsync(part)  # a file that has its name is never downloaded again
    part.rename(target)


@contextmanager
def named_errors(id: str, revision: str | None) -> Iterator[None]:
    """Turn the hub's and the disk's errors into HubError."""
    try:
        yield
    except GatedRepoError as error:
        hint = f"Accept its terms at {HUB}/{id}, and set that account's HF_TOKEN for the API and the workers."
        raise HubError("model_gated", f"{id} is gated", hint) from error
    except RevisionNotFoundError as error:
        raise HubError("model_not_found", f"{id} has no revision {revision}") from error
    except RepositoryNotFoundError as error:
        hint = "Check the name; a private model needs HF_TOKEN for the API and the workers."
        raise HubError("model_not_found", f"there is no model {id} on {HUB}", hint) from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        reason = f"{HUB} responded with {status} for {id}"
        raise HubError("hub_unreachable", reason, is_temporary=status >= 500 or status == 429) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise HubError("disk_full", f"the disk is full: {id} was not downloaded") from error
        raise _unreachable(id, error) from error
    except HTTPError as error:
        raise _unreachable(id, error) from error


def _unreachable(id: str, error: Exception) -> HubError:
    reason = f"{HUB} did not deliver {id}: {type(error).__name__}: {str(error)[:200]}"
    hint = "Check the network, a proxy, and HF_ENDPOINT; or add a folder: grpo models add NAME FOLDER."
    return HubError("hub_unreachable", reason, hint, is_temporary=True)


if __name__ == "__main__":
    sys.exit(main())
