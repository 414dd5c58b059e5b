"""Reads the recorded runs, whole or up to a step, as the service would have them then.

`bench/recorded_runs.py` records them, and describes the format.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.jobs.diagnosis.run import Groups, GuardWarning, Run
from service.jobs.model.states import JobState
from tests.service.job_samples import METHOD

FOLDER = Path(__file__).parent / "recorded"
MAX_GROUPS = 200


@dataclass(frozen=True)
class RecordedRun:
    header: dict[str, Any]
    rows: list[dict[str, Any]]
    groups: list[tuple[int, list[int]]]
    """Step, and numbers of its groups: all, all wrong, all right, between."""

    @classmethod
    def read(cls, path: Path) -> "RecordedRun":
        first, *lines = path.read_text().splitlines()
        header, values = json.loads(first), [json.loads(line) for line in lines]
        method = METHOD.dump_python(METHOD.validate_python(header["method"]), mode="json")
        rows = [{"step": step} | _present(header["names"], row) for step, _, *row in values]
        groups = [(step, counts) for step, counts, *_ in values if counts]
        return cls({**header, "method": method}, rows, groups)

    @property
    def last_step(self) -> int:
        return int(self.rows[-1]["step"])

    def at(self, step: int | None = None) -> Run:
        """The run after this step, still running; without a step, at its end."""
        end = self.last_step if step is None else step
        failure = self.header["failure"] if step is None else None
        state = JobState.RUNNING if step else JobState.FAILED if failure else JobState.SUCCEEDED
        return Run(
            job_id="ftjob-1",
            state=state,
            method=self.header["method"],
            step=end,
            total_steps=self.header["total_steps"],
            num_rows=self.header["num_rows"],
            metrics=[row for row in self.rows if row["step"] <= end],
            groups=self._newest_groups(end),
            evaluation={"baseline": {"step": 0, **self.header["baseline"]}}
            if self.header["baseline"]
            else {},
            failure=failure,
            guards=[
                GuardWarning(code, message, at)
                for at, code, message in self.header["warnings"]
                if code.startswith("guard_") and at <= end
            ],
        )

    def _newest_groups(self, end: int) -> Groups:
        known = [(step, counts) for step, counts in self.groups if step <= end]
        first = len(known)
        while first and sum(counts[0] for _, counts in known[first:]) < MAX_GROUPS:
            first -= 1
        if not known:
            return Groups()
        num, wrong, right, between = (
            sum(column) for column in zip(*(c for _, c in known[first:]), strict=True)
        )
        return Groups(num, wrong, right, between, known[first][0], end)


def _present(names: list[str], values: list[float | None]) -> dict[str, float]:
    return {name: value for name, value in zip(names, values, strict=False) if value is not None}
