"""`grpo suites`: the tasks that a job's `dataset` may name."""

import typer

from service.cli.options import client_of
from service.cli.terminal.output import JsonFlag, print_table

TASKS = "/v1/fine_tuning/suites/reasoning_gym"


def suites(context: typer.Context, as_json: JsonFlag = False) -> None:
    """List Reasoning Gym's tasks for `dataset`, with the levels of their curricula."""
    tasks = client_of(context).get(TASKS)["data"]
    rows = ((each["task"], each["levels"]) for each in tasks)
    print_table(tasks, ("task", "levels"), rows, as_json=as_json)
