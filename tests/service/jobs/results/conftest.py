"""A job whose weights can be exported."""

from typing import Any

import pytest

from service.jobs.model import names
from service.jobs.model.states import JobState
from service.platform.db import Database
from service.platform.tables.core import Job
from service.settings import Settings
from tests.service.job_samples import add_artifact, add_job, make_model


def add_tuned(settings: Settings, database: Database, **more: Any) -> str:
    job_id = add_job(database, JobState.SUCCEEDED, **more)
    add_artifact(settings, database, job_id, "adapter", b"an adapter")
    with database.transaction() as session:
        job = session.get_one(Job, job_id)
        job.fine_tuned_model = names.model_of(job)
    return job_id


@pytest.fixture
def job_id(settings: Settings, database: Database) -> str:
    """A succeeded job whose base model is in the catalogue."""
    make_model(settings.home)
    return add_tuned(settings, database)
