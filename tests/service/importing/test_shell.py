"""Overrides of verl's shell scripts."""

from pathlib import Path
from typing import Any

import pytest

from service.importing.reading import read_config


def test_the_overrides_of_a_shell_script_are_read(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        "MODEL=Qwen/Qwen3-0.6B\npython3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \\\n"
        "  actor_rollout_ref.model.path=$MODEL \\\n  +data.seed=7 trainer.logger='[\"console\"]' $@\n"
    )
    assert read_config(script) == {
        "algorithm.adv_estimator": "grpo",
        "actor_rollout_ref.model.path": "Qwen/Qwen3-0.6B",
        "data.seed": 7,
        "trainer.logger": ["console"],
    }


@pytest.mark.parametrize(
    ("assignments", "value", "expected"),
    [
        ("", "$((1024 * 2))", 2048),
        ("", '"$((1024 * 2))"', 2048),
        ("A=$((1024 * 2))\nB=$((A / 3))\n", "$(( (A + ${B}) * 2 ))", 5460),
        ("A=1\nB=$A\n", "$B", 1),
        ("A=${A:-8}\n", "$A", 8),
        ('ROOT=/data\nA=${A:-"${ROOT}/tiny"}\n', "$A", "/data/tiny"),
        ("A=4\n", "${A:-8}", 4),
        ("", "$((A * 2))", "$((A*2))"),
        ("", "$((1 +))", "$((1+))"),
        ("P=$P:x\n", "$P", "$P:x"),
    ],
)
def test_a_shell_script_computes_the_value_of_an_override(
    tmp_path: Path, assignments: str, value: str, expected: Any
) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"{assignments}python3 -m verl.trainer.main_ppo data.x={value} data.y=7\n")
    assert read_config(script) == {"data.x": expected, "data.y": 7}


@pytest.mark.parametrize("name", ["sums: lr 1e-6: run 2", "[old] sums", "@home"])
def test_an_override_that_is_not_yaml_is_a_text(tmp_path: Path, name: str) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"python3 -m verl.trainer.main_ppo 'trainer.experiment_name={name}'\n")
    assert read_config(script) == {"trainer.experiment_name": name}
