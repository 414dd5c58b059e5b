"""For tests of files: uploads, refusals, a job's row, stored objects."""

from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient
from sqlalchemy import update

from service.platform.clock import db_now
from service.platform.db import Database
from service.platform.ids import new_id
from service.platform.tables.core import File, Job
from service.settings import Settings

ROWS = b'{"messages": [{"role": "user", "content": "2+2?"}], "answer": 4}\n' * 3


def other_rows(number: int) -> bytes:
    """A file of its own for each number."""
    return ROWS + b'{"number": %d}\n' % number


"""For refusals before the database is queried."""


def upload(client: TestClient, content: bytes = ROWS, name: str = "train.jsonl", **fields: str) -> Any:
    form = {"purpose": "fine-tune", **fields}
    return client.post("/v1/files", files={"file": (name, content)}, data=form)


def expires_after(seconds: str) -> dict[str, Any]:
    return {"expires_after[anchor]": "created_at", "expires_after[seconds]": seconds}


def uploaded(client: TestClient, content: bytes = ROWS, **more: str) -> str:
    answer = upload(client, content, **more)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def refusal(answer: Any) -> tuple[int, str | None, str]:
    error = answer.json()["error"]
    return answer.status_code, error["param"], error["code"]


def job_row(**columns: Any) -> Job:
    given = {"tenant": "tenant-a", "state": "queued", "model": "tiny", "seed": 1, "method": {}, **columns}
    return Job(id=new_id("ftjob"), **given)


def add_job(database: Database, **columns: Any) -> str:
    """A job of the first tenant; its id."""
    job = job_row(**columns)
    with database.transaction() as session:
        session.add(job)
    return job.id


def stored(settings: Settings) -> list[str]:
    folder = Path(settings.storage_location.removeprefix("file://"))
    return [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]


def expire(database: Database, file_id: str) -> None:
    with database.transaction() as session:
        session.execute(update(File).where(File.id == file_id).values(expires_at=db_now() - 1))
