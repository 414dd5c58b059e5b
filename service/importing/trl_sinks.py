"""Trackers that a configuration names, such as TRL's `report_to` → a job's `integrations`."""

from collections.abc import Mapping
from typing import Any

from service.importing.rules import UNSET, Translation, together

SINKS = ("wandb", "tensorboard", "mlflow")
DEFAULT_PROJECT = "huggingface"
"""Default project of transformers, if neither the configuration nor WANDB_PROJECT names one."""


@together(
    # the last two are read from a script's `wandb.init`
    {"report_to": "none", "project": UNSET, "wandb_project": None, "wandb_entity": None}
)
def sinks(translation: Translation) -> None:
    wandb = {
        "project": translation["wandb_project"] or translation.given.get("project") or DEFAULT_PROJECT,
        "entity": translation["wandb_entity"],
        "name": translation.given.get("run_name"),
    }
    to_sinks(translation, ("report_to", "project"), translation["report_to"], wandb)


def to_sinks(translation: Translation, fields: tuple[str, ...], given: Any, wandb: Mapping[str, Any]) -> None:
    """Translates one or several names of trackers. `wandb`: settings of its sink."""
    names = [given] if isinstance(given, str) else [str(name) for name in given or []]
    wanted = [name for name in names if name not in ("none", "console")]
    set_ones = {key: str(value) for key, value in wandb.items() if value}
    settings = {"wandb": {"wandb": set_ones}}
    found = [{"type": name, **settings.get(name, {})} for name in SINKS if name in wanted]
    absent = ", ".join(name for name in wanted if name not in SINKS)
    why = f"there is no sink for {absent}: use {', '.join(SINKS)} (docs/operate/sinks.md)" if absent else ""
    if found:
        translation.maps(fields, "integrations", found, differs=why)
    elif absent:
        translation.differs(fields, why)
    else:
        translation.leaves(fields, "the service keeps and shows all metrics")
