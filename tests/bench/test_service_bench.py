"""The service's benchmark with tiny numbers: it runs whole, checks itself and writes its page."""

import json
from pathlib import Path

import pytest

from bench.service import deployment
from bench.service import load as service
from bench.service.client import Answer, figures_of, percentile
from tests.support.api_process import running_api


@pytest.mark.slow
def test_a_quick_run_measures_every_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployment, "running_api", lambda *given, within: running_api(*given))  # forked
    out = tmp_path / "service.json"
    assert service.main(["--quick", "--out", str(out)]) == 1, "so little load meets no mark of size"
    page = json.loads(out.read_text())
    figures, size = page["figures"], service.QUICK
    assert figures["life_cycles"]["jobs"] == size.jobs
    assert figures["life_cycles"]["double_claims"] == 0
    assert figures["streams"]["streams"] == size.streams
    assert figures["metrics"]["rows"] == size.metric_rows
    for name in ("post", "poll", "list", "poll_queued", "list_queued"):
        assert figures[name]["requests"] == size.rate * size.seconds
    assert {mark["figure"] for mark in page["marks"]} == {
        f"{mark.scenario}.{mark.figure}" for mark in service.MARKS
    }


def test_percentiles_are_of_the_values_themselves() -> None:
    values = [float(number) for number in range(1, 101)]
    assert [percentile(values, share) for share in (0.0, 0.5, 0.99, 1.0)] == [1, 50, 99, 100]
    assert percentile([7.0], 0.99) == 7.0


def test_a_refused_request_is_not_a_figure() -> None:
    answers = [Answer(200, b"", 0.1), Answer(503, b"away", 0.1)]
    with pytest.raises(AssertionError, match="1 requests failed: 503 b'away'"):
        figures_of(answers, 10)
