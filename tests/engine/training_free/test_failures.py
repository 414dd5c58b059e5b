"""Training-free jobs whose endpoints or graders fail."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.config.job import RunConfig
from grpo_engine.contract.errors import ConfigError, EndpointDownError, GraderError, OverspentError
from grpo_engine.contract.events import RolloutsRecorded, StepFinished
from tests.engine.training_free.runs import of, run
from tests.support.capable_model import KEY, CapableModel
from tests.support.chat_server import Reply

Make = Callable[..., RunConfig]


def test_an_endpoint_that_is_down_ends_the_job_with_a_code_and_no_secrets(
    make_job: Make, serve: Any, tmp_path: Path
) -> None:
    server = serve(lambda request: Reply(status=503, body=b"overloaded"))
    with pytest.raises(EndpointDownError) as failure:
        run(make_job(request_timeout_seconds=0.5), tmp_path)
    assert failure.value.code == "endpoint_failed"
    assert "helper/capable does not answer: status 503: overloaded" in failure.value.message
    reported = failure.value.message + "".join(failure.value.evidence)
    assert KEY not in reported
    assert server.host.split(":")[0] not in reported


def test_a_key_that_is_not_accepted_ends_the_job_at_the_first_answers(
    make_job: Make, serve: Any, tmp_path: Path
) -> None:
    server = serve(lambda request: Reply(status=401, body=f"bad key {KEY}".encode()))
    with pytest.raises(EndpointDownError, match="rejected the operator's key"):
        run(make_job(), tmp_path)
    assert len(server.requests) <= 16


def test_an_attempt_that_the_endpoint_refuses_is_unscorable_and_not_a_reward_of_0(
    make_job: Make, serve: Any, tmp_path: Path
) -> None:
    model = CapableModel()

    def answer(request: dict[str, Any]) -> Any:
        task = request["messages"][-1]["content"]
        if task == "What is zorb(2, 2)?":
            return Reply(status=400, body=b"filtered")
        return model(request)

    serve(answer)
    events = run(make_job(num_rows=4, n_epochs=1), tmp_path)
    (step,) = of(events, StepFinished)
    assert (step.metrics["reward"], step.metrics["completions/unanswered"]) == (0.25, 4.0)
    groups = next(event.groups for event in of(events, RolloutsRecorded) if event.split == "train")
    (refused,) = [group for group in groups if group.row == 0]
    assert {completion.reward for completion in refused.completions} == {None}
    assert refused.completions[0].errors["rollout"].message == "status 400: filtered"


def test_the_limit_of_calls_holds_over_the_whole_job(make_job: Make, serve: Any, tmp_path: Path) -> None:
    server = serve(CapableModel())
    with pytest.raises(OverspentError, match="the limit of 60 calls"):
        run(make_job(max_calls=60), tmp_path)
    assert len(server.requests) == 60
    assert (tmp_path / "checkpoints/step-00000001/experiences/experiences.json").exists()


def test_a_grader_that_fails_on_most_attempts_ends_the_job(
    make_job: Make, serve: Any, tmp_path: Path
) -> None:
    serve(CapableModel())
    with pytest.raises(GraderError):
        run(make_job(grader={"type": "numeric", "reference": "{{item.nothing}}"}), tmp_path)


@pytest.mark.parametrize(
    ("hyperparameters", "reason"),
    [
        ({"rollouts": {"endpoint": "other", "model": "capable"}}, "there is no endpoint 'other'"),
        ({"reflection": {"endpoint": "helper", "model": "huge"}}, "does not offer 'huge'"),
        ({"max_cost_usd": 5.0}, "max_cost_usd needs the prices"),
    ],
)
def test_an_unoffered_endpoint_is_refused_before_the_first_call(
    make_job: Make, serve: Any, tmp_path: Path, hyperparameters: dict[str, Any], reason: str
) -> None:
    server = serve(CapableModel())
    with pytest.raises(ConfigError, match=reason):
        run(make_job(**hyperparameters), tmp_path)
    assert server.requests == []
