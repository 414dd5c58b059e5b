"""Episodes as a sampler, against a real OpenEnv server: tokens, seeds, rewards, failed sessions."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from grpo_engine.config.environments import OpenEnvEnvironment
from grpo_engine.contract.errors import DatasetError, EnvironmentUnreachableError
from grpo_engine.contract.records import EpisodeTurn, FinishReason
from grpo_engine.models.policy import Policy
from grpo_engine.objective.types import Completion, Group
from grpo_engine.outbound import openenv
from grpo_engine.rollout.dataset import RowReader
from grpo_engine.rollout.environments.sampler import EnvironmentSampler, refuse_unknown_environments
from grpo_engine.rollout.environments.servers import OpenEnvServers
from grpo_engine.rollout.sampler.base import Sampling
from tests.engine.rollout.tools.scripted_sampler import ScriptedSampler, Stream, encoded
from tests.ports import free_port
from tests.support.openenv.server import OpenEnvServer

SAMPLING = Sampling(max_tokens=400, seed=3, step=2)
ROW = {"messages": [{"role": "user", "content": "Play."}], "environment": "game"}
pytestmark = pytest.mark.usefixtures("allowed")

Play = Callable[..., list[Group]]


@pytest.fixture
def play(make_policy: Callable[..., Policy], words: OpenEnvServer) -> Play:
    def play(
        says: Callable[[Stream], Any],
        *resets: dict[str, Any],
        size: int = 1,
        sampling: Sampling = SAMPLING,
        url: str = words.url,
        **options: Any,
    ) -> list[Group]:
        """A group for each row's `reset`; `says` by (prompt, sample, turn)."""
        policy = make_policy()
        rows = [{**ROW, "reset": reset} for reset in resets or ({"word": "ab"},)]
        prompts = RowReader(policy.tokenizer).prompts(rows)
        return make_sampler(policy, says, url, **options).generate(prompts, size, sampling)

    return play


@pytest.fixture(scope="module")
def sixty_four() -> Iterator[OpenEnvServer]:
    with OpenEnvServer("word", sessions=64) as server:
        yield server


def make_sampler(
    policy: Policy,
    says: Callable[[Stream], Any],
    url: str,
    schemas: dict[str, Any] | None = None,
    **options: Any,
) -> EnvironmentSampler:
    given = {"type": "openenv", "url": url, "timeout_seconds": 60.0, **options}
    environments = {"game": OpenEnvEnvironment.model_validate(given)}
    inner = ScriptedSampler(policy, says)
    return EnvironmentSampler(
        inner, OpenEnvServers(policy, environments, RowReader(policy.tokenizer), schemas=schemas)
    )


def spells(word: str) -> Callable[[Stream], str]:
    return lambda stream: word[stream[2]]


def completions(groups: list[Group]) -> list[Completion]:
    return [each for group in groups for each in group.completions]


def test_turns_observations_and_rewards_are_recorded(play: Play) -> None:
    (completion,) = completions(play(spells("ax")))
    assert completion.episode is not None
    assert completion.episode.turns == (
        EpisodeTurn(action="a", observation="right", reward=1.0),
        EpisodeTurn(action="x", observation="wrong", reward=0.0, done=True),
    )
    assert completion.episode.reward == 0.0
    assert completion.turns == 2
    assert completion.finish_reason is FinishReason.STOP


def test_the_reward_is_the_last_or_the_sum(play: Play) -> None:
    assert [
        each.episode and each.episode.reward for each in completions(play(spells("ax"), reward="sum"))
    ] == [1.0]
    assert [each.episode and each.episode.reward for each in completions(play(spells("xb")))] == [1.0]


def test_an_observation_is_the_users_next_message_and_is_not_marked_as_sampled(
    play: Play, make_policy: Callable[..., Policy]
) -> None:
    (group,) = play(spells("ab"))
    (completion,), tokenizer = group.completions, make_policy().tokenizer
    end = tokenizer.eos_token_id
    observation = tokenizer("<|user|>right<|assistant|>").input_ids
    (first,), (last,) = (encoded(make_policy(), letter) for letter in "ab")
    assert list(completion.token_ids) == [first, end, *observation, last, end]
    assert completion.sampled == (True, True, *[False] * len(observation), True, True)
    assert group.prompt.text == "<|user|>Play.\n\nspell ab<|assistant|>"
    assert list(group.prompt.token_ids) == list(tokenizer(group.prompt.text).input_ids)


def test_all_samples_of_a_group_get_the_same_task_and_other_groups_and_steps_others(play: Play) -> None:
    def tasks(sampling: Sampling) -> list[str]:
        groups = play(spells("zz"), *[{}] * 6, size=3, sampling=sampling)
        assert all(each.failure is None for each in completions(groups))
        return [group.prompt.text for group in groups]

    assert len(set(tasks(SAMPLING))) > 1
    assert tasks(SAMPLING) == tasks(SAMPLING)
    assert tasks(SAMPLING) != tasks(replace(SAMPLING, step=3))
    same = replace(SAMPLING, same_tasks=True)
    assert tasks(same) == tasks(replace(same, step=3))


def test_a_group_whose_environment_ignores_the_seed_is_not_compared(play: Play) -> None:
    groups = play(spells("zz"), {"behave": "random"}, {"behave": "random"}, size=12)
    failures = {each.failure for each in completions(groups)}
    reason = "reset gave another first observation than for others of the group, with the same seed"
    assert failures == {None, reason}, "one reason for all groups"


@pytest.mark.parametrize(
    ("behave", "seconds", "reason"),
    [
        ("huge", 60.0, "more than 1048576 bytes"),
        ("silent", 5.0, "no answer to step within 5 s"),
        ("raise", 60.0, "the game broke"),
        ("over", 60.0, "over after reset"),
    ],
)
def test_a_failed_session_is_unscorable_and_leaves_the_others(
    play: Play, behave: str, seconds: float, reason: str
) -> None:
    groups = play(spells("ab"), {"word": "ab", "behave": behave}, {"word": "ab"}, timeout_seconds=seconds)
    failed, whole = completions(groups)
    assert reason in str(failed.failure)
    assert failed.episode is not None
    assert failed.episode.reward is None
    assert whole.failure is None
    assert whole.episode is not None
    assert whole.episode.reward == 1.0


def test_no_reward_is_not_a_reward_of_0(play: Play) -> None:
    (completion,) = completions(play(spells("a"), {"behave": "no_reward"}))
    assert completion.failure is None
    assert completion.episode is not None
    assert completion.episode.reward is None


def test_sixty_four_episodes_share_two_sessions(play: Play) -> None:
    groups = play(spells("ab"), *[{"word": "ab"}] * 8, size=8, concurrency=2)
    assert [each.episode and each.episode.reward for each in completions(groups)] == [1.0] * 64


@pytest.mark.parametrize(("wanted", "refused"), [(64, False), (80, True)])
def test_a_server_of_sixty_four_sessions_scores_all_that_are_wanted_at_once(
    play: Play, sixty_four: OpenEnvServer, monkeypatch: pytest.MonkeyPatch, wanted: int, refused: bool
) -> None:
    refusals: list[str] = []
    reset = openenv._reset_session

    async def watched(*arguments: Any) -> Any:
        try:
            return await reset(*arguments)
        except openenv.TemporaryFailure as error:
            refusals.append(str(error))
            raise

    monkeypatch.setattr(openenv, "_reset_session", watched)
    # no step is answered before 64 sessions are open
    resets = [{"word": "ab", "gate": str(wanted)}] * (wanted // 8)
    groups = play(
        spells("ab"), *resets, size=8, url=sixty_four.url, concurrency=wanted, timeout_seconds=120.0
    )
    assert [each.episode and each.episode.reward for each in completions(groups)] == [1.0] * wanted
    assert any("no free session" in each for each in refusals) or not refused


def test_max_turns_cuts_an_episode_and_keeps_its_reward(play: Play) -> None:
    (completion,) = completions(play(spells("ab"), max_turns=1))
    assert completion.finish_reason is FinishReason.LENGTH
    assert completion.episode is not None
    assert completion.episode.reward == 1.0


def test_observations_count_in_the_tokens_of_a_completion(play: Play) -> None:
    (group,) = play(lambda stream: "a" * 500, sampling=replace(SAMPLING, max_tokens=60))
    (completion,) = group.completions
    added = len("\n\nspell ab")
    assert len(completion.token_ids) == 60 - added
    assert completion.finish_reason is FinishReason.LENGTH
    (short,) = completions(play(spells("ab"), sampling=replace(SAMPLING, max_tokens=5)))
    assert "no room" in str(short.failure)


def test_actions_of_several_fields_are_json_and_a_malformed_one_is_reported_to_the_model(
    play: Play, grid: OpenEnvServer
) -> None:
    turns = ["no action", '{"row": "north"}', 'I go {"row": 2, "column": 3}']
    (completion,) = completions(play(lambda stream: turns[stream[2]], url=grid.url))
    assert completion.episode is not None
    first, second, last = completion.episode.turns
    assert first.observation == "Error: the action must be a JSON object"
    assert second.observation.startswith("Error: row: Input should be a valid integer")
    assert (first.reward, second.reward, last.reward) == (None, None, 5.0)


def test_a_malformed_action_ends_the_episode_if_the_job_says_so(play: Play, grid: OpenEnvServer) -> None:
    (completion,) = completions(play(lambda _: "north", url=grid.url, malformed_action="end"))
    assert completion.turns == 1
    assert completion.finish_reason is FinishReason.STOP
    assert completion.episode is not None
    assert completion.episode.reward is None


def test_a_server_killed_in_the_middle_fails_its_sessions_and_is_found_again(
    make_policy: Callable[..., Policy],
) -> None:
    with OpenEnvServer("word") as server:
        policy = make_policy()
        sampler = make_sampler(policy, spells("ab"), server.url, timeout_seconds=6.0)
        rows = [{**ROW, "reset": {"word": "ab", "behave": "kill"}}, {**ROW, "reset": {"word": "ab"}}]
        prompts = RowReader(policy.tokenizer).prompts(rows)
        failed = completions(sampler.generate(prompts[:1], 4, SAMPLING))
        failures = [str(each.failure) for each in failed]
        # the first step kills the server; others may not have connected by then
        assert "step: the server closed the connection" in failures
        assert all("closed the connection" in each or "no connection" in each for each in failures)
        server.start()
        again = completions(sampler.generate(prompts[1:], 4, SAMPLING))
    assert [each.episode and each.episode.reward for each in again] == [1.0] * 4
    assert sampler.failed_batches == 0


def test_a_server_that_stays_away_fails_the_job(make_policy: Callable[..., Policy]) -> None:
    policy = make_policy()
    url = f"http://127.0.0.1:{free_port()}"
    sampler = make_sampler(policy, spells("ab"), url, {"game": {"required": []}}, timeout_seconds=0.5)
    (prompt,) = RowReader(policy.tokenizer).prompts([ROW])
    for _ in range(2):
        (completion,) = completions(sampler.generate([prompt], 1, SAMPLING))
        assert "no connection" in str(completion.failure)
        assert completion.token_ids == ()
    with pytest.raises(EnvironmentUnreachableError, match="3 batches") as raised:
        sampler.generate([prompt], 1, SAMPLING)
    assert raised.value.evidence[0].startswith("game, row 1: no connection:")


def test_a_job_whose_sessions_all_fail_names_a_row_and_a_turn_of_each_reason(
    make_policy: Callable[..., Policy], words: OpenEnvServer
) -> None:
    policy = make_policy()
    sampler = make_sampler(policy, spells("ab"), words.url)
    rows = [ROW, *({**ROW, "reset": {"word": "ab", "behave": each}} for each in ("raise", "over"))]
    prompts = RowReader(policy.tokenizer).prompts(rows)[1:]
    for _ in range(2):
        sampler.generate(prompts, 2, SAMPLING)
    with pytest.raises(EnvironmentUnreachableError, match="all 4 sessions failed") as raised:
        sampler.generate(prompts, 2, SAMPLING)
    broken, over = raised.value.evidence
    assert broken.startswith("game, row 2, turn 1: step: ")
    assert over == "game, row 3: the episode was over after reset"


def test_small_batches_that_fail_after_a_good_one_of_their_step_do_not_end_the_job(
    make_policy: Callable[..., Policy], words: OpenEnvServer
) -> None:
    policy = make_policy()
    sampler = make_sampler(policy, spells("ab"), words.url)
    rows = [{**ROW, "reset": {"word": "ab"}}, {**ROW, "reset": {"word": "ab", "behave": "over"}}]
    good, bad = RowReader(policy.tokenizer).prompts(rows)
    sampler.generate([good], 1, SAMPLING)
    for _ in range(3):  # as dynamic_sampling replaces groups
        (failed,) = completions(sampler.generate([bad], 1, SAMPLING))
        assert failed.failure
    for step in (1, 2):
        sampler.generate([bad], 1, replace(SAMPLING, step=SAMPLING.step + step))
    with pytest.raises(EnvironmentUnreachableError, match="3 batches"):
        sampler.generate([bad], 1, replace(SAMPLING, step=SAMPLING.step + 3))


def test_rows_name_an_environment_of_the_job(make_policy: Callable[..., Policy]) -> None:
    reader = RowReader(make_policy().tokenizer)
    game = OpenEnvEnvironment(type="openenv", url="http://127.0.0.1:9")
    refuse_unknown_environments(reader.prompts([ROW]), {"game": game})
    for changed in ({"environment": "chess"}, {"environment": None}, {"reset": [1]}):
        with pytest.raises(DatasetError, match="row 1: "):
            refuse_unknown_environments(reader.prompts([{**ROW, **changed}]), {"game": game})
