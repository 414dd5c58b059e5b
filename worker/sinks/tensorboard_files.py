"""TensorBoard: event files under `<root>/<tenant>/<job>`.

Each step is one event, which is written completely or not at all; the folder's newest step shows where to
continue.
"""

import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from service.jobs.model.states import JobState
from worker.sinks.base import SinkJob


class TensorboardFiles:
    """A folder of event files; each writing process adds one."""

    def __init__(self, job: SinkJob) -> None:
        folder = job.tensorboard_root / job.tenant / job.job_id
        folder.mkdir(parents=True, exist_ok=True)
        self.last_step = newest_step(folder)
        self._writer = EventFileWriter(str(folder))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        shown = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=shown)))

    def flush(self) -> None:
        self._writer.flush()

    def close(self, state: JobState) -> None:
        self._writer.close()


def newest_step(folder: Path) -> int:
    """The newest step in all event files; -1: none. An incomplete end of a file is skipped."""
    files = (EventFileLoader(str(path)) for path in folder.glob("*tfevents*"))
    events = (event for file in files for event in file.Load())
    return max((event.step for event in events if event.HasField("summary")), default=-1)
