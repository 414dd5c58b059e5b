"""Models of odd shapes through HTTP: trained, downloaded and exported, they compute what the engine computes.

One `grpo up` with the real engine in float32; plain transformers and PEFT read what it made.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from examples.arithmetic import write_jsonl
from service.cli.commands.download import fetch, fetch_adapter, unpack
from service.cli.http.client import JOBS, Client
from tests.e2e.shapes import SHAPES, make_shape
from tests.service.embedded import Up, grpo_up, succeed

pytestmark = [
    pytest.mark.slow,
    # peft, on targets of fused experts that it names itself
    pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys:RuntimeWarning"),
]
QUESTION = {"role": "user", "content": "What is the sum of 9 and 7? Only the number."}
ROWS = [{"messages": [QUESTION]}, {"messages": [{"role": "user", "content": "3+4="}]}]
METHOD = {
    "type": "reinforcement",
    "reinforcement": {
        "grader": {
            "type": "text_similarity",
            "evaluation_metric": "fuzzy_match",
            "input": "{{sample.output_text}}",
            "reference": "sum of 1 and 2",
        },
        "hyperparameters": {
            "group_size": 4,
            "prompts_per_step": 2,
            "n_steps": 2,
            "learning_rate": 0.02,
            "max_completion_tokens": 8,
            "lora": {"rank": 5},
        },
    },
}
TOLERANCE = 1e-4
MOVED = 10 * TOLERANCE


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    home = tmp_path_factory.mktemp("shapes") / "home"
    settings = {"GRPO_ENGINE_MODULE": "grpo_engine", "GRPO_WARM_ENGINE": "0"}
    with grpo_up(home, **settings, GRPO_RUNTIME='{"dtype": "float32"}') as up:
        yield up


def trained(client: Client, name: str, rows: Path) -> dict[str, Any]:
    body = {"model": name, "seed": 1, "training_file": client.upload(rows)["id"], "method": METHOD}
    return succeed(client, body)


def merged(client: Client, job_id: str, folder: Path) -> Path:
    path = f"{JOBS}/{job_id}/exports"
    export = client.create(path, {"format": "merged"})
    export = client.awaited(f"{path}/{export['id']}", export, lambda now: None)
    fetch(client, export["content"], folder / "merged.tar")
    return unpack(folder / "merged.tar", folder / "merged")


def logprobs(model: Any, base: Path, count: int) -> torch.Tensor:
    """Log-probabilities of the first tokens of the model's greedy answer to `QUESTION`."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    text = tokenizer.apply_chat_template([QUESTION], tokenize=False, add_generation_prompt=True)
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
    found = []
    with torch.no_grad():
        for _ in range(count):
            best = model(input_ids=ids, use_cache=False).logits[0, -1].log_softmax(-1).max(-1)
            found.append(best.values)
            ids = torch.cat([ids, best.indices[None, None]], 1)
    return torch.stack(found)


@pytest.mark.parametrize("name", SHAPES)
def test_an_odd_model_is_trained_served_downloaded_and_exported_as_one(
    up: Up, name: str, tmp_path: Path
) -> None:
    base, client = make_shape(tmp_path / "base", SHAPES[name]), up.client
    assert up.grpo("models", "add", name, base).returncode == 0
    job = trained(client, name, write_jsonl(tmp_path / "rows.jsonl", ROWS))
    assert job["warnings"] == []
    question = {"model": job["fine_tuned_model"], "messages": [QUESTION], "temperature": 0}
    answer = client.post("/v1/chat/completions", {**question, "logprobs": True, "max_tokens": 8})
    tokens = answer["choices"][0]["logprobs"]["content"]
    engine = torch.tensor([token["logprob"] for token in tokens])

    def plain(adapter: Path | None = None, folder: Path = base) -> torch.Tensor:
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        model = model if adapter is None else PeftModel.from_pretrained(model, adapter)
        return logprobs(model.eval(), base, len(tokens))

    adapter = unpack(fetch_adapter(client, job["id"], tmp_path)[0])
    assert float((plain(adapter) - engine).abs().max()) < TOLERANCE
    assert float((plain() - engine).abs().max()) > MOVED
    whole = plain(folder=merged(client, job["id"], tmp_path))
    rounding = 0.5 if (base / "model.safetensors.index.json").exists() else TOLERANCE
    assert float((whole - engine).abs().max()) < rounding, "an export has the number format of its base"
