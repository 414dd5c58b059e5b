"""The audit of a job that changes while its archives are read."""

from collections.abc import Callable, Iterator

from fastapi.testclient import TestClient

from service.jobs.model.states import JobState
from service.jobs.results.evidence import audit_job
from service.jobs.store import history
from service.platform.db import Database
from service.platform.storage import Storage, open_storage
from service.platform.tables.core import Job
from service.settings import Settings
from tests.service.job_samples import add_checkpoint, add_job

RUNNING = (
    history.status(JobState.QUEUED, "The job is queued."),
    history.status(JobState.RUNNING, "Started.", 1),
)


class Interleaved(Storage):
    """A storage; another process makes a change just before the first object is read."""

    def __init__(self, storage: Storage, change: Callable[[], object]) -> None:
        self.__dict__.update(vars(storage))
        self._change: Callable[[], object] | None = change

    def stream(self, key: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        change, self._change = self._change, None
        if change is not None:
            change()
        return super().stream(key, start, end)


def with_history(database: Database, job_id: str, *entries: history.HistoryEntry) -> None:
    with database.transaction() as session:
        history.append(session, job_id, *entries)


def test_a_job_that_ends_meanwhile_is_sound(settings: Settings, database: Database) -> None:
    job_id = add_job(database, JobState.RUNNING, fence=1)
    with_history(database, job_id, *RUNNING)
    add_checkpoint(settings, database, job_id, 4, b"an adapter")

    def end() -> None:
        with_history(database, job_id, history.status(JobState.SUCCEEDED, "Finished.", 1))
        with database.transaction() as session:
            session.get_one(Job, job_id).state = JobState.SUCCEEDED.value

    storage = open_storage(settings.storage_location)
    assert audit_job(database, Interleaved(storage, end), job_id) == []


def test_a_job_whose_model_is_deleted_meanwhile_is_sound(
    client: TestClient, settings: Settings, database: Database, job_id: str
) -> None:
    with_history(database, job_id, *RUNNING, history.status(JobState.SUCCEEDED, "Finished.", 1))
    with database.reading() as session:
        model = session.get_one(Job, job_id).fine_tuned_model

    def delete() -> None:
        assert client.delete(f"/v1/models/{model}").status_code == 200

    storage = open_storage(settings.storage_location)
    assert audit_job(database, Interleaved(storage, delete), job_id) == []
