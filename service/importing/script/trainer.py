"""A script's `GRPOTrainer(…)` with its arguments → the fields of a TRL configuration file.

What cannot be read is reported as refused with its line; `convert.py` translates the fields.
"""

import ast
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from service.importing.dataset_formats import Unreadable
from service.importing.rules import Line
from service.importing.script.bindings import Bindings, NotConstant, Scope
from service.importing.script.constants import Constants, Located, source_of
from service.importing.script.datasets import dataset_fields
from service.importing.script.functions import reward_fields
from service.importing.script.models import peft_fields, quantization_fields, weights_fields
from service.importing.script.script import Script

TRAINER = "GRPOTrainer"
POSITIONAL = (
    *("model", "reward_funcs", "args", "train_dataset", "eval_dataset", "processing_class"),
    *("reward_processing_classes", "callbacks", "optimizers", "quantization_config", "peft_config"),
    *("tools", "rollout_func", "environment_factory"),
)
"""Parameters of TRL's trainer, in order."""
READERS: dict[str, Callable[[Script, Located], None]] = {
    "model": weights_fields,
    "reward_funcs": reward_fields,
    "train_dataset": dataset_fields,
    "eval_dataset": partial(dataset_fields, held_out=True),
    "peft_config": peft_fields,
    "quantization_config": quantization_fields,
}
LEFT = {
    "processing_class": "the model's own tokenizer and chat template are used",
    "reward_processing_classes": "a reward model's own tokenizer is used",
}
UNLIKE = {"callbacks": "callbacks do not run here: guards stop a job, sinks and webhooks report it"}
REFUSED = {
    "optimizers": "the optimiser here is AdamW with the schedule of the configuration: remove it",
    "tools": "tools are named in the job: docs/write-a-job/tools.md",
    "rollout_func": "completions are sampled by the service: remove it",
    "environment_factory": "environments run in servers: docs/write-a-job/environments.md",
}
COMMAND_LINE = "if the command line sets it, give the YAML file of its --config to this command"


def read_script(path: Path) -> Script:
    """The script's configuration. Raises Unreadable if it is not Python or has not one trainer; OSError."""
    text = path.read_text(encoding="utf-8")
    try:
        tree = ast.parse(text)
        bindings = Bindings.of(tree)
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise Unreadable(f"{path}{line} is not Python: {error.args[0]}") from error
    except (RecursionError, MemoryError) as error:
        raise Unreadable(f"{path} is too deeply nested") from error
    script = Script(path, text, Constants(bindings))
    call, scope = _trainer(script, tree)
    _read_trainer(script, script.arguments(call, scope, POSITIONAL))
    _read_changed_config(script, call)
    _read_wandb(script)
    _report_callbacks(script, call)
    return script


def _trainer(script: Script, tree: ast.Module) -> tuple[ast.Call, Scope]:
    """The one call of the trainer. Raises Unreadable."""
    own = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and any(source_of(base).endswith(TRAINER) for base in node.bases):
            own[node.name] = node
    calls = script.constants.bindings.calls
    found = {
        id(call): (call, scope)
        for call, scope in calls
        if (name := script.callee(Located(call, scope)).rpartition(".")[2]) == TRAINER or name in own
    }
    if len(found) != 1:
        where = ", ".join(str(call.lineno) for call, _ in found.values())
        count = f"{len(found)} calls of {TRAINER} (lines {where}): keep one" if found else f"no {TRAINER}(…)"
        raise Unreadable(f"{script.path} has {count}")
    call, scope = next(iter(found.values()))
    if changed := own.get(script.callee(Located(call, scope)).rpartition(".")[2]):
        script.refuse(
            TRAINER, changed.bases[0], f"class {changed.name} changes the trainer: its methods are not read"
        )
    return call, scope


def _read_trainer(script: Script, given: Mapping[str, Located]) -> None:
    if "args" in given:
        _read_config(script, given["args"])
    for name, value in given.items():
        if isinstance(value.node, ast.Constant) and value.node.value is None:
            continue
        if name in READERS:
            try:
                READERS[name](script, value)
            except NotConstant as error:
                script.refuse(name, value.node, str(error))
        elif name in LEFT:
            script.lines.append(Line((name,), (source_of(value.node),), "not needed", why=LEFT[name]))
        elif name in UNLIKE:
            script.differs(name, value.node, UNLIKE[name])
        elif name != "args":
            script.refuse(name, value.node, REFUSED.get(name, f"{TRAINER} has no such argument"))


def _read_config(script: Script, value: Located) -> None:
    try:
        found = script.constants.followed(value)
    except NotConstant as error:
        script.refuse("args", value.node, f"{error}; {COMMAND_LINE}")
        return
    name = script.callee(found)
    if not (isinstance(found.node, ast.Call) and name.endswith("GRPOConfig")):
        why = f"`{source_of(found.node)}` is not a GRPOConfig(…) with arguments written in the script"
        script.refuse("args", value.node, f"{why}; {COMMAND_LINE}")
        return
    fields = script.arguments(found.node, found.scope, ("output_dir",)) | script.settings(value)
    for field_name, given in fields.items():
        script.take(field_name, given)


def _read_changed_config(script: Script, trainer: ast.Call) -> None:
    """Take what the script sets on `trainer.args` after the call."""
    bindings = script.constants.bindings
    for (scope, name), bound in bindings.names.items():
        if any(each.node is trainer for each in bound):
            for field_name, given in script.readable(bindings.set_on(f"{name}.args", scope)).items():
                script.take(field_name, given)


def _read_wandb(script: Script) -> None:
    """Take project and name of `wandb.init(…)` for the sink, unless the configuration has them."""
    for call, scope in script.constants.bindings.calls:
        if script.callee(Located(call, scope)) == "wandb.init":
            for name, value in script.arguments(call, scope, ()).items():
                field_name = {"name": "run_name", "project": "wandb_project", "entity": "wandb_entity"}.get(
                    name
                )
                if field_name and field_name not in script.fields:
                    try:
                        script.fields[field_name] = script.constants.value(value)
                    except NotConstant as error:
                        script.differs(f"wandb.init {name}", value.node, str(error))


def _report_callbacks(script: Script, trainer: ast.Call) -> None:
    """Report the calls of the trainer's `add_callback`."""
    for call, scope in script.constants.bindings.calls:
        match call.func:
            case ast.Attribute(value=ast.Name() as owner, attr="add_callback"):
                try:
                    found = script.constants.followed(Located(owner, scope))
                except NotConstant:
                    continue
                if found.node is trainer:
                    script.differs("callbacks", call, UNLIKE["callbacks"])
