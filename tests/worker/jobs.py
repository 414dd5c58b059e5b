"""Jobs and datasets inserted into the database and the storage without the HTTP API."""

import hashlib
import itertools
import json
from typing import Any

from sqlalchemy import select, update

from grpo_engine.config.job import Reinforcement, hyperparameters_of
from service.jobs.model import names
from service.jobs.model.states import JobState
from service.jobs.store import claiming, queue
from service.jobs.store.claiming import ClaimedJob
from service.platform.db import Database
from service.platform.storage import Storage
from service.platform.tables.core import Checkpoint, File, Job, JobEvent

_numbers = itertools.count(1)


def method(**hyperparameters: Any) -> Reinforcement:
    """A small reinforcement method: 10 steps, a checkpoint every 5 steps."""
    given = {"n_steps": 10, "checkpoint_interval": 5, "group_size": 2, "prompts_per_step": 1}
    return Reinforcement.model_validate(
        {
            "type": "reinforcement",
            "reinforcement": {
                "grader": {
                    "type": "string_check",
                    "input": "{{sample.output_text}}",
                    "reference": "{{item.answer}}",
                    "operation": "eq",
                },
                "hyperparameters": given | hyperparameters,
            },
        }
    )


def insert_dataset(database: Database, storage: Storage, faults: dict[str, Any] | None = None) -> str:
    """Eight rows; the first contains the faults for `tests.support.fake_engine`. Returns the file id."""
    file_id = f"file-test{next(_numbers)}"
    rows: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": f"{n} + {n}"}], "answer": str(2 * n)} for n in range(8)
    ]
    rows[0]["faults"] = faults or {}
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    return insert_file(database, storage, file_id, content)


def insert_file(
    database: Database, storage: Storage, file_id: str, content: bytes, filename: str = "train.jsonl"
) -> str:
    """An uploaded file of tenant `acme`. Returns its id."""
    storage.put(f"files/{file_id}", content)
    with database.transaction() as session:
        session.add(
            File(
                id=file_id,
                tenant="acme",
                filename=filename,
                purpose="fine-tune",
                num_bytes=len(content),
                sha256=hashlib.sha256(content).hexdigest(),
                storage_key=f"files/{file_id}",
            )
        )
    return file_id


def checkpoint(job_id: str, step: int, fence: int = 1) -> Checkpoint:
    """A new checkpoint's row."""
    return Checkpoint(
        id=f"ftckpt_{job_id}-{step}",
        job_id=job_id,
        step=step,
        fence=fence,
        state_key=f"s-{step}",
        state_sha256="0" * 64,
        adapter_key=f"a-{step}",
        adapter_sha256="1" * 64,
        adapter_bytes=5,
    )


def insert_job(database: Database, training_file: str = "file-none", **values: Any) -> str:
    """A queued job (a `probe` or an `export`, if that is given) of tenant `acme` on model `tiny`.

    Returns its id.
    """
    kinds = {"probe": names.PROBE, "export": names.EXPORT}
    kind = next((prefix for name, prefix in kinds.items() if name in values), "ftjob")
    job_id = f"{kind}-{next(_numbers):024d}"
    shape = method(**values.pop("hyperparameters", {}))
    given = {
        "tenant": "acme",
        "state": JobState.QUEUED.value,
        "model": "tiny",
        "training_file": training_file,
        "seed": 7,
        "method": shape.model_dump(mode="json"),
        "total_steps": hyperparameters_of(shape).total_steps(8),
    }
    with database.transaction() as session:
        session.add(Job(id=job_id, **given | values))
    return job_id


def read_job(database: Database, job_id: str) -> Job:
    """The current row."""
    with database.reading() as session:
        return session.get_one(Job, job_id)


def claim(database: Database, worker: str = "w", lease_seconds: float = 60) -> ClaimedJob | None:
    with database.connection() as session:
        return claiming.claim(session, pool="default", worker=worker, lease_seconds=lease_seconds)


def claimed(database: Database, **values: Any) -> ClaimedJob:
    insert_job(database, **values)
    job = claim(database)
    assert job is not None
    return job


def cancel(database: Database, job_id: str, tenant: str = "acme") -> None:
    """Request the end of a job."""
    with database.transaction() as session:
        queue.request(session, tenant, job_id, "cancel")


def expire_leases(database: Database) -> None:
    with database.transaction() as session:
        held = update(Job).where(Job.lease_expires_at.is_not(None))
        session.execute(held.values(lease_expires_at=1.0))


def recorded_states(database: Database, job_id: str) -> list[str]:
    """The states in the job's status events."""
    found = select(JobEvent).where(JobEvent.job_id == job_id, JobEvent.type == "status")
    with database.reading() as session:
        return [row.data["state"] for row in session.scalars(found.order_by(JobEvent.sequence))]
