"""A sweeper announces its machine only beside a worker."""

import pytest
from sqlalchemy import func, select

from service.platform.db import Database
from service.platform.tables.workers import WorkerHost
from service.settings import Settings
from tests.support.servers import wait_until
from tests.worker.conftest import Processes
from tests.worker.jobs import insert_job, read_job

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.mark.parametrize(("options", "num_machines"), [((), 0), (("--beside-worker",), 1)])
def test_a_sweeper_without_a_worker_announces_no_machine(
    database: Database,
    settings: Settings,
    processes: Processes,
    options: tuple[str, ...],
    num_machines: int,
) -> None:
    earlier = insert_job(database, state="running", fence=1, attempt=1, lease_expires_at=1.0)
    processes.start("-m", "worker.sweeper", *options)
    wait_until(lambda: read_job(database, earlier).state == "queued", 30)
    later = insert_job(database, state="running", fence=1, attempt=1, lease_expires_at=1.0)
    wait_until(lambda: read_job(database, later).state == "queued", 30)
    with database.reading() as session:
        assert session.scalar(select(func.count()).select_from(WorkerHost)) == num_machines
