"""Events as lines of the engine's output, which is the job's log for people. Boundary: no torch."""

import time
from collections.abc import Mapping

from grpo_engine.contract import events

SHOWN = ("reward", "loss", "kl", "grad_norm", "step_time", "num_rows")


def print_event(event: events.BaseEvent) -> None:
    """Print the event with the time in UTC; rollouts are not printed."""
    if line := line_of(event):
        print(time.strftime("%H:%M:%S", time.gmtime()), line, flush=True)


def line_of(event: events.BaseEvent) -> str:
    """The event in a few words; empty if there is nothing to show."""
    match event:
        case events.Started():
            resumed = f"resumed from step {event.resumed_from_step}, " if event.resumed_from_step else ""
            rows = f"{event.total_steps} steps, {event.num_rows} rows"
            return f"started: {resumed}{rows}, {event.device} ({event.dtype}), sampler {event.sampler}"
        case events.PhaseChanged():
            return event.phase
        case events.StepFinished():
            return f"step {event.step}: {_values(event.metrics)}"
        case events.StepSkipped():
            return f"step {event.step} skipped ({event.reason}): {_values(event.metrics)}"
        case events.Evaluated():
            return f"evaluation of {event.name} after step {event.step}: {_values(event.metrics)}"
        case events.CheckpointSaved():
            return f"checkpoint of step {event.step} saved"
        case events.Warned():
            return f"warning ({event.code}): {event.message}"
        case events.Failed():
            return f"failed ({event.code}): {event.message}"
        case events.Stopped():
            return f"stopped after step {event.step}"
        case events.Finished():
            return f"finished after step {event.step}"
    return ""


def _values(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {metrics[name]:.4g}" for name in SHOWN if name in metrics) or "done"
