"""Examples of requests: the body and the curl command that `/docs` shows for each operation.

`tests/service/web/test_openapi_examples.py` sends all of them. Boundary: requests only.
"""

import json
from typing import Any

Document = dict[str, Any]

JOBS = "/v1/fine_tuning/jobs"
GRADERS = "/v1/fine_tuning/alpha/graders"
WEBHOOKS = "/v1/webhook_endpoints"
GRADER: Document = {"type": "numeric", "reference": "{{item.answer}}"}
JOB: Document = {
    "model": "tiny",
    "training_file": "file-…",
    "method": {
        "type": "reinforcement",
        "reinforcement": {
            "grader": GRADER,
            "hyperparameters": {"group_size": 8, "beta": 0.04, "n_steps": 100, "max_completion_tokens": 32},
        },
    },
}
CHAT: Document = {"model": "tiny", "messages": [{"role": "user", "content": "What is 17 + 25?"}], "seed": 1}
WEBHOOK: Document = {"url": "https://example.com/hook", "event_types": ["fine_tuning.job.succeeded"]}
BODIES: dict[str, Document] = {
    "patch /v1/files/{file_id}": {"filename": "gsm8k-short.jsonl"},
    "post /v1/models": {"id": "Qwen/Qwen3-0.6B"},
    f"post {JOBS}": JOB,
    f"post {JOBS}/validate": JOB,
    f"post {JOBS}/{{job_id}}/exports": {"format": "merged"},
    f"post {JOBS}/{{job_id}}/clone": {
        "method": {"reinforcement": {"hyperparameters": {"beta": 0.1}}},
        "seed": None,
    },
    f"patch {JOBS}/{{job_id}}": {"name": "Learning rate 3e-5", "tags": ["maths"], "archived": False},
    f"post {JOBS}/{{job_id}}/rollouts/rescore": {"grader": GRADER, "limit": 64},
    f"post {JOBS}/{{job_id}}/shares": {"expires_in_seconds": 604800},
    "post /v1/keys": {"tenant": "maths", "name": "Anna's laptop", "scopes": ["read", "write"]},
    "post /v1/keys/{key_id}/rotate": {"old_key_hours": 24},
    "post /v1/fine_tuning/probes": {**JOB, "probe": {"prompts": 16}},
    f"post {GRADERS}/validate": {"grader": GRADER},
    f"post {GRADERS}/run": {"grader": GRADER, "item": {"answer": 42}, "model_sample": "It is 42."},
    "post /v1/chat/completions": CHAT,
    "post /v1/completions": {"model": "tiny", "prompt": "17 + 25 =", "max_tokens": 8},
    f"post {WEBHOOKS}": WEBHOOK,
    f"post {WEBHOOKS}/{{endpoint_id}}": {"event_types": ["fine_tuning.job.failed"]},
    f"post {WEBHOOKS}/{{endpoint_id}}/rotate_secret": {},
    f"post {WEBHOOKS}/{{endpoint_id}}/test": {"event_type": "fine_tuning.job.succeeded"},
}
QUERIES = {
    f"get {JOBS}": "?limit=5&metadata[team]=maths",
    f"get {JOBS}/{{job_id}}/metrics": "?after_step=10&names=reward,kl",
    f"get {JOBS}/{{job_id}}/logs": "?tail=100",
    f"get {JOBS}/{{job_id}}/rollouts": "?step=5&filter=worst",
    f"get {JOBS}/{{job_id}}/rollouts/completions": "?filter=truncated",
    f"get {JOBS}/{{job_id}}/adapter": "?checkpoint=final",
    "get /v1/files": "?purpose=fine-tune",
}
SAVED = ("/content", "/adapter", ".csv", ".jsonl")
"""Routes that return a file."""


def curl(name: str) -> str:
    """The shell command of an operation such as `get /v1/files`; ids are in braces."""
    method, path = name.split(" ", 1)
    words = ["curl"]
    if method in ("delete", "patch"):
        words.append(f"-X {method.upper()}")
    elif method == "post" and name not in BODIES and path != "/v1/files":
        words.append("-X POST")
    if path.endswith("/stream"):
        words.append("-N")
    words.append(f"'http://127.0.0.1:8000{path}{QUERIES.get(name, '')}'")
    if path.startswith("/v1/"):
        words.append('-H "Authorization: Bearer $GRPO_API_KEY"')
    if path.endswith(SAVED):
        words.append("-OJ")
    if name == "post /v1/files":
        words.append("-F purpose=fine-tune -F file=@train.jsonl")
    if name in BODIES:
        words.append(
            f"-H 'Content-Type: application/json' -d '{json.dumps(BODIES[name], ensure_ascii=False)}'"
        )
    return " \\\n  ".join(words)


def add_example(name: str, operation: Document) -> None:
    """Add the curl command to the description, and the body if there is one."""
    operation["description"] = f"{operation.get('description', '')}\n\n```sh\n{curl(name)}\n```".strip()
    if name in BODIES:
        content = operation["requestBody"]["content"]["application/json"]
        content["example"] = BODIES[name]
