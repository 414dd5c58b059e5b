"""The log of a rank: the first rank writes `events.jsonl`, the others store only their failures.

A launcher reads another rank's failure if the first rank has reported none. Boundary: no torch.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from grpo_engine.config.job import RunConfig
from grpo_engine.contract.events import BaseEvent, Failed
from grpo_engine.files.event_log import Journal
from grpo_engine.run.event_lines import print_event


@dataclass(frozen=True, slots=True)
class FailureReport:
    """Log of any rank but the first: stores only a failure, because the first rank writes all events."""

    path: Path

    def write(self, event: BaseEvent) -> None:
        if isinstance(event, Failed):
            self.path.write_text(event.model_dump_json())

    def close(self) -> None:
        """Nothing to close."""


class PrintedJournal(Journal):
    """The journal of the first rank; prints its events as well."""

    def write(self, event: BaseEvent) -> None:
        print_event(event)
        super().write(event)


def open_log(config: RunConfig, run_dir: Path) -> Journal | FailureReport:
    """This rank's log; removes the failure that an earlier run reported in the same directory."""
    rank = os.environ.get("RANK", "0")
    if rank == "0":
        path, first = run_dir / "events.jsonl", config.first_sequence
        return PrintedJournal(path, first_sequence=first, published_step=config.published_step)
    report = FailureReport(run_dir / f"failed-rank-{rank}.json")
    report.path.unlink(missing_ok=True)
    return report
