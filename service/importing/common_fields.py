"""Rules that TRL and verl share: for the model, the datasets, checkpoints and the run's name."""

from fractions import Fraction

from service.importing.rules import Rule, Translation, whole

NOT_IN_THE_CATALOGUE = (
    "a job names a model of `GET /v1/models`: `grpo models add NAME PATH`, then give --model NAME"
)
NO_DATA = "give --data: a JSONL, Parquet, CSV or JSON file, or hf://owner/name"


def model(translation: Translation, name: str) -> None:
    given, chosen = translation[name], translation.options.model
    if chosen:
        translation.maps(name, "model", chosen, differs="" if chosen == given else "by --model")
    elif not given or str(given).startswith(("/", "~", ".", "$")):
        translation.refuses(name, NOT_IN_THE_CATALOGUE)
    else:
        translation.maps(name, "model", str(given))


def datasets(
    translation: Translation,
    training: str | tuple[str, ...],
    held_out: str,
    named: str | None = None,
    *,
    upload: str = "",
) -> None:
    """Translates the datasets into a job's files. `named`: the configuration's own, if a job can name it.

    upload: arguments of `grpo files upload` for a dataset of the hub.
    """
    path = translation.options.data or named
    if path is None:
        how = (
            f"; `grpo files upload {upload}` stores it and prints the id for training_file" if upload else ""
        )
        translation.refuses(training, NO_DATA + how)
    else:
        translation.maps(training, "training_file", path, differs="" if path == named else "by --data")
    if given := translation.options.validation_data:
        translation.maps(held_out, "validation_file", given, differs="by --validation-data")
    else:
        translation.leaves(held_out, "no held-out rows: give --validation-data")


def checkpoints(
    translation: Translation, interval: str, limit: str, *, steps: Fraction, differs: str = ""
) -> None:
    """`steps`: of the job, for each step that the source counts."""
    every, most = translation[interval], translation[limit]
    if translation.states(interval) and every >= 1:
        translation.maps(interval, "checkpoint_interval", max(1, int(int(every) * steps)), differs=differs)
    else:
        translation.leaves(interval, "a checkpoint every 20 steps, from which a killed job continues")
    if most:
        translation.maps(limit, "max_checkpoints", min(100, whole(most)))


def run_name(name: str) -> Rule:
    """The rule for the field with the run's name."""

    def apply(translation: Translation) -> None:
        if translation.states(name) and translation[name]:
            translation.maps(name, "metadata.run_name", str(translation[name])[:512])

    return Rule({name: None}, apply)
