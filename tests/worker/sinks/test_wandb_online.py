"""W&B with a server that is down for a while."""

from service.jobs.progress.metrics import add_metrics
from service.platform.db import Database
from service.settings import Settings
from tests.conftest import on_sqlite
from tests.support.chat_server import ScriptedServer
from tests.support.servers import wait_until
from tests.worker.sinks.samples import (
    WANDB,
    add_job,
    claim,
    end,
    environment,
    make_due,
    make_steps,
    row_of,
    start,
    wait_for,
)
from tests.worker.sinks.wandb_server import WandbServer
from worker.sinks.wandb_files import newest_step

pytestmark = on_sqlite


def test_steps_that_a_killed_process_of_wandb_did_not_upload_are_sent_later(
    database: Database, settings: Settings
) -> None:
    wandb = WandbServer()
    job_id = add_job(database, WANDB, steps=3)
    with ScriptedServer(wandb.answer) as server:
        url = f"http://{server.host}"
        env = environment(settings, WANDB_MODE="online", WANDB_API_KEY="0" * 40, WANDB_BASE_URL=url)
        env |= {"HOME": str(settings.home)}
        first = claim(database)
        assert first is not None
        with start(first, env) as process:
            wait_until(lambda: wandb.steps == [0, 1], 120, "the server has the first steps")
            wandb.is_down = True
            make_long_steps(database, job_id, 4, 20)
            wait_until(lambda: (newest_step(settings.home, job_id) or 0) > 3, 120, "its file has more steps")
            process.kill()
        wandb.is_down = False
        end(database, job_id)
        make_due(database, job_id)
        second = claim(database)
        assert second is not None
        wait_for(start(second, env))
    assert wandb.steps == list(range(21))
    assert (row_of(database, job_id).state, row_of(database, job_id).step) == ("done", 20)


def make_long_steps(database: Database, job_id: str, first: int, last: int) -> None:
    """Steps with many metrics, because W&B writes its file in blocks of 32 KiB."""
    rows = [(step, {f"rewards/part_{n}/mean": 0.5 for n in range(300)}) for step in range(first, last + 1)]
    with database.transaction() as session:
        add_metrics(session, job_id, rows)
    make_steps(database, job_id, last, last)
