"""Training scripts in the style of TRL's examples, and what is read from them."""

from pathlib import Path
from typing import Any

from service.importing.convert import Imported, imported
from service.importing.rules import Line, Options
from service.importing.script.trainer import Script, read_script

QUICK = '''
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer

dataset = load_dataset("trl-lib/tldr", split="train[:10%]")

def reward_len(completions, **kwargs):
    """The closer to 20 characters, the better."""
    return [-abs(20 - len(completion[0]["content"])) for completion in completions]

trainer = GRPOTrainer(
    model="Qwen/Qwen2-0.5B-Instruct",
    reward_funcs=reward_len,
    args=GRPOConfig("out", logging_steps=10),
    train_dataset=dataset,
)
trainer.train()
'''
GSM8K = """
import re, torch
import wandb
from dataclasses import dataclass, field
from datasets import load_dataset
from peft import LoraConfig, TaskType
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
import trl
from trl import GRPOConfig as Config, GRPOTrainer
from trl.rewards import think_format_reward as thinks, get_soft_overlong_punishment

SIZE = "1.5B"
MODEL = f"Qwen/Qwen2.5-{SIZE}-Instruct"
PATTERN = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
sampling = dict(temperature=0.9, num_generations=8)

@dataclass
class Settings:
    lr: float = 5e-6
    accumulate: int = 4
    modules: list = field(default_factory=lambda: ["q_proj", "v_proj"])

def extract(text):  # the last answer
    found = PATTERN.findall(text)
    return found[-1].strip() if found else ""

def correct(prompts, completions, answer, **kwargs):
    return [2.0 if extract(c[0]["content"]) == a else 0.0 for c, a in zip(completions, answer)]

def questions(split="train"):
    rows = load_dataset("openai/gsm8k", "main")[split]
    return rows.map(lambda row: {"prompt": row["question"]}).shuffle(seed=1)

def main():
    settings = Settings(lr=1e-5)
    wandb.init(project="gsm8k", name=f"{MODEL}-{settings.lr:.0e}", config=vars(settings))
    quantization = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_use_double_quant=True)
    model = AutoModelForCausalLM.from_pretrained(
        MODEL, torch_dtype=torch.bfloat16, device_map="auto", quantization_config=quantization
    )
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    args = Config(
        **sampling,
        output_dir=f"out/{MODEL}",
        learning_rate=settings.lr,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=settings.accumulate,
        max_completion_length=1024 - 256,
        max_steps=10 ** 2,
        reward_weights=[1.0, 0.5, -0.1],
        report_to=["wandb"],
        use_vllm=True,
        vllm_mode="colocate",
        bf16=torch.cuda.is_bf16_supported(),
    )
    args.beta = 0.04
    trainer = trl.GRPOTrainer(
        model,
        [correct, thinks, get_soft_overlong_punishment(max_completion_len=768, soft_punish_cache=128)],
        args,
        questions(),
        processing_class=tokenizer,
        peft_config=LoraConfig(
            r=16, lora_alpha=2 * 16, target_modules=settings.modules, task_type=TaskType.CAUSAL_LM
        ),
    )
    trainer.train()

if __name__ == "__main__":
    main()
"""
SET_LATER = """
from dataclasses import dataclass
from datasets import load_dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer, think_format_reward

@dataclass
class Settings:
    rate: float = 1e-6

settings = Settings()
settings.rate = 1e-4
args = GRPOConfig("out", max_steps=200)
args.epsilon = 0.3
adapter = LoraConfig(r=8)
adapter.lora_alpha = 64

def shorten():
    args.max_steps = 1

def main():
    args.beta = 0.1
    args.learning_rate = settings.rate
    adapter.r = 32
    chosen = args
    chosen.epsilon_high = 0.4
    rows = load_dataset("me/sums", split="train")
    GRPOTrainer("tiny", think_format_reward, chosen, rows, peft_config=adapter).train()

main()
"""


def script_with(arguments: str = "", before: str = "", **trainer: str) -> str:
    given = {"model": '"tiny"', "reward_funcs": '"some/reward-model"', "train_dataset": "rows"} | trainer
    passed = ", ".join(f"{name}={value}" for name, value in given.items())
    return f"""
import os
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer
rows = load_dataset("json", data_files="rows.jsonl", split="train")
{before}
args = GRPOConfig({arguments})
GRPOTrainer({passed}, args=args).train()
"""


def script_of(tmp_path: Path, text: str) -> Script:
    path = tmp_path / "train.py"
    path.write_text(text)
    return read_script(path)


def job_of(script: Script, **options: Any) -> Imported:
    given = Options(**{"data": "rows.jsonl", "model": "tiny", "sources": script.sources, **options})
    return imported(script.fields, given, "trl")


def hyperparameters(found: Imported) -> dict[str, Any]:
    return dict(found.job["method"]["reinforcement"]["hyperparameters"])


def refused(lines: tuple[Line, ...] | list[Line]) -> dict[str, str]:
    return {line.fields[0]: line.why for line in lines if line.verdict == "refused"}
