"""An engine without a model: writes the same files, needs ten milliseconds per step, and fails on request.

`python -m tests.support.fake_engine --config c.json --run-dir d`. Its weights are a digest over (seed,
steps); a resumed run can thus be compared with an uninterrupted one byte for byte. Row 0 of the training
file contains its faults: `{"faults": {"<fence, rank-<number>, or *>": {fault: value}}}`, where the fence is
in the run directory's name: `die_at`, `hang_at`, `fail_at`, `garbage_at` (a step), `ignore_sigterm`,
`fails_at_exit` (after it has finished), `step_seconds`, `prints` (a text, at the start; `print_times`: as
often), `print_steps`. Two are not faults: `guard_at` (a guard pauses the job after this
step), `peak_at` (the held-out reward falls after this step).
"""

import argparse
import hashlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from grpo_engine.contract import manifest
from grpo_engine.contract.events import (
    MAX_LINE_BYTES,
    CheckpointSaved,
    Evaluated,
    Event,
    Exported,
    Failed,
    Finished,
    PhaseChanged,
    Probed,
    RolloutsRecorded,
    Started,
    StepFinished,
    Stopped,
    Verdict,
    Warned,
)
from grpo_engine.contract.records import CompletionRecord, FinishReason, GroupRecord
from grpo_engine.process.fault_points import fault_point
from grpo_engine.run.prestart import await_job

PROBED = {
    "groups_solved": 0,
    "truncated": 0,
    "grader_errors": 0,
    "mean_reward": 0.5,
    "highest_reward": 1.0,
    "sample_seconds": 0.5,
    "score_seconds": 0.1,
    "peak_memory_bytes": 1000,
}
"""The result of a probe, but for its fault `probed`."""
RANK = os.environ.get("RANK", "0")
FINGERPRINT = "f" * 64
"""Fingerprint of the weights that it would have loaded."""


class Given(dict[str, Any]):
    """An object of `config.json`. Without the models of `RunConfig` the engine starts twice as fast."""

    __getattr__ = dict.__getitem__


def read_config(text: str) -> Any:
    """The configuration; with its models only if the number of steps is to be computed."""
    config = json.loads(text, object_hook=Given)
    if hyperparameters_of(config).n_steps is not None:
        return config
    from grpo_engine.config.job import RunConfig

    return RunConfig.model_validate_json(text)


def hyperparameters_of(config: Any) -> Any:
    return getattr(config.method, config.method.type).hyperparameters


class FakeEngine:
    """One run, from the newest checkpoint in its run directory to its end."""

    def __init__(self, config: Any, run_dir: Path) -> None:
        self.config, self.run_dir = config, run_dir
        rows = Path(config.training_file).read_text().splitlines() if config.training_file else ["{}"]
        faults = json.loads(rows[0]).get("faults", {})
        fence, rank = Path.cwd().name.split(".")[0], f"rank-{RANK}"
        self.faults: dict[str, Any] = faults.get("*", {}) | faults.get(fence, {}) | faults.get(rank, {})
        self.hyperparameters = hyperparameters_of(config)
        self.num_rows = len(rows)
        self.retention = config.retention_files
        self.total_steps: int = self.hyperparameters.n_steps or self.hyperparameters.total_steps(
            self.num_rows
        )
        self.sequence = config.first_sequence
        self.step, self.digest = 0, hashlib.sha256(str(config.seed).encode()).hexdigest()
        self.stopping = False
        self.reason: Literal["asked", "guard"] = "asked"
        self.events = (run_dir / "events.jsonl").open("ab")

    def run(self) -> int:
        """Exit code."""
        if not self.faults.get("ignore_sigterm"):
            signal.signal(signal.SIGTERM, self._stop)
        else:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("fake engine starts", flush=True)
        print(self.faults.get("prints", "") * self.faults.get("print_times", 1), end="", flush=True)
        self._resume()
        self._start()
        if self.config.export is not None:
            return self._export()
        if self.config.probe is not None:
            return self._probe(self.config.probe.prompts)
        while self.step < self.total_steps and not self.stopping:
            if not self._train_step():
                return 1
        self._save()
        return self._end()

    def _export(self) -> int:
        """Copy the adapter's files as the merged model."""
        merged = self.run_dir / "merged"
        merged.mkdir()
        for path in Path(self.config.model.adapter or self.config.model.path).glob("*"):
            (merged / path.name).write_bytes(path.read_bytes())
        fault_point("export.saved")
        self._emit(Exported(path="merged"))
        return 0

    def _stop(self, *_signal: object) -> None:
        self.stopping = True

    def _emit(self, event: Event) -> None:
        event = event.model_copy(update={"sequence": self.sequence, "at": time.time()})
        self.events.write(event.model_dump_json().encode() + b"\n")
        self.events.flush()
        self.sequence += 1

    def _resume(self) -> None:
        found = sorted((self.run_dir / "checkpoints").glob("step-*/state.json"))
        if found:
            state = json.loads(found[-1].read_text())
            self.step, self.digest = state["step"], state["digest"]

    def _start(self) -> None:
        started = Started(
            total_steps=self.total_steps,
            resumed_from_step=self.step,
            device="cpu",
            dtype="float32",
            sampler="fake",
            num_parameters=2,
            num_trainable_parameters=1,
            num_rows=self.num_rows,
            versions={"fake": "1"},
            base_fingerprint=FINGERPRINT,
        )
        self._emit(started)
        if self.step == 0:
            self._emit(Evaluated(step=0, metrics={"reward": 0.1, "num_rows": 8}))
        self._emit(PhaseChanged(phase="training", step=self.step))

    def _train_step(self) -> bool:
        time.sleep(self.faults.get("step_seconds", 0.01))
        self.step += 1
        if self.faults.get("print_steps"):
            print("step", self.step, flush=True)
        self.digest = hashlib.sha256(f"{self.digest} {self.step}".encode()).hexdigest()
        if self.step == self.faults.get("fail_at"):
            self._emit(Failed(code="non_finite", message="the loss is NaN", hint="lower it", evidence=("x",)))
            return False
        if self.step > self.config.published_step:
            self._report()
        else:
            self._emit(PhaseChanged(phase="training", step=self.step))
        fault_point("step.trained")
        self._misbehave()
        if self.step == self.faults.get("guard_at"):
            self.stopping, self.reason = True, "guard"
            self._emit(Warned(code="guard_kl", message="too far away", step=self.step))
        if self.config.probe is None and self.step % self.hyperparameters.checkpoint_interval == 0:
            self._save()
        return True

    def _probe(self, num_prompts: int) -> int:
        """One step per prompt, each a group of one right and one wrong answer."""
        while self.step < num_prompts and not self.stopping:
            if not self._train_step():
                return 1
        done = {"prompts": self.step, "groups_with_signal": self.step, "passed": self.step}
        done |= {"completions": 2 * self.step, "completion_tokens": 4 * self.step}
        if self.stopping:
            self._emit(Stopped(step=self.step))
            return 0
        self._emit(Probed.model_validate(PROBED | done | self.faults.get("probed", {})))
        return 0

    def _report(self) -> None:
        reward = int(self.digest[:4], 16) / 0xFFFF
        completion = CompletionRecord(
            text=f"\x00{reward}",
            token_ids=(1, 2),
            reward=reward,
            advantage=0.0,
            finish_reason=FinishReason.STOP,
            policy_version=self.step - 1,
        )
        group = GroupRecord(row=0, prompt="1 + 1", completions=(completion,), has_signal=False)
        self._emit(RolloutsRecorded(step=self.step, groups=(group,)))
        self._emit(StepFinished(step=self.step, metrics={"reward": reward, "loss": 1 - reward}))

    def _misbehave(self) -> None:
        if self.step == self.faults.get("garbage_at"):
            self.events.write(b"not json\n" + b"x" * (MAX_LINE_BYTES + 1) + b'\n{"type": "unheard"}\n')
            self.events.flush()
        if self.step == self.faults.get("die_at"):
            os.kill(os.getpid(), signal.SIGKILL)
        while self.step == self.faults.get("hang_at"):
            time.sleep(0.05)

    def _save(self) -> None:
        name = f"checkpoints/step-{self.step:08d}"
        if self.step == 0 or (self.run_dir / name).exists():
            return
        partial = self.run_dir / f".partial-{self.step}"
        files = {
            "adapter/adapter_config.json": b'{"peft_type": "LORA"}',
            "adapter/adapter_model.safetensors": self.digest.encode(),
            "adapter/README.md": b"fake",
            "optimizer.safetensors": self.digest[::-1].encode(),
            "state.json": json.dumps({"step": self.step, "digest": self.digest}).encode(),
        }
        for path, content in files.items():
            (partial / path).parent.mkdir(parents=True, exist_ok=True)
            (partial / path).write_bytes(content)
            if path.endswith("adapter_model.safetensors"):
                fault_point("checkpoint.weights_written")
        manifest.write(partial, {"job_id": self.config.job_id, "step": self.step})
        (self.run_dir / "checkpoints").mkdir(exist_ok=True)
        fault_point("checkpoint.sealed")
        partial.rename(self.run_dir / name)
        fault_point("checkpoint.renamed")
        if self.step > self.config.published_step or self.step == self.total_steps:
            self._evaluate()
        self._emit(CheckpointSaved(step=self.step, path=name, metrics=self._checkpoint_metrics()))

    def _checkpoint_metrics(self) -> dict[str, float]:
        return {"reward": self.step / 100}

    def _evaluate(self) -> None:
        """Evaluate the held-out rows and every retention set, with the numbers of rows in their files."""
        peak = self.faults.get("peak_at", self.step)
        reward = 0.1 + (self.step - 2 * max(0, self.step - peak)) / 100
        is_final = self.step == self.total_steps
        sets = {name: len(Path(path).read_text().splitlines()) for name, path in self.retention.items()}
        for name, num_rows in {"validation": 8, **sets}.items():
            metrics = {"reward": reward, "num_rows": float(num_rows)}
            difference = round(reward - 0.1, 3)
            verdict = Verdict(text=f"{name} moved by {difference}", difference=difference, rows=num_rows)
            event = Evaluated(step=self.step, name=name, metrics=metrics, verdict=verdict, is_final=is_final)
            self._emit(event)

    def _end(self) -> int:
        if self.step < self.total_steps:
            self._emit(Stopped(step=self.step, reason=self.reason))
        else:
            path = f"checkpoints/step-{self.step:08d}/adapter"
            self._emit(Finished(step=self.step, path=path, num_tokens=2 * self.step))
        if self.faults.get("fails_at_exit"):
            self._emit(Failed(code="engine_error", message="cannot be closed"))
        return 0


def main(engine: type[FakeEngine] = FakeEngine, read: Callable[[str], Any] = read_config) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--run-dir", type=Path, required=True)
    arguments = sys.argv[1:]
    given = parser.parse_args(await_job() if arguments == ["--warm"] else arguments)
    run_dir = given.run_dir if RANK == "0" else own_directory(given.run_dir)
    return engine(read(given.config.read_text()), run_dir).run()


def own_directory(run_dir: Path) -> Path:
    """Directory of a later rank, which trains the same steps; its events and checkpoints are not used."""
    own = run_dir / f".rank-{RANK}"
    own.mkdir()
    if (run_dir / "checkpoints").is_dir():
        shutil.copytree(run_dir / "checkpoints", own / "checkpoints")
    return own


if __name__ == "__main__":
    sys.exit(main())
