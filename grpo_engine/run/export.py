"""An export: base model and adapter merged by PEFT into one model that loads without it.

Runs on the CPU, in the number format of the base's own files. The worker adds the model card and the archive.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import torch
from peft import PeftModel
from transformers import PreTrainedModel

from grpo_engine.config.job import ModelSource, RunConfig
from grpo_engine.contract.errors import BaseChangedError, NotMergeableError
from grpo_engine.contract.events import BaseEvent, Exported, PhaseChanged, Stopped
from grpo_engine.files.fingerprint import fingerprint_of_adapter, refuse_other_base
from grpo_engine.models.loading import load_base
from grpo_engine.models.lora import TRAINED, lora_layers
from grpo_engine.models.policy import base_fingerprint
from grpo_engine.process.fault_points import fault_point
from grpo_engine.run.merge_difference import measure

MERGED = "merged"
LICENSES = ("LICENSE", "NOTICE", "USE_POLICY")


class ExportRun:
    """One merge. It has no checkpoint: an interrupted export starts again."""

    def __init__(self, config: RunConfig, run_dir: Path) -> None:
        self.config = config
        self.source = config.model
        self.folder = run_dir / MERGED

    def run(self, should_stop: Callable[[], bool]) -> Iterator[BaseEvent]:
        """Load, merge and save. Raises ModelError for parts that do not fit together."""
        base = load_base(self.source, "auto")
        model, tokenizer = base.model, base.tokenizer
        merged = model if self.source.adapter is None else _merged(model, self.source, self.source.adapter)
        if should_stop():
            yield Stopped(step=0)
            return
        yield PhaseChanged(phase="saving")
        merged.save_pretrained(self.folder, safe_serialization=True)
        tokenizer.save_pretrained(self.folder)
        for path in Path(self.source.path).glob("*"):
            if path.is_file() and path.name.startswith(LICENSES):
                shutil.copy(path, self.folder)
        fault_point("export.saved")
        yield PhaseChanged(phase="evaluating")
        yield Exported(path=MERGED, difference=measure(self.config, merged, tokenizer))


def _merged(model: PreTrainedModel, source: ModelSource, adapter: str) -> PreTrainedModel:
    refuse_other_base(base_fingerprint(source), fingerprint_of_adapter(Path(adapter)))
    try:
        peft_model = PeftModel.from_pretrained(model, adapter, adapter_name=TRAINED)
        _refuse_other_revision(peft_model, source)
        _refuse_shared_output(peft_model)
        # peft does not type what it returns; "safe": weights that are not finite are an error
        return cast(PreTrainedModel, peft_model.merge_and_unload(safe_merge=True))
    except (ValueError, KeyError, RuntimeError) as error:
        raise NotMergeableError(f"the adapter cannot be merged into {source.name}: {error}") from error


def _refuse_other_revision(model: PeftModel, source: ModelSource) -> None:
    trained_on = model.peft_config[TRAINED].revision
    if None not in (trained_on, source.revision) and trained_on != source.revision:
        reason = f"the adapter was trained on revision {trained_on} of its base model"
        raise BaseChangedError(f"{reason}; the catalogue has {source.revision}")


def _refuse_shared_output(model: PeftModel) -> None:
    """Merging into an output layer that is also the embedding would change the embedding too."""
    base = cast(PreTrainedModel, model.get_base_model())
    shared = base.get_input_embeddings().weight
    if cast(torch.nn.Linear, base.get_output_embeddings()).weight is not shared:
        return
    if any(getattr(layer.get_base_layer(), "weight", None) is shared for layer in lora_layers(model)):
        reason = "the adapter changes the output layer, which the base shares with its embedding"
        raise NotMergeableError(reason)
