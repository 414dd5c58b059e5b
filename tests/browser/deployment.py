"""A deployment with finished, running, waiting and failed jobs.

Boundary: real processes (API, worker, engine children) and the public API; the engine is
`tests.browser.engine`, which needs no model.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from service.platform.db import connect
from service.settings import Settings
from service.web.auth import create_key
from tests.conftest import settings_for
from tests.e2e.api import Api, api_process
from tests.service.job_samples import MODEL, chat, jsonl, row
from tests.service.job_samples import upload as upload_file
from tests.support.forking import client as forking
from tests.support.servers import wait_until
from tests.worker.conftest import Processes

JOBS = "/v1/fine_tuning/jobs"
RUN_SECONDS = 60
GRADER = {
    "type": "multi",
    "name": "answer",
    "graders": {
        "correct": {"type": "numeric", "name": "correct", "reference": "{{item.answer}}"},
        "format": {"type": "format", "name": "format", "tags": ["answer"]},
    },
    "calculate_output": "0.8 * correct + 0.2 * format",
}


@dataclass
class Deployment:
    """The running service: `client` and `key` are tenant acme's; `jobs`: name of a story → job id."""

    api: Api
    jobs: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return self.api.url

    @property
    def client(self) -> httpx.Client:
        return self.api.client

    @property
    def key(self) -> str:
        return self.client.headers["Authorization"].removeprefix("Bearer ")

    def new_key(self, tenant: str, *scopes: str) -> str:
        """A key with these scopes (default: read and write)."""
        database = connect(self.api.settings)
        with database.transaction() as session:
            key = create_key(session, tenant, scopes=scopes or ("read", "write"))
        database.engine.dispose()
        return key

    def get(self, path: str, **query: Any) -> Any:
        """The response's JSON."""
        answer = self.client.get(path, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def job(self, name: str) -> dict[str, Any]:
        """The current state of this story's job."""
        return dict(self.get(f"{JOBS}/{self.jobs[name]}"))

    def create(self, training_file: str, **more: Any) -> str:
        """Id of a job of 4 prompts × 8 completions with two graders, of 40 steps."""
        body = {"model": MODEL, "training_file": training_file, "method": reinforcement(), **more}
        answer = self.client.post(JOBS, json=body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])

    def wait(self, name: str, status: str) -> None:
        wait_until(lambda: self.job(name)["status"] == status, RUN_SECONDS, f"{name} is {status}")


def reinforcement(**hyperparameters: Any) -> dict[str, Any]:
    given = {"n_steps": 40, "checkpoint_interval": 10, "group_size": 8, "prompts_per_step": 4}
    given |= {"max_completion_tokens": 16, "learning_rate": 1e-5, **hyperparameters}
    return {"type": "reinforcement", "reinforcement": {"grader": GRADER, "hyperparameters": given}}


def questions(**faults: Any) -> bytes:
    """Eight rows; the first one controls the fake engine's run."""
    rows = [row(f"What is {n} + {n}?", str(2 * n)) for n in range(8)]
    rows[0]["faults"] = {"*": faults}
    return jsonl(*rows)


@contextmanager
def deployment(home: Path, database_url: str) -> Iterator[Deployment]:
    """API and worker; all stories have run on entry, and the processes end with the block."""
    settings = settings_for(
        home,
        database_url,
        engine_python=forking.engine_python(),
        engine_module="tests.browser.engine",
        poll_seconds=0.05,
        heartbeat_seconds=0.5,
        chat_module="tests.support.fake_serving",
    )
    with api_process(settings) as api:
        workers = Processes(settings)
        try:
            api.start()
            workers.start_worker()
            deployed = Deployment(api)
            tell_stories(deployed)
            yield deployed
        finally:
            workers.close()


def tell_stories(deployed: Deployment) -> None:
    """Several jobs that finish, then one that keeps running, and one that waits for it."""
    quick = upload_file(deployed.client, questions(step_seconds=0))
    held_out = upload_file(deployed.client, questions())
    jobs = deployed.jobs
    jobs["first"] = deployed.create(quick, suffix="first-try", validation_file=held_out, seed=7)
    jobs["faster"] = deployed.create(
        quick,
        suffix="higher-rate",
        validation_file=held_out,
        seed=8,
        metadata={"team": "maths", "try": "2"},
        method=reinforcement(learning_rate=4e-5, beta=0.04, group_size=4),
    )
    lessons = upload_file(deployed.client, jsonl(*(chat(f"Hello {n}", "Hi") for n in range(8))))
    supervised = {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 3, "batch_size": 2}}}
    jobs["supervised"] = deployed.create(lessons, suffix="warm-up", method=supervised)
    jobs["failed"] = deployed.create(upload_file(deployed.client, questions(fail_at=15)))
    jobs["guarded"] = deployed.create(upload_file(deployed.client, questions(guard_at=14)), suffix="guarded")
    slow = upload_file(deployed.client, questions(step_seconds=0.7))
    jobs["running"] = deployed.create(
        slow, suffix="long", metadata={"team": "maths"}, method=reinforcement(n_steps=20_000)
    )
    jobs["queued"] = deployed.create(quick, metadata={"team": "language"})
    ends = {"first": "succeeded", "failed": "failed", "guarded": "paused", "supervised": "succeeded"}
    for name, status in (ends | {"faster": "succeeded", "running": "running"}).items():
        deployed.wait(name, status)
    wait_until(lambda: deployed.job("running")["progress"]["step"] > 2, RUN_SECONDS, "it has made steps")


def main() -> None:
    """`python -m tests.browser.deployment HOME`: the same deployment for manual use, until Ctrl-C."""
    import signal
    import sys

    from service.platform.migrate import upgrade

    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    home = Path(sys.argv[1])
    home.mkdir(parents=True)
    settings = Settings.model_validate({"home": home})
    upgrade(settings)
    with deployment(home, f"sqlite:///{home / 'grpo.db'}") as deployed:
        print(json.dumps({"url": deployed.url, "key": deployed.key, "jobs": deployed.jobs}), flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
