"""W&B's unmodified sync of OpenAI's fine-tunes against this service: it reads `result_files[0]`.

In W&B's offline mode, which logs everything except datasets: those need its server.
"""

import os
import subprocess
import sys
from pathlib import Path

from service.jobs.model.states import JobState
from service.jobs.progress.metrics import to_csv
from service.platform.db import Database
from service.settings import Settings
from tests.conftest import on_sqlite
from tests.service.job_samples import add_artifact, add_job
from worker.sinks.wandb_files import rows

pytestmark = on_sqlite

ROWS = [{"step": 1, "reward": 0.25, "kl": 0.5}, {"step": 2, "reward": 0.5, "eval/reward": 0.75}]
SYNC = """
import sys
from openai import OpenAI
from wandb.integration.openai.fine_tuning import WandbLogger
client = OpenAI(base_url=sys.argv[1], api_key=sys.argv[2], max_retries=0)
WandbLogger._logged_in = True  # offline there is nothing to log in to
print(WandbLogger.sync(sys.argv[3], client, project="sums", log_datasets=False))
"""


def test_wandb_s_sync_for_openai_logs_every_step_of_a_job(
    server_url: str, api_key: str, settings: Settings, database: Database, tmp_path: Path
) -> None:
    job_id = add_job(database, JobState.SUCCEEDED, fine_tuned_model="ft:tiny:tenant-a::1")
    add_artifact(settings, database, job_id, "adapter", b"weights")
    add_artifact(settings, database, job_id, "metrics", to_csv(ROWS).encode())
    env = {**os.environ, "WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "HOME": str(tmp_path)}
    env |= {"WANDB_SILENT": "true", "WANDB_BASE_URL": "http://127.0.0.1:9"}
    command = [sys.executable, "-c", SYNC, f"{server_url}/v1", api_key, job_id]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert "wandb sync completed successfully" in done.stdout, done.stderr
    (file,) = tmp_path.glob(f"wandb/offline-run-*/run-{job_id}.wandb")
    shown = [
        {name: row[name] for name in ("_step", "reward", "kl", "eval/reward") if name in row}
        for row in rows(file)
    ]
    assert shown == [
        {"_step": 1, "reward": 0.25, "kl": 0.5},
        {"_step": 2, "reward": 0.5, "eval/reward": 0.75},
    ]
