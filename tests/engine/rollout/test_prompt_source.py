"""Which prompts a step takes: an order that is the seed's alone, and rests that always end."""

import json
from itertools import pairwise

import pytest

from grpo_engine.objective.types import Prompt
from grpo_engine.rollout.prompt_source import (
    MAX_REST_EPOCHS,
    CurriculumSource,
    LevelSource,
    PromptOutcome,
    PromptSource,
)


def prompts(count: int) -> list[Prompt]:
    return [Prompt(row, "", (1,), {}) for row in range(count)]


def source(seed: int) -> PromptSource:
    return PromptSource(prompts(5), 2, seed)


def rows(chosen: list[Prompt]) -> list[int]:
    return [prompt.row for prompt in chosen]


def test_every_epoch_holds_each_row_once_in_another_order() -> None:
    found = [prompt.row for step in range(1, 6) for prompt in source(1).batch(step)]
    assert sorted(found[:5]) == sorted(found[5:]) == [0, 1, 2, 3, 4]
    assert found[:5] != found[5:]


def test_a_steps_rows_depend_on_seed_and_step_alone() -> None:
    forwards = source(3)
    one_after_another = [forwards.batch(step) for step in range(1, 9)]
    assert source(3).batch(8) == one_after_another[7]
    assert [source(4).batch(step) for step in range(1, 9)] != one_after_another


def test_fresh_rows_are_new_to_the_step_and_differ_by_attempt() -> None:
    made = PromptSource(prompts(50), 2, 0)
    first, second = made.fresh(1, 1, 5, {0, 1, 2}), made.fresh(1, 2, 5, {0, 1, 2})
    assert len(set(rows(first))) == 5
    assert not {0, 1, 2} & set(rows(first) + rows(second))
    assert first != second
    assert first == PromptSource(prompts(50), 2, 0).fresh(1, 1, 5, {0, 1, 2})


def test_no_more_fresh_rows_come_than_there_are() -> None:
    assert rows(source(0).fresh(1, 1, 4, {0, 1, 2})) in ([3, 4], [4, 3])
    assert source(0).fresh(1, 1, 0, set()) == []
    assert source(0).fresh(1, 1, 3, set(range(5))) == []


SIGNAL = PromptOutcome(True, 0.5)
SOLVED = PromptOutcome(False, 1.0)
HOPELESS = PromptOutcome(False, 0.0)


def visit(made: CurriculumSource, step: int, dull: dict[int, PromptOutcome]) -> list[int]:
    """One step: its rows, of which those in `dull` taught nothing."""
    chosen = rows(made.batch(step))
    made.observe({row: dull.get(row, SIGNAL) for row in chosen})
    return chosen


def test_without_dull_rows_the_resting_source_takes_the_plain_order() -> None:
    resting, plain = CurriculumSource(prompts(5), 2, 1), PromptSource(prompts(5), 2, 1)
    assert [visit(resting, step, {}) for step in range(1, 9)] == [
        rows(plain.batch(step)) for step in range(1, 9)
    ]


def epochs_of(row: int, outcome: PromptOutcome, epochs: int, count: int = 6) -> list[int]:
    """Epochs in which a row that never teaches anything comes."""
    made = CurriculumSource(prompts(count), 1, 2)
    came = []
    while (epoch := made.cursor // count) < epochs:
        if row in visit(made, 1, {row: outcome}):
            came.append((made.cursor - 1) // count)
        assert made.cursor // count >= epoch
    return came


@pytest.mark.parametrize("outcome", [SOLVED, HOPELESS])
def test_a_dull_row_rests_for_1_2_4_8_epochs_and_always_comes_again(outcome: PromptOutcome) -> None:
    came = epochs_of(3, outcome, 40)
    assert [later - earlier - 1 for earlier, later in pairwise(came)] == [1, 2, 4, 8, 8, 8]
    assert MAX_REST_EPOCHS == 8


def test_a_row_that_teaches_again_is_awake_at_once() -> None:
    made = CurriculumSource(prompts(4), 1, 2)
    steps = [visit(made, 1, {2: SOLVED}) for _ in range(4)]
    assert [2] in steps
    awake_again = [visit(made, 1, {}) for _ in range(12)]
    # one epoch of rest, then every epoch
    assert awake_again.count([2]) == 2
    assert made.difficulty[2].visits_without_signal == 0
    assert made.difficulty[2].visits == 3


def test_if_all_rows_rest_resting_ones_are_used() -> None:
    made = CurriculumSource(prompts(3), 2, 0)
    everything = dict.fromkeys(range(3), SOLVED)
    for _ in range(12):
        assert len(visit(made, 1, everything)) == 2


def test_a_step_larger_than_the_dataset_is_filled() -> None:
    assert len(CurriculumSource(prompts(3), 8, 0).batch(1)) == 8


def test_the_state_survives_json_and_gives_the_same_rows_again() -> None:
    made = CurriculumSource(prompts(7), 3, 5)
    for step in range(1, 6):
        visit(made, step, {1: SOLVED, 4: HOPELESS})
    again = CurriculumSource(prompts(7), 3, 5)
    again.load(json.loads(json.dumps(made.state)))
    assert [visit(again, step, {1: SOLVED}) for step in range(6, 20)] == [
        visit(made, step, {1: SOLVED}) for step in range(6, 20)
    ]
    assert again.state == made.state


def test_fresh_rows_are_awake() -> None:
    made = CurriculumSource(prompts(4), 4, 0)
    visit(made, 1, {0: SOLVED, 1: HOPELESS})
    assert sorted(rows(made.fresh(2, 1, 9, set()))) == [2, 3]


def test_the_metrics_count_resting_rows_by_reason() -> None:
    made = CurriculumSource(prompts(4), 4, 0)
    assert made.metrics()["curriculum/resting"] == 0.0
    visit(made, 1, {0: SOLVED, 1: HOPELESS, 2: HOPELESS})
    assert made.metrics() == {
        "curriculum/resting": 3.0,
        "curriculum/solved": 1.0,
        "curriculum/hopeless": 2.0,
    }


def test_the_plain_source_keeps_nothing() -> None:
    made = source(0)
    made.observe({0: SOLVED})
    made.load({"cursor": 3})
    assert made.state == {}
    assert made.metrics() == {}


def with_levels() -> LevelSource:
    """Rows 0 to 3 of level 1, rows 4 to 7 of level 2, rows 8 to 11 of level 5; two rows a step."""
    levels = [1, 1, 1, 1, 2, 2, 2, 2, 5, 5, 5, 5]
    return LevelSource([Prompt(row, "", (1,), {"level": level}) for row, level in enumerate(levels)], 2, 3)


def take(made: LevelSource, pass_rate: float, steps: int) -> list[int]:
    """The rows of some steps, of which this share passes."""
    found: list[int] = []
    for _ in range(steps):
        chosen = rows(made.batch(0))
        made.observe({row: PromptOutcome(True, pass_rate) for row in chosen})
        found += chosen
    return found


def test_rows_of_a_higher_level_come_once_the_level_below_is_solved() -> None:
    made = with_levels()
    assert made.metrics() == {"curriculum/level": 1.0}
    unsolved = take(made, 0.5, 6)
    assert sorted(unsolved) == sorted([0, 1, 2, 3] * 3)
    assert set(take(made, 0.8, 2)) <= {0, 1, 2, 3}
    assert made.metrics() == {"curriculum/level": 2.0}
    assert set(take(made, 0.5, 8)) == set(range(8))
    take(made, 1.0, 8)
    assert set(take(made, 0.0, 12)) == set(range(12))


def test_only_outcomes_of_the_highest_open_level_solve_it() -> None:
    made = with_levels()
    take(made, 1.0, 2)
    for _ in range(20):
        chosen = rows(made.batch(0))
        made.observe({row: PromptOutcome(True, 1.0 if row < 4 else 0.0) for row in chosen})
    assert made.metrics() == {"curriculum/level": 2.0}


def test_a_level_source_continues_from_its_stored_state() -> None:
    made, again = with_levels(), with_levels()
    take(made, 0.9, 3)
    again.load(json.loads(json.dumps(made.state)))
    assert again.state == made.state
    assert [rows(again.batch(0)), again.metrics()] == [rows(made.batch(0)), made.metrics()]


def test_rows_of_a_closed_level_replace_none() -> None:
    assert set(rows(with_levels().fresh(1, 1, 10, {0}))) == {1, 2, 3}
