"""TRL's `report_to` → a job's `integrations`."""

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
    given = translation["report_to"]
    names = [given] if isinstance(given, str) else [str(name) for name in given or []]
    wanted = [name for name in names if name != "none"]
    found = [_sink(translation, name) for name in SINKS if name in wanted]
    absent = ", ".join(name for name in wanted if name not in SINKS)
    why = f"there is no sink for {absent}: use {', '.join(SINKS)} (docs/operate/sinks.md)" if absent else ""
    if found:
        translation.maps(("report_to", "project"), "integrations", found, differs=why)
    elif absent:
        translation.differs(("report_to", "project"), why)
    else:
        translation.leaves(("report_to", "project"), "the service keeps and shows all metrics")


def _sink(translation: Translation, name: str) -> dict[str, Any]:
    if name != "wandb":
        return {"type": name}
    project = translation["wandb_project"] or translation.given.get("project") or DEFAULT_PROJECT
    settings = {
        "project": project,
        "entity": translation["wandb_entity"],
        "name": translation.given.get("run_name"),
    }
    return {"type": "wandb", "wandb": {key: str(value) for key, value in settings.items() if value}}
