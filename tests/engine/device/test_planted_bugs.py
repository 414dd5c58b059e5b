"""The pretended device catches what would only fail on a GPU."""

import threading
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
from torch import Tensor

from grpo_engine.rollout.overlap.own_stream import OwnStream
from grpo_engine.rollout.sampler.fixed_cache import FixedCache
from grpo_engine.rollout.sampler.rows import Rows
from tests.engine.device.jobs import Run, job, run
from tests.engine.device.pretended import pretended_cuda

Sampled = Callable[..., Run]


@pytest.fixture
def sampled(model_folder: Callable[[str], Path], tmp_path: Path) -> Sampled:
    """A probe, which only samples."""

    def made(kind: str = "probe", **more: Any) -> Run:
        config = job(tmp_path, model_folder("qwen3"), kind, device="cuda", **more)
        return run(config, Path(mkdtemp(dir=tmp_path)))

    return made


def test_an_index_on_the_cpu_in_the_decoding_loop_mixes_devices(
    sampled: Sampled, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = Rows.draw

    def drawing(self: Rows, logits_B: Tensor) -> Tensor:
        return draw(self, logits_B[torch.arange(len(logits_B))])

    monkeypatch.setattr(Rows, "draw", drawing)
    assert sum(sampled().seen.mixed.values()) > 8


def test_a_number_read_inside_a_capture_is_illegal(sampled: Sampled, monkeypatch: pytest.MonkeyPatch) -> None:
    advance = FixedCache.advance

    def advancing(self: FixedCache) -> None:
        assert int(self.column) >= -1
        advance(self)

    monkeypatch.setattr(FixedCache, "advance", advancing)
    found = sampled()
    assert len(found.seen.graphs) > 0
    assert sum(found.seen.illegal.values()) == len(found.seen.graphs)


def test_weights_handed_over_without_an_event_are_a_race(
    sampled: Sampled, monkeypatch: pytest.MonkeyPatch
) -> None:
    unhanded = OwnStream.handing_over
    assert sampled("one step ahead").seen.races == {}

    def forgetting(self: OwnStream) -> object:
        return unhanded(OwnStream(torch.device("cpu")))

    monkeypatch.setattr(OwnStream, "handing_over", forgetting)
    races = sampled("one step ahead").seen.races
    assert any("stream" in race and "does not wait for default" in race for race in races)


@pytest.mark.parametrize(("mode", "violations"), [("global", 1), ("thread_local", 0)])
def test_another_threads_work_is_illegal_during_a_global_capture_only(mode: str, violations: int) -> None:
    with pretended_cuda() as seen:
        tensor = torch.zeros(2, device="cuda")
        worker = threading.Thread(target=lambda: tensor * 2, name="ahead")
        with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode=mode):
            worker.start()
            worker.join()
    assert sum(seen.illegal.values()) == violations


def test_the_sampling_thread_works_and_records_on_its_own_stream(sampled: Sampled) -> None:
    seen = sampled("one step ahead").seen
    (sampling,) = (streams for thread, streams in seen.streams.items() if thread.startswith("ahead"))
    assert seen.streams["MainThread"] == {"default"}
    assert len(sampling) == 1
    assert "default" not in sampling
    assert {capture.mode for capture in seen.captures} == {"thread_local"}
    assert {capture.stream for capture in seen.captures} == sampling
