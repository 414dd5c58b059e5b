"""The comparison of learning curves with TRL: its task, this engine's side, the verdict and the page."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from bench.trl import ours
from bench.trl.compare import in_our_order
from bench.trl.learning import CASES, judge, page, spec_of
from bench.trl.learning_task import HELD_OUT, LARGEST_LOGIT, TRAIN, accuracy, make_task, solution
from bench.trl.side import read_rows
from grpo_engine.run.build import build_loop
from grpo_engine.training.trainer import Trainer

HAS_ZERO = {"type": "format", "name": "has_zero", "pattern": ".*0.*"}
"""A reward that differs between the samples of a model that has learned almost nothing."""


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_task(tmp_path_factory.mktemp("task"), hidden=32, steps=8)


def test_a_solution_forgets_half_of_the_carries() -> None:
    drawn = random.Random(0)
    solutions = [solution((17, 8, 9), drawn) for _ in range(1000)]
    assert set(solutions) == {
        "17+8=25;25+9=34;A34",
        "17+8=25;25+9=24;A24",
        "17+8=15;15+9=24;A24",
        "17+8=15;15+9=14;A14",
    }
    assert solutions.count("17+8=25;25+9=34;A34") / 1000 == pytest.approx(0.25, abs=0.04)


def test_the_start_model_has_the_logits_of_a_trained_one_and_sees_no_held_out_sum(task: Path) -> None:
    held_out, train = ({row["prompt"] for row in read_rows(task / name)} for name in (HELD_OUT, TRAIN))
    assert (len(held_out), len(train)) == (200, 71 * 64 - 200)
    assert not held_out & train
    share, logit = accuracy(task, task, "float32")
    assert logit >= LARGEST_LOGIT * (1 - 1e-5)
    assert 0 <= share < 0.1


@pytest.mark.parametrize("name", ["LoRA, bfloat16", "all weights, bfloat16"])
def test_this_engines_side_saves_what_it_has_trained(name: str, task: Path, tmp_path: Path) -> None:
    case = {**CASES[name], "learning_rate": 1e-2}
    spec = spec_of(case, task, seed=0, steps=2, rows=str(task / TRAIN), trained=str(tmp_path / "trained"))
    found = ours.run(replace(spec, prompts=2, grader=HAS_ZERO))
    assert len(found.steps) == 2
    assert 0 < found.steps[0].reward < 1
    assert found.moved > 1e-3
    before, after = (accuracy(task, folder, spec.dtype)[1] for folder in (task, tmp_path / "trained"))
    assert before != after


def test_trl_gets_the_prompts_of_each_step_in_the_order_of_this_engine(task: Path, tmp_path: Path) -> None:
    few = tmp_path / "rows.jsonl"
    few.write_text("".join(f"{line}\n" for line in (task / TRAIN).read_text().splitlines()[:6]))
    spec = spec_of(CASES["LoRA, bfloat16"], task, seed=3, steps=5, rows=str(few))
    spec = replace(spec, prompts=2)
    trainer = build_loop(ours.config_of(spec), tmp_path / "run").method
    assert isinstance(trainer, Trainer)
    drawn = [prompt.text for step in range(1, 6) for prompt in trainer.source.batch(step)]
    trainer.close()
    theirs = in_our_order(spec, tmp_path)
    assert [row["prompt"] for row in read_rows(theirs.rows)] == drawn
    assert theirs.theirs == {"shuffle_dataset": False}


def test_a_difference_is_compared_with_the_spread_between_seeds() -> None:
    trl = [0.78, 0.80, 0.82]
    noise = 4.604 * 0.02 * (2 / 3) ** 0.5
    close = judge([0.80, 0.82, 0.84], trl, before=0.4)
    assert close["difference"] == pytest.approx(0.02)
    assert close["noise"] == pytest.approx(noise)
    assert close["verdict"] == "within noise"
    assert judge([0.87, 0.89, 0.91], trl, before=0.4)["verdict"] == "outside noise"
    assert judge([0.69, 0.71, 0.73], trl, before=0.4)["verdict"] == "outside noise"


def test_a_comparison_whose_noise_hides_what_training_gains_is_inconclusive() -> None:
    assert judge([0.60, 0.80, 1.00], [0.60, 0.80, 1.00], before=0.4)["verdict"] == "inconclusive"
    assert judge([0.40, 0.41, 0.42], [0.40, 0.41, 0.42], before=0.4)["verdict"] == "inconclusive"


def test_equal_results_of_all_seeds_leave_a_noise_of_one_held_out_row() -> None:
    found = judge([1.0, 1.0, 1.0], [0.99, 0.99, 0.99], before=0.4)
    assert found["noise"] == pytest.approx(4.604 * 0.005 * (2 / 3) ** 0.5)
    assert found["verdict"] == "within noise"


def test_the_page_shows_each_seed_and_the_fifths_of_the_curve() -> None:
    runs = [{"accuracy": 0.8, "area": 0.55, "rewards": [i / 10 for i in range(10)]}] * 2
    verdict = {"before": 0.4, "difference": -0.01, "noise": 0.1, "verdict": "within noise"}
    verdicts = {"accuracy": verdict, "area": verdict}
    case = {"device": "cuda", "largest_logit": 18.0, "runs": {"ours": runs, "TRL": runs}}
    lines = page({"LoRA": {**case, "verdicts": verdicts}}, "learning-gpu").splitlines()
    assert (
        "Written by `python -m bench.trl.learning --device cuda --out bench/learning-gpu.md`, with"
        in lines[2]
    )
    assert (
        "| LoRA | accuracy | 0.400 | 0.800, 0.800 | 0.800, 0.800 | -0.010 | 0.100 | within noise |" in lines
    )
    assert "| LoRA | TRL | 0.050 | 0.250 | 0.450 | 0.650 | 0.850 |" in lines
