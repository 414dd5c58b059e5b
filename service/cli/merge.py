"""`grpo merge`: a job's adapter merged into its base model, on this machine, by the engine's interpreter.

Boundary: the service stores adapters only; a merged model is as large as its base, so it is made where it is
wanted.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from service.cli import complete
from service.cli.client import JOBS
from service.cli.download import fetch_adapter, unpack
from service.cli.errors import CommandError
from service.cli.options import client_of
from service.cli.output import JsonFlag, print_json, say
from service.cli.server import settings_here

MANIFEST = "manifest.json"


def merge(
    context: typer.Context,
    job_id: Annotated[str, typer.Argument(metavar="JOB", autocompletion=complete.jobs)],
    to: Annotated[Path, typer.Option(help="Folder to make.", file_okay=False)],
    base: Annotated[
        str | None, typer.Option(help="Folder or hub id of the base model, where it is not in this home.")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="best, or a checkpoint's id, instead of the final one.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Download a job's adapter and merge it into its base model: safetensors that need no PEFT."""
    if to.exists():
        raise CommandError(f"{to} exists: a merge makes its folder", param="to")
    with client_of(context) as client, tempfile.TemporaryDirectory(prefix="grpo-merge-") as scratch:
        manifest = client.get(f"{JOBS}/{job_id}/manifest")
        method = manifest["method"]
        if method[method["type"]]["hyperparameters"].get("lora") == "full":
            raise CommandError("the job trained all weights: `grpo download --extract` has them whole")
        archive, _ = fetch_adapter(client, job_id, Path(scratch), checkpoint=checkpoint)
        adapter = unpack(archive)
        _run(*_base_of(manifest, base), adapter, to)
        if (adapter / MANIFEST).is_file():
            (to / MANIFEST).write_bytes((adapter / MANIFEST).read_bytes())
    line = f"vllm serve {to} --served-model-name {job_id}"
    if as_json:
        print_json({"path": str(to), "serve": line})
    else:
        say(f"{to}  {line}")


def _base_of(manifest: dict[str, Any], base: str | None) -> tuple[str, str | None]:
    """Where its weights are: as given, as this home's catalogue has it, or the hub's name."""
    if base is not None:
        return base, None
    from service.catalog import Catalog

    model = manifest["model"]
    entry = Catalog(settings_here()).find(model["base"])
    return (entry.path, entry.revision) if entry else (model["base"], model["revision"])


def _run(base: str, revision: str | None, adapter: Path, out: Path) -> None:
    """The engine's interpreter has what this one has not: torch."""
    command = [str(settings_here().engine_python), "-m", "grpo_engine.merge", "--base", base]
    command += ["--adapter", str(adapter), "--out", str(out)]
    command += ["--revision", revision] if revision else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        told = done.stderr.strip().splitlines()
        hint = "GRPO_ENGINE_PYTHON names an interpreter with torch; --base names the base model"
        raise CommandError(
            f"not merged: {told[-1] if told else 'no reason given'}", code="not_merged", hint=hint
        )
