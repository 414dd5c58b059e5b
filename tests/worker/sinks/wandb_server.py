"""What W&B's client needs of its server: runs, and the history that it appends to them.

A server that is down accepts no history and starts no run.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from tests.support.chat_server import Recorded, Reply


@dataclass
class WandbServer:
    """Answers of a server with one run, for a `ScriptedServer`."""

    is_down: bool = False
    refused: int = 0
    """Requests that were refused while it was down."""
    history: list[str] = field(default_factory=list)
    """Rows of the run as JSON."""
    run_id: str | None = None

    @property
    def steps(self) -> list[int]:
        return [json.loads(row)["_step"] for row in self.history]

    def answer(self, recorded: Recorded) -> Reply:
        if self.is_down:
            self.refused += 1
            return Reply(status=503)
        if recorded.path.endswith("/graphql"):
            return Reply(body={"data": self._queried(recorded.json)})
        if recorded.path.endswith("/file_stream"):
            rows = recorded.json.get("files", {}).get("wandb-history.jsonl")
            if rows is not None:
                self.history[rows["offset"] :] = rows["content"]
        return Reply(body={})

    def _queried(self, body: dict[str, Any]) -> dict[str, Any]:
        query, given = body["query"], body.get("variables") or {}
        if "viewer" in query:
            return {"viewer": {"id": "user", "entity": "us", "username": "us", "flags": "{}"}}
        if "upsertBucket" in query:
            self.run_id = given["name"]
            return {"upsertBucket": {"bucket": self._run(), "inserted": not self.history}}
        if "RunResumeStatus" in query:
            return {"model": self._project() | {"bucket": self._run() if self.run_id else None}}
        if "createRunFiles" in query:
            return {"createRunFiles": {"runID": given["run"], "uploadHeaders": [], "files": []}}
        return {}

    def _project(self) -> dict[str, Any]:
        return {"id": "project", "name": "sums", "entity": {"id": "entity", "name": "us"}}

    def _run(self) -> dict[str, Any]:
        return {
            "id": "run",
            "name": self.run_id,
            "displayName": "a run",
            "summaryMetrics": "{}",
            "config": "{}",
            "tags": [],
            "project": self._project(),
            "logLineCount": 0,
            "eventsLineCount": 0,
            "historyLineCount": len(self.history),
            "historyTail": json.dumps(self.history[-1:]),
            "eventsTail": "[]",
            "wandbConfig": '{"t": 1}',
        }
