"""Families of models that call tools: their real chat templates, their tokens, and calls as they write them.

The templates are files of the installed TRL, which is not imported. Tokenizers are trained here.
"""

import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerFast

from examples.tiny_model import make_config

Arguments = Mapping[str, Any]


@dataclass(frozen=True)
class Family:
    format: str
    templates: tuple[str, ...]
    """Files of TRL; the first one is the family's in tests of tokens."""
    call: Callable[[str, Arguments], str]
    """A call as the family's documentation has it."""
    malformed: Mapping[str, str]
    """Text of a call → start of the error that the model reads."""
    stops: tuple[str, ...]
    """End-of-turn tokens, as in the model's generation_config.json."""
    special_tokens: tuple[str, ...] = ()
    wraps: tuple[str, str] = ("", "")
    """Around all calls of a turn."""
    thoughts: str = "<think>{}</think>"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _hermes(name: str, arguments: Arguments) -> str:
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def _xml(name: str, arguments: Arguments) -> str:
    inside = "".join(f"<parameter={key}>\n{_text(value)}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{inside}</function>\n</tool_call>"


def _glm(name: str, arguments: Arguments) -> str:
    pairs = [
        f"<arg_key>{key}</arg_key>\n<arg_value>{_text(value)}</arg_value>\n"
        for key, value in arguments.items()
    ]
    return f"<tool_call>{name}\n{''.join(pairs)}</tool_call>"


def _llama(name: str, arguments: Arguments) -> str:
    return json.dumps({"name": name, "parameters": arguments}, ensure_ascii=False)


def _harmony(name: str, arguments: Arguments) -> str:
    body = json.dumps(arguments, ensure_ascii=False)
    return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{body}<|call|>"


def _deepseek(name: str, arguments: Arguments) -> str:
    body = json.dumps(arguments, ensure_ascii=False)
    return f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{body}\n```<｜tool▁call▁end｜>"


def _gemma(name: str, arguments: Arguments) -> str:
    return f"<|tool_call>call:{name}{_gemma_value(arguments)}<tool_call|>"


def _gemma_value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_gemma_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_gemma_value, value)) + "]"
    return f'<|"|>{value}<|"|>' if isinstance(value, str) else json.dumps(value)


def _mistral(name: str, arguments: Arguments) -> str:
    return f"[TOOL_CALLS]{name}[ARGS]{json.dumps(arguments, ensure_ascii=False)}"


CHATML = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
HERMES = Family(
    "hermes",
    ("qwen3", "qwen2_5", "qwen3_instruct_2507", "qwen3_vl"),
    _hermes,
    {
        "<tool_call>{'name': 'add'}</tool_call>": "the call is not JSON",
        "<tool_call></tool_call>": "the call is not JSON",
        '<tool_call>{"arguments": {}}</tool_call>': 'a call is {"name"',
    },
    ("<|im_end|>",),
    CHATML,
)
FAMILIES = {
    "hermes": HERMES,
    "xml": Family(
        "xml",
        ("qwen3_5_think", "qwen3_5_nothink", "qwen3_6", "qwen3_8", "nemotron_3_nano", "nemotron_3_ultra"),
        _xml,
        {
            "<tool_call>\n<parameter=a>\n1\n</parameter>\n</tool_call>": "the call names no function",
            "<tool_call>\n<function=add>\n<parameter=a>\n1\n</function>\n</tool_call>": "'<parameter=a>",
            '<tool_call>{"name": "add", "arguments": {}}</tool_call>': '\'{"name"',
        },
        ("<|im_end|>",),
        CHATML,
    ),
    "glm": Family(
        "glm",
        ("glm4moe",),
        _glm,
        {
            "<tool_call><arg_key>a</arg_key><arg_value>1</arg_value></tool_call>": (
                "the call names no function"
            ),
            "<tool_call>add\n<arg_key>a</arg_key>\n</tool_call>": "'<arg_key>a</arg_key>'",
        },
        ("<|endoftext|>", "<|user|>", "<|observation|>"),
        ("<|assistant|>", "<|system|>", "[gMASK]", "<sop>", "<tool_call>", "</tool_call>"),
    ),
    "llama": Family(
        "json",
        ("llama3_1", "llama3_2"),
        _llama,
        {
            '{"name": "add", "parameters": {"a": }}': "the call is not JSON",
            '{"name": "add", "parameters": [1]}': "arguments must be a JSON object",
            '{"name": 3, "parameters": {}}': 'a call is {"name"',
        },
        ("<|eot_id|>", "<|eom_id|>"),
        ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>"),
        thoughts="<think>{}</think>",
    ),
    "harmony": Family(
        "harmony",
        ("gptoss",),
        _harmony,
        {
            "<|channel|>commentary to=functions.add <|constrain|>json<|message|>{a: 1}<|call|>": (
                "the call is not JSON"
            ),
            "<|channel|>commentary to=functions.add json<|message|>[1]<|call|>": (
                "arguments must be a JSON object"
            ),
        },
        ("<|return|>", "<|call|>"),
        ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>"),
        thoughts="<|channel|>analysis<|message|>{}<|end|><|start|>assistant",
    ),
    "deepseek": Family(
        "deepseek",
        ("deepseekv3", "deepseek_r1_distill"),
        _deepseek,
        {
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{a: 1}\n```<｜tool▁call▁end｜>": (
                "the call is not JSON"
            ),
            "<｜tool▁call▁begin｜>oh no<｜tool▁call▁end｜>": "the call is not JSON",
        },
        ("<｜end▁of▁sentence｜>",),
        (
            *("<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<｜tool▁sep｜>"),
            *(f"<｜tool▁{kind}▁{end}｜>" for kind in ("call", "calls") for end in ("begin", "end")),
            *(f"<｜tool▁{kind}▁{end}｜>" for kind in ("output", "outputs") for end in ("begin", "end")),
        ),
        wraps=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    ),
    "gemma": Family(
        "gemma",
        ("gemma4_v5", "gemma4", "gemma4_v2", "diffusion_gemma"),
        _gemma,
        {
            "<|tool_call>call:add{a:}<tool_call|>": "the call is not JSON",
            "<|tool_call>{a:1}<tool_call|>": "the call names no function",
        },
        ("<turn|>", "<|tool_response>"),
        (
            "<bos>",
            "<|turn>",
            "<|channel>",
            "<channel|>",
            '<|"|>',
            "<|tool_call>",
            "<tool_call|>",
            "<tool_response|>",
        ),
        thoughts="<|channel>thought\n{}<channel|>",
    ),
    "mistral": Family(
        "mistral",
        (),
        _mistral,
        {
            "[TOOL_CALLS]add[ARGS]{a: 1}": "the call is not JSON",
            "[TOOL_CALLS]": "the call is not JSON",
        },
        ("</s>",),
        ("[INST]", "[/INST]", "[TOOL_CALLS]", "[ARGS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        thoughts="[THINK]{}[/THINK]",
    ),
}
WITH_TEMPLATES = sorted(name for name, family in FAMILIES.items() if family.templates)
EVERY_TEMPLATE = [(name, file) for name in WITH_TEMPLATES for file in FAMILIES[name].templates]


@cache
def template(file: str) -> str:
    """A chat template of the installed TRL."""
    spec = importlib.util.find_spec("trl")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0], "chat_templates", f"{file}.jinja").read_text()


def tokenizer_of(name: str, file: str | None = None, *, texts: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with the family's special tokens, trained on its template and `texts`."""
    family = FAMILIES[name]
    source = template(file or family.templates[0])
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1000, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    trained.train_from_iterator([*source.splitlines(), *texts], trainer)
    special = ["<pad>", *family.stops, *family.special_tokens]
    trained.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=trained, pad_token="<pad>", eos_token=family.stops[0], chat_template=source
    )


def make_family_model(
    folder: Path, name: str, *, texts: Sequence[str] = (), hidden: int = 32, layers: int = 1
) -> Path:
    """A small random model with the family's tokenizer, template and end-of-turn tokens."""
    tokenizer = tokenizer_of(name, texts=texts)
    stops = tokenizer.convert_tokens_to_ids(list(FAMILIES[name].stops))
    config = make_config("llama", vocab_size=len(tokenizer), hidden=hidden, layers=layers)
    config.update({"eos_token_id": stops[0], "pad_token_id": 0, "max_position_embeddings": 4096})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
    model.generation_config = GenerationConfig(eos_token_id=stops, pad_token_id=0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
