"""A deployment with planted secrets, its successes and failures, and everything that it has written."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psycopg

from service.cli.commands.watch import watch_job
from service.cli.http.client import JOBS, Client
from service.platform.tables.core import Base
from tests.e2e.production.deployment import Production, production
from tests.service.embedded import call_grpo, grpo_job, run_grpo
from tests.support.moto import Moto
from tests.support.servers import Postgres, Redis, wait_until

DATABASE, BROKER, STORE = "canaryDatabase7h", "canaryBroker2k", "canaryStore9w"
ENDPOINT_KEY, QUERY, OTHER_SCHEME = "canaryEndpointKey4d", "canaryQuery8s", "canaryScheme6v"
SIGNATURE = base64.b64encode(b"canary signature of this deployment").decode()
WRONG_KEY = f"grpo_{'a' * 16}_canaryWrongKey{'x' * 29}"
BUCKET = "canaries"


class LockedRedis(Redis):
    """A Redis with a password."""

    def command(self) -> list[str]:
        return [*super().command(), "--requirepass", BROKER]

    @property
    def url(self) -> str:
        return f"redis://:{BROKER}@127.0.0.1:{self.port}/0"

    def new_url(self) -> str:
        return self.url


@dataclass
class Output:
    """Everything that the deployment has written, by source; none of it may contain `secrets`."""

    secrets: dict[str, str]
    texts: dict[str, str] = field(default_factory=dict)
    engine_environment: str = ""

    def leaks(self) -> list[tuple[str, str]]:
        """(source, secret)"""
        return [
            (source, name)
            for source, text in self.texts.items()
            for name, secret in self.secrets.items()
            if secret in text
        ]

    def add(self, source: str, *texts: str) -> None:
        self.texts[source] = "\n".join((self.texts.get(source, ""), *texts))


@contextmanager
def store() -> Iterator[str]:
    """Start an S3-compatible store with the bucket. Yields its URL."""
    with Moto() as server:
        httpx.put(f"{server.url}/{BUCKET}", timeout=60).raise_for_status()
        yield server.url


@contextmanager
def deployment(
    home: Path, model: Path, postgres: Postgres, redis: Redis, store_url: str
) -> Iterator[Production]:
    endpoints = home.parent / "endpoints.json"
    checker = {"url": "http://127.0.0.1:1/grade", "api_key": ENDPOINT_KEY, "secret": f"whsec_{SIGNATURE}"}
    endpoints.write_text(json.dumps({"checker": checker}))
    planted = {
        "GRPO_STORAGE_URL": f"s3://{BUCKET}/grpo",
        "AWS_ENDPOINT_URL": store_url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "planted",
        "AWS_SECRET_ACCESS_KEY": STORE,
        "GRPO_ENDPOINTS": str(endpoints),
        "GRPO_ENDPOINT_SECRET": f"whsec_{SIGNATURE}",
    }
    url = postgres.url.replace("grpo@", f"grpo:{DATABASE}@")
    with production(home, model, url, redis, **planted) as running:
        yield running


def story(running: Production, postgres: Postgres, redis: Redis, store_url: str, rows: Path) -> Output:
    """In order: refused requests, a missing bucket, a job, a bug, unavailable servers."""
    created = call_grpo("keys", "create", "--tenant", "acme", environment=running.environment)
    key = created.stdout.strip()
    names = {"database": DATABASE, "broker": BROKER, "store": STORE, "endpoint": ENDPOINT_KEY, "query": QUERY}
    names |= {"scheme": OTHER_SCHEME, "signature": SIGNATURE, "key": key.rsplit("_", 1)[1]}
    output = Output(names | {"wrong key": WRONG_KEY.rsplit("_", 1)[1]})
    output.add("cli", created.stderr)
    with httpx.Client(base_url=running.url, timeout=30) as http, Client(running.url, key) as client:
        _refused(http, key, output)
        httpx.delete(f"{store_url}/{BUCKET}", timeout=60).raise_for_status()
        _without_bucket(http, key, rows, output)
        httpx.put(f"{store_url}/{BUCKET}", timeout=60).raise_for_status()
        _job(running, client, rows, output)
        _bug(http, key, postgres, output)
        _fails(running, output, "--api-key", WRONG_KEY, "list", GRPO_URL=running.url)
        _settings_that_cannot_be(running, output)
        _away(http, key, running, postgres, redis, output)
    running.stop_all()
    for name in ("api", "worker", "maintenance"):
        output.add(name, running.log(name).read_text())
    output.add("rows", _all_rows(postgres))
    return output


def _refused(http: httpx.Client, key: str, output: Output) -> None:
    """Send wrong keys in every place, and name an endpoint that does not respond."""
    for header in (f"Bearer {WRONG_KEY}", f"Basic {OTHER_SCHEME}", WRONG_KEY, f"Bearer {key}x"):
        output.add("answers", http.get("/v1/files", headers={"authorization": header}).text)
    output.add("answers", http.get(f"/v1/files?api_key={QUERY}&purpose={QUERY}").text)
    output.add("answers", http.get(f"/v1/files/{key}", headers={"authorization": f"Bearer {WRONG_KEY}"}).text)
    grader = {"type": "endpoint", "endpoint": "checker", "timeout_seconds": 1}
    body = {"grader": grader, "model_sample": "4", "item": {"answer": "4"}}
    path, headers = "/v1/fine_tuning/alpha/graders/run", {"authorization": f"Bearer {key}"}
    answer = http.post(path, json=body, headers=headers)
    assert answer.json()["scorable"] is False, answer.text
    output.add("answers", answer.text)


def _without_bucket(http: httpx.Client, key: str, rows: Path, output: Output) -> None:
    headers, files = {"authorization": f"Bearer {key}"}, {"file": ("rows.jsonl", rows.read_bytes())}
    answer = http.post("/v1/files", headers=headers, data={"purpose": "fine-tune"}, files=files)
    assert answer.status_code == 503
    output.add("answers", answer.text, http.get("/readyz").text)


def _job(running: Production, client: Client, rows: Path, output: Output) -> None:
    """Train a job, and inspect its engine meanwhile."""
    job_id = client.create(JOBS, grpo_job(client.upload(rows)["id"], steps=40))["id"]
    wait_until(lambda: client.get(f"{JOBS}/{job_id}")["progress"]["step"] > 1, 120)
    for pid in processes_of_engines(running.home):
        output.engine_environment += Path(f"/proc/{pid}/environ").read_text()
    output.add("engine logs", *(path.read_text() for path in running.home.glob("runs/**/engine.log")))
    job = watch_job(client, job_id)
    assert job["status"] == "succeeded"
    output.add("answers", json.dumps(job), json.dumps(client.get(f"{JOBS}/{job_id}/events")))


def processes_of_engines(home: Path) -> list[int]:
    """Process ids whose working folder is a run of this home."""
    return [
        int(path.name)
        for path in Path("/proc").glob("[0-9]*")
        if _works_below(path, (home / "runs").resolve())
    ]


def _works_below(process: Path, folder: Path) -> bool:
    try:
        return (process / "cwd").readlink().is_relative_to(folder)
    except OSError:
        return False


def _bug(http: httpx.Client, key: str, postgres: Postgres, output: Output) -> None:
    """Change a column's type, so that a request raises an unexpected exception."""
    change = "ALTER TABLE files ALTER COLUMN tenant TYPE"
    postgres.execute(f"{change} bytea USING convert_to(tenant, 'UTF8')")
    answer = http.get("/v1/files", headers={"authorization": f"Bearer {key}"})
    postgres.execute(f"{change} varchar(64) USING convert_from(tenant, 'UTF8')")
    assert answer.status_code == 500
    output.add("answers", answer.text, http.get("/metrics").text)


def _away(
    http: httpx.Client, key: str, running: Production, postgres: Postgres, redis: Redis, output: Output
) -> None:
    """Stop the broker, then the database too, and run the commands."""
    headers = {"authorization": f"Bearer {key}"}
    redis.stop()
    output.add("answers", http.get("/readyz").text)
    postgres.stop()
    answer = http.get("/v1/files", headers=headers)
    assert answer.status_code == 503
    output.add("answers", answer.text, http.get("/readyz").text, http.get("/metrics").text)
    _fails(running, output, "doctor", "--json", GRPO_ENGINE_PYTHON="/nowhere/python")
    _fails(running, output, "migrate")
    redis.start()
    postgres.start()
    wait_until(running.ready, 120, "the API is ready again")


def _settings_that_cannot_be(running: Production, output: Output) -> None:
    _fails(running, output, "serve", GRPO_BROKER_URL=f"redis://:{BROKER}/x@127.0.0.1:1/0")
    _fails(running, output, "worker", GRPO_SELF_FENCE_SECONDS="500")
    _fails(running, output, "migrate", GRPO_DATABASE_URL=f"postgresql://grpo:{DATABASE}@host:port/x")


def _fails(running: Production, output: Output, *arguments: str, **changed: str) -> None:
    """A process of its own, which also shows what an unexpected exception prints."""
    done = run_grpo(*arguments, environment={**running.environment, **changed})
    assert done.returncode == 1, (arguments, done.stdout, done.stderr)
    output.add("cli", done.stdout, done.stderr)


def _all_rows(postgres: Postgres) -> str:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        tables = [connection.execute(f"SELECT * FROM {name}").fetchall() for name in Base.metadata.tables]
    return repr(tables)
