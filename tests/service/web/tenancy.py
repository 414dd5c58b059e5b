"""One tenant's objects of every kind, and the keys of all clients that may request them.

To extend: a resource with an id adds its `Place` to `_places`, a POST with a body adds it to `body_of`. The
matrix fails on a route for which one of them is missing.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import select

from service.app import create_app
from service.jobs.model import names
from service.jobs.model.states import JobState
from service.jobs.store import history
from service.jobs.store.history import HistoryEntry
from service.platform.clock import db_now
from service.platform.db import Database, connect
from service.platform.ids import new_id
from service.platform.migrate import upgrade
from service.platform.tables.core import Base, File, Job, Metric, Rollout
from service.settings import Settings
from service.web.auth import create_key, revoke_key
from tests.conftest import settings_for
from tests.service.job_samples import (
    GRADER,
    add_artifact,
    add_checkpoint,
    add_job,
    jsonl,
    make_model,
    request,
    row,
    store_file,
)
from tests.service.serving.answering import answering
from tests.service.serving.processes import serving
from tests.service.webhooks.webhook_samples import NOWHERE, WEBHOOKS
from tests.support.chat_server import Reply, ScriptedServer

OWNER, OTHER = "tenant-a", "tenant-b"
HUB_MODEL = "Qwen/Qwen3-0.6B"
"""A base model that the catalogue has already, so that adding it requests nothing from the hub."""
ROWS = jsonl(row(), row("What is 3+3?", "6"))
JOBS = "/v1/fine_tuning/jobs"
PROBES = "/v1/fine_tuning/probes"
GRADERS = "/v1/fine_tuning/alpha/graders"
CANCELLED = {"event_types": ["fine_tuning.job.cancelled"]}
IDEMPOTENCY_KEY = "the-owners-key"
NOBODYS = {"chat_workers", "model_servers", "worker_helpers"}
"""Tables in which nothing is a tenant's."""
STATES = (
    JobState.QUEUED,
    JobState.RUNNING,
    JobState.PAUSED,
    JobState.SUCCEEDED,
    JobState.FAILED,
    JobState.CANCELLED,
)


@dataclass(frozen=True)
class Place:
    """Where a route's path parameters lead: an object of the owner, and an unknown id of the same kind."""

    real: dict[str, str]
    unknown: dict[str, str]


@dataclass
class World:
    """A running service with two tenants."""

    url: str
    settings: Settings
    database: Database
    keys: dict[str, str]
    """`owner`, `other`, `revoked`, `expired`, `read_only`, `write_only`, `admin`; all but `other`
    and `admin` are the owner's."""
    ids: dict[str, str]
    """The owner's things by name; the other tenant's file and job as `other_file`, `other_job`."""
    places: list[Place]

    def client(self, who: str | None) -> httpx.Client:
        headers = {} if who is None else {"authorization": f"Bearer {self.keys[who]}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30)

    def places_of(self, names: set[str]) -> list[Place]:
        """Those with exactly these path parameters."""
        return [place for place in self.places if place.real.keys() == names]


@contextmanager
def sqlite_world(home: Path) -> Iterator[World]:
    """A world over a new SQLite database in this home folder."""
    settings = settings_for(home)
    upgrade(settings)
    database = connect(settings)
    with world(settings, database) as found:
        yield found
    database.engine.dispose()


@contextmanager
def world(settings: Settings, database: Database) -> Iterator[World]:
    """The service over a fresh migrated database, with everything a tenant can have in it."""
    make_model(settings.home)
    make_model(settings.home, HUB_MODEL)
    with ExitStack() as stack:
        receiver = stack.enter_context(ScriptedServer(lambda _recorded: Reply(status=204)))
        hosts = f"127.0.0.1:9, {receiver.host}"  # NOWHERE
        settings = settings.model_copy(update={"allowed_hosts": hosts, "hub_models": True})
        stack.enter_context(answering(settings))
        url = stack.enter_context(serving(create_app(settings)))
        found = World(url, settings, database, _keys(database), {}, [])
        _add_jobs(found)
        _add_over_http(found, receiver.url)
        found.places = _places(found.ids)
        yield found


def body_of(operation: str, ids: dict[str, str], who: str = "") -> dict[str, Any] | None:
    """httpx arguments of a POST's body, which names things of the owner (of the other tenant: `other_`)."""
    job = request(ids[f"{who}file"])
    grader = {**GRADER, "reference": "4"}
    own_rows = jsonl(row(new_id("file")))  # equal uploads would be one file
    bodies: dict[str, dict[str, Any]] = {
        "post /v1/files": {"files": {"file": ("rows.jsonl", own_rows)}, "data": {"purpose": "fine-tune"}},
        "patch /v1/files/{file_id}": {"json": {"filename": "renamed.jsonl"}},
        f"post {JOBS}": {"json": job},
        f"post {JOBS}/validate": {"json": job},
        f"patch {JOBS}/{{job_id}}": {"json": {"name": "Renamed", "tags": ["a"]}},
        f"post {JOBS}/{{job_id}}/rollouts/rescore": {"json": {"grader": grader}},
        f"post {PROBES}": {"json": job},
        f"post {JOBS}/{{job_id}}/clone": {"json": job},
        f"post {JOBS}/{{job_id}}/exports": {"json": {"format": "merged"}},
        f"post {JOBS}/{{job_id}}/shares": {"json": {"expires_in_seconds": 60}},
        "post /v1/models": {"json": {"id": HUB_MODEL}},
        "post /v1/chat/completions": {
            "json": {"model": "tiny", "messages": [{"role": "user", "content": "?"}]}
        },
        "post /v1/completions": {"json": {"model": "tiny", "prompt": "?"}},
        f"post {GRADERS}/validate": {"json": {"grader": grader}},
        f"post {GRADERS}/run": {"json": {"grader": grader, "model_sample": "4"}},
        f"post {WEBHOOKS}": {"json": {"url": NOWHERE, **CANCELLED}},
        f"post {WEBHOOKS}/{{endpoint_id}}": {"json": CANCELLED},
        f"post {WEBHOOKS}/{{endpoint_id}}/rotate_secret": {"json": {}},
        f"post {WEBHOOKS}/{{endpoint_id}}/test": {"json": {}},
    }
    return bodies.get(operation)


def snapshot(found: World) -> dict[str, Any]:
    """Every row and every stored object that is not the other tenant's."""
    rows: dict[str, Any] = {}
    with found.database.reading() as session:
        for table in (table for table in Base.metadata.sorted_tables if table.name not in NOBODYS):
            query = select(*(column for column in table.c if column.name != "last_used_at"))
            if "tenant" in table.c:
                query = query.where(table.c.tenant != OTHER)
            elif "job_id" in table.c:
                query = query.where(table.c.job_id.not_in(select(Job.id).where(Job.tenant == OTHER)))
            rows[table.name] = sorted(repr(one) for one in session.execute(query))
        theirs = set(session.scalars(select(File.storage_key).where(File.tenant == OTHER)))
    folder = found.settings.home / "artifacts"
    objects = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    rows["objects"] = {key: path.read_bytes() for key, path in objects.items() if key not in theirs}
    return rows


def _keys(database: Database) -> dict[str, str]:
    with database.transaction() as session:
        now = session.scalars(select(db_now())).one()
        keys = {who: create_key(session, OWNER) for who in ("owner", "revoked")}
        keys["other"] = create_key(session, OTHER)
        keys["expired"] = create_key(session, OWNER, expires_at=now - 1)
        keys["read_only"] = create_key(session, OWNER, scopes=["read"])
        keys["admin"] = create_key(session, "operators", scopes=["read", "admin"])
        keys["write_only"] = create_key(session, OWNER, scopes=["write"])
        assert revoke_key(session, keys["revoked"].split("_")[1])
    return keys


def _add_jobs(found: World) -> None:
    """A job in every state, all with a history, the later ones with what training leaves behind."""
    settings, database, ids = found.settings, found.database, found.ids
    ids["file"] = store_file(settings, database, ROWS)
    ids["other_file"] = store_file(settings, database, ROWS, tenant=OTHER)
    for state in STATES:
        ids[state.value] = add_job(database, state, training_file=ids["file"])
        _add_history(database, ids[state.value])
    for name in ("running", "succeeded"):
        ids[f"{name}_checkpoint"] = add_checkpoint(settings, database, ids[name], 5, b"owner's weights")
    for kind in ("metrics", "adapter"):
        ids[kind] = add_artifact(settings, database, ids["succeeded"], kind, b"owner's results")
    ids["model"] = names.fine_tuned_model("tiny", OWNER, "demo", ids["succeeded"])
    ids["other_job"] = add_job(database, JobState.SUCCEEDED, tenant=OTHER, training_file=ids["other_file"])
    _add_history(database, ids["other_job"])
    with database.transaction() as session:
        session.get_one(Job, ids["succeeded"]).fine_tuned_model = ids["model"]


def _add_history(database: Database, job_id: str) -> None:
    completion = {"text": "4", "reward": 1.0, "tokens": [1], "num_tokens": 1, "finish_reason": "stop"}
    completions = [completion, {**completion, "text": "5", "reward": 0.0}]
    group = {"row": 0, "prompt": "owner's prompt", "completions": completions, "has_signal": True}
    place = {"split": "train", "step": 1, "position": 0}
    with database.transaction() as session:
        history.append(
            session,
            job_id,
            HistoryEntry("message", "started"),
            HistoryEntry("metrics", "1", data={"step": 1}),
        )
        session.add(Metric(job_id=job_id, step=1, values={"reward": 0.5}))
        session.add(Rollout(job_id=job_id, has_signal=True, data=group, **place))


def _add_over_http(found: World, receiver: str) -> None:
    with found.client("owner") as owner:
        upload = body_of("post /v1/files", found.ids)
        assert upload is not None
        found.ids["unused_file"] = owner.post("/v1/files", **upload).raise_for_status().json()["id"]
        headers = {"idempotency-key": IDEMPOTENCY_KEY}
        created = owner.post(JOBS, json=request(found.ids["unused_file"]), headers=headers)
        found.ids["posted"] = created.raise_for_status().json()["id"]
        events = owner.get(f"{JOBS}/{found.ids['posted']}/events").raise_for_status().json()
        found.ids["event"] = events["data"][0]["id"]
        found.ids["probe"] = owner.post(PROBES, json=request(found.ids["unused_file"])).json()["id"]
        exports = f"{JOBS}/{found.ids['succeeded']}/exports"
        body = {"format": "merged", "checkpoint": found.ids["succeeded_checkpoint"]}
        found.ids["export"] = owner.post(exports, json=body).raise_for_status().json()["id"]
        shares = f"{JOBS}/{found.ids['succeeded']}/shares"
        found.ids["share"] = owner.post(shares, json={}).raise_for_status().json()["id"]
        add_artifact(found.settings, found.database, found.ids["export"], "merged", b"owner's merged model")
        _add_webhook(owner, found.ids, receiver)
        free = body_of("post /v1/files", found.ids) or {}
        found.ids["free_file"] = owner.post("/v1/files", **free).raise_for_status().json()["id"]


def _add_webhook(owner: httpx.Client, ids: dict[str, str], receiver: str) -> None:
    """An endpoint that answers, and in its log the end of a job that was cancelled."""
    body = {"url": receiver, **CANCELLED}
    ids["webhook"] = owner.post(WEBHOOKS, json=body).raise_for_status().json()["id"]
    job_id = owner.post(JOBS, json=request(ids["unused_file"])).raise_for_status().json()["id"]
    owner.post(f"{JOBS}/{job_id}/cancel").raise_for_status()
    (sent,) = owner.get(f"{WEBHOOKS}/{ids['webhook']}/deliveries").raise_for_status().json()["data"]
    ids["delivery"] = sent["id"]


def _places(ids: dict[str, str]) -> list[Place]:
    """The objects for each path parameter, or each set of them."""
    unknown_job, unknown_checkpoint = new_id("ftjob"), new_id("ftckpt", "_")
    unknown_webhook = new_id("we", "_")
    jobs = [ids[state.value] for state in STATES]
    checkpoints = [(ids[name], ids[f"{name}_checkpoint"]) for name in ("running", "succeeded")]
    files = [ids[name] for name in ("file", "free_file", "adapter", "metrics")]
    real, unknown = ids["model"], names.fine_tuned_model("tiny", OWNER, "demo", unknown_job)
    models = [(real, unknown), (names.checkpoint_model(real, 5), names.checkpoint_model(unknown, 5))]
    return [
        *(Place({"file_id": one}, {"file_id": new_id("file")}) for one in files),
        *(Place({"job_id": one}, {"job_id": unknown_job}) for one in jobs),
        *(
            Place(
                {"job_id": job, "checkpoint_id": point},
                {"job_id": unknown_job, "checkpoint_id": unknown_checkpoint},
            )
            for job, point in checkpoints
        ),
        *(Place({"checkpoint_id": one}, {"checkpoint_id": unknown_checkpoint}) for _, one in checkpoints),
        Place(
            {"job_id": ids["succeeded"], "export_id": ids["export"]},
            {"job_id": unknown_job, "export_id": new_id(names.EXPORT)},
        ),
        Place(
            {"job_id": ids["succeeded"], "share_id": ids["share"]},
            {"job_id": unknown_job, "share_id": "0" * 16},
        ),
        Place({"probe_id": ids["probe"]}, {"probe_id": new_id(names.PROBE)}),
        Place({"endpoint_id": ids["webhook"]}, {"endpoint_id": unknown_webhook}),
        Place(
            {"endpoint_id": ids["webhook"], "delivery_id": ids["delivery"]},
            {"endpoint_id": unknown_webhook, "delivery_id": f"evt_x-{unknown_webhook}"},
        ),
        *(Place({"model": real}, {"model": unknown}) for real, unknown in models),
    ]
