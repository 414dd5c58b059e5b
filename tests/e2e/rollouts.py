"""The service's greedy completions of held-out rows, from its rollout export."""

import json

from service.cli.http.client import JOBS, Client


def evaluations(client: Client, job_id: str) -> dict[int, list[list[int]]]:
    """Token ids of the greedy completions by step, in the order of the held-out rows."""
    path = f"{JOBS}/{job_id}/rollouts.jsonl"
    with client.streaming(path, headers={}, split="validation") as response:
        groups = [json.loads(line) for line in response.iter_lines()]
    found: dict[int, list[list[int]]] = {group["step"]: [] for group in groups}
    for group in sorted(groups, key=lambda group: group["row"]):
        (completion,) = group["completions"]
        found[group["step"]].append(completion["token_ids"])
    return found
