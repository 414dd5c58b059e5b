"""The task of `bench.trl.learning`: sums worked out step by step, by a model that forgets carries.

A supervised job teaches a small model solutions in which half of the carries are forgotten. Its samples are
often wrong, with logits as large as a trained model's; a reward for the right sum corrects it.
"""

import itertools
import json
import random
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.trl.reasoning import imitated
from bench.trl.side import read_rows
from examples.tiny_model import make_model

KEPT = Path(__file__).parents[2] / "build" / "bench" / "learning"
MODEL, TRAIN, HELD_OUT = "model", "train.jsonl", "held_out.jsonl"
NUM_HELD_OUT, BATCH = 200, 64
FORGOTTEN_CARRIES = 0.5
MAX_TOKENS = 24
LARGEST_LOGIT = 18.0
GRADER = {"type": "numeric", "name": "right_sum", "reference": "{{ item.target }}"}
"""The last number of a completion must be the sum."""


def solution(numbers: tuple[int, ...], drawn: random.Random) -> str:
    """`17+8=25;25+9=34;A34`, each carry forgotten at random: `17+8=15;…`."""
    total, steps = numbers[0], ""
    for number in numbers[1:]:
        forgets = total % 10 + number >= 10 and drawn.random() < FORGOTTEN_CARRIES
        result = total + number - 10 * forgets
        steps += f"{total}+{number}={result};"
        total = result
    return f"{steps}A{total}"


def make_task(folder: Path = KEPT, *, hidden: int = 128, steps: int = 240) -> Path:
    """The folder with the rows and the model, which is trained if it is not there yet."""
    if (folder / MODEL).exists():
        return folder
    run, drawn = folder / "run", random.Random(0)
    run.mkdir(parents=True, exist_ok=True)
    sums = list(itertools.product(range(10, 81), range(2, 10), range(2, 10)))
    drawn.shuffle(sums)
    asked = {each: "+".join(map(str, each)) + "=" for each in sums}
    held_out, train = sums[:NUM_HELD_OUT], sums[NUM_HELD_OUT:]
    for name, part in ((HELD_OUT, held_out), (TRAIN, train)):
        rows = [{"prompt": f"<|user|>{asked[each]}<|assistant|>", "target": str(sum(each))} for each in part]
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    # a solution is drawn for each row, so that the model cannot memorise which carries are forgotten
    taught = [(asked[each], solution(each, drawn)) for each in drawn.choices(train, k=BATCH * steps)]
    base = make_model(folder / "base", hidden=hidden, layers=2)
    trained = imitated(
        base, taught, run, batch_size=BATCH, n_steps=steps, learning_rate=3e-3, adam_beta2=0.98
    )
    _enlarge_logits(trained, folder)
    trained.rename(folder / MODEL)
    return folder


@torch.no_grad()
def _enlarge_logits(model_folder: Path, folder: Path) -> None:
    """Scale the final norm until the largest logit of a prompt is that of a trained model."""
    model = AutoModelForCausalLM.from_pretrained(model_folder)
    model.model.norm.weight *= LARGEST_LOGIT / model(_prompts(model_folder, folder)).logits.max()
    model.save_pretrained(model_folder)


def _prompts(model_folder: Path, folder: Path) -> torch.Tensor:
    """Token ids of the held-out prompts, which all have the same length."""
    texts = [row["prompt"] for row in read_rows(folder / HELD_OUT)]
    ids: torch.Tensor = AutoTokenizer.from_pretrained(model_folder)(texts, return_tensors="pt").input_ids
    return ids


@torch.no_grad()
def accuracy(folder: Path, trained: Path, dtype: str) -> tuple[float, float]:
    """Share of held-out sums that are solved greedily with transformers and PEFT, and the largest logit.

    `trained` has a folder `model` or `adapter`.
    """
    full = trained / MODEL
    model = AutoModelForCausalLM.from_pretrained(full if full.exists() else folder / MODEL, dtype=dtype)
    if not full.exists():
        model = PeftModel.from_pretrained(model, trained / "adapter")
    prompts = _prompts(folder / MODEL, folder)
    found = model.generate(prompts, max_new_tokens=MAX_TOKENS, do_sample=False)
    tokenizer = AutoTokenizer.from_pretrained(folder / MODEL)
    texts = tokenizer.batch_decode(found[:, prompts.shape[1] :], skip_special_tokens=True)
    targets = [row["target"] for row in read_rows(folder / HELD_OUT)]
    right = sum(text.rpartition("A")[2] == target for text, target in zip(texts, targets, strict=True))
    return right / len(targets), float(model(found).logits.max())
