"""What tests of jobs need: a model folder without weights, datasets, requests, and rows in any state."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from fastapi.testclient import TestClient
from pydantic import TypeAdapter
from sqlalchemy import func, select
from tokenizers import Tokenizer, models, pre_tokenizers

from grpo_engine.config.job import Method
from service.jobs.model.states import HELD, TERMINAL, JobState
from service.jobs.store.machines import Machine, announce
from service.platform.clock import db_now
from service.platform.db import Database
from service.platform.ids import new_id
from service.platform.storage import open_storage
from service.platform.tables.core import Artifact, Checkpoint, File, Job
from service.settings import Settings

METHOD: TypeAdapter[Any] = TypeAdapter(Method)
MODEL = "tiny"
CONTEXT_TOKENS = 64
CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}> {{ message.content }} "
    "{% endfor %}{% if add_generation_prompt %}<assistant> {% endif %}"
)
GRADER = {
    "type": "string_check",
    "name": "exact",
    "operation": "eq",
    "input": "{{sample.output_text}}",
    "reference": "{{item.answer}}",
}


def make_model(home: Path, name: str = MODEL, *, template: str | None = CHAT_TEMPLATE) -> Path:
    """A catalogue folder whose tokenizer counts words."""
    folder = home / "models" / name
    folder.mkdir(parents=True)
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": CONTEXT_TOKENS}))
    settings = {"eos_token": "</s>"} | ({"chat_template": template} if template else {})
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def row(question: str = "What is 2+2?", answer: str = "4", **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}], "answer": answer, **more}


def chat(question: str = "Hello", reply: str = "Hi") -> dict[str, Any]:
    """A row for supervised training."""
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": reply}]
    return {"messages": messages}


def jsonl(*rows: Any) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in rows)


def upload(client: httpx.Client, content: bytes | None = None) -> str:
    """Id of a file that was uploaded over HTTP."""
    content = jsonl(row(), row("What is 3+3?", "6")) if content is None else content
    answer = client.post("/v1/files", files={"file": ("train.jsonl", content)}, data={"purpose": "fine-tune"})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def store_file(
    settings: Settings,
    database: Database,
    content: bytes,
    *,
    tenant: str = "tenant-a",
    purpose: str = "fine-tune",
    filename: str = "train.jsonl",
) -> str:
    """Id of a file that came past the upload's own checks, or was made by a worker."""
    file_id = new_id("file")
    open_storage(settings.storage_location).put(f"files/{file_id}", content)
    with database.transaction() as session:
        session.add(
            File(
                id=file_id,
                tenant=tenant,
                filename=filename,
                purpose=purpose,
                num_bytes=len(content),
                sha256=hashlib.sha256(content).hexdigest(),
                storage_key=f"files/{file_id}",
            )
        )
    return file_id


def reinforcement(grader: Mapping[str, Any] = GRADER, **hyperparameters: Any) -> dict[str, Any]:
    given = {"max_completion_tokens": 16, **hyperparameters}
    return {"type": "reinforcement", "reinforcement": {"grader": grader, "hyperparameters": given}}


def request(training_file: str, **more: Any) -> dict[str, Any]:
    """Body of a POST."""
    return {"model": MODEL, "training_file": training_file, "method": reinforcement(), **more}


def create(client: TestClient, training_file: str, **more: Any) -> dict[str, Any]:
    answer = client.post("/v1/fine_tuning/jobs", json=request(training_file, **more))
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def num_jobs(database: Database) -> int:
    with database.reading() as session:
        return session.scalar(select(func.count()).select_from(Job)) or 0


def expanded(**hyperparameters: Any) -> dict[str, Any]:
    """A method as the service stores it."""
    method = METHOD.validate_python(reinforcement(**hyperparameters))
    return dict(METHOD.dump_python(method, mode="json"))


def add_job(database: Database, state: JobState, *, tenant: str = "tenant-a", **more: Any) -> str:
    """Id of a job written as a worker would have left it."""
    job_id = new_id("ftjob")
    columns: dict[str, Any] = {
        "model": MODEL,
        "training_file": "file-1",
        "seed": 7,
        "method": expanded(),
        "total_steps": 10,
        "phase": state.value,
    }
    with database.transaction() as session:
        now = session.scalars(select(db_now())).one()
        if state in HELD:
            columns |= {"started_at": now - 20, "step": 4, "attempt": 1, "phase": "training"}
        if state in TERMINAL:
            columns |= {"finished_at": now}
        if state is JobState.FAILED:
            columns["failure"] = {"code": "no_signal", "message": "m", "hint": "h", "evidence": []}
        session.add(Job(id=job_id, tenant=tenant, state=state.value, **(columns | more)))
    return job_id


def add_checkpoint(settings: Settings, database: Database, job_id: str, step: int, content: bytes) -> str:
    checkpoint_id, key = new_id("ftckpt", "_"), f"jobs/{job_id}/checkpoints/{step}-1/adapter.tar.gz"
    open_storage(settings.storage_location).put(key, content)
    with database.transaction() as session:
        session.add(
            Checkpoint(
                id=checkpoint_id,
                job_id=job_id,
                step=step,
                fence=1,
                state_key=None,
                state_sha256="0" * 64,
                adapter_key=key,
                adapter_sha256=hashlib.sha256(content).hexdigest(),
                adapter_bytes=len(content),
                metrics={"train_mean_reward": step / 10},
            )
        )
    return checkpoint_id


def lessons_method() -> dict[str, Any]:
    """The stored method of a training-free job."""
    method = {"type": "training_free", "training_free": {"grader": GRADER}}
    return dict(METHOD.validate_python(method).model_dump(mode="json"))


def finish_export(settings: Settings, database: Database, export_id: str, content: bytes) -> None:
    """An export as a worker leaves it."""
    with database.reading() as session:
        tenant = session.get_one(Job, export_id).tenant
    about = {"tenant": tenant, "purpose": "fine-tune-results", "filename": "merged.tar"}
    file_id = store_file(settings, database, content, **about)
    with database.transaction() as session:
        session.add(Artifact(id=file_id, job_id=export_id, kind="merged", step=10, fence=1))
        session.get_one(Job, export_id).state = JobState.SUCCEEDED.value


def add_artifact(
    settings: Settings, database: Database, job_id: str, kind: str, content: bytes, step: int = 10
) -> str:
    """Id of a result file."""
    file_id = store_file(settings, database, content, purpose="fine-tune-results", filename=f"{kind}.bin")
    with database.transaction() as session:
        session.add(Artifact(id=file_id, job_id=job_id, kind=kind, step=step, fence=1))
    return file_id


def report_machine(
    database: Database, host: str = "worker-1", machine: Machine = Machine(frozenset()), pool: str = "default"
) -> None:
    """Report a machine as its worker does."""
    with database.transaction() as session:
        announce(session, host, pool, machine)
