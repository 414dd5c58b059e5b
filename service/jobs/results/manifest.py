"""A job's manifest: everything that determined its result, so that the job can be checked and repeated.

Two jobs with equal data, graders, configuration, seed and software have equal manifests, except for `job`,
which identifies them. An archive's manifest has no `job`, so that equal runs make equal archives. Values of
headers are hidden, because they may be secrets.
Boundary: pure; `provenance.py` collects the facts.
"""

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

FORMAT = 1
HIDDEN = "…"
"""Replaces a header's value."""
Document = dict[str, Any]


def settings_in(document: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a method that is a JSON document, such as a manifest's."""
    return dict(document[document["type"]])


@dataclass(frozen=True)
class DataFile:
    """A dataset of a job."""

    id: str
    num_bytes: int
    sha256: str


@dataclass(frozen=True)
class PublicBase:
    """The base model of a result, named so that users can find it."""

    name: str
    """A hub id, a catalogue name for a folder, or the folder name of another job's unpacked weights."""
    place: Literal["hub", "folder", "job"]
    revision: str | None = None
    job: str | None = None
    checkpoint: str | None = None
    """Id of the checkpoint of `job`; None if the base is the job's result."""


@dataclass(frozen=True)
class Facts:
    """Everything about a job and its run that the manifest shows."""

    model: str
    base: PublicBase
    method: Mapping[str, Any]
    seed: int
    resources: Mapping[str, Any]
    files: Mapping[str, DataFile]
    """Files by the field that names them: `training_file`, `validation_file`, `retention.<name>`."""
    validation_split: float | None = None
    """Share or number of held-out rows; the seed then determines which rows they are."""
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    engine: Mapping[str, Any] = field(default_factory=dict)
    """`versions`, `device`, `dtype`, `sampler`, `computation`, `adapter_rank`, `base_format` and
    `base_class`; empty before the run."""
    service_version: str = ""
    fingerprint: str | None = None
    """Fingerprint of the base's weights when the job started."""


def document(facts: Facts) -> Document:
    """The manifest without `job`."""
    method = _named_by_content(facts)
    settings = settings_in(method)
    configuration = {"method": method, "seed": facts.seed, "resources": dict(facts.resources)}
    if facts.validation_split is not None:
        split = facts.validation_split
        configuration["validation_split"] = split if split < 1 else int(split)
    graders = {name: settings[name] for name in ("grader", "eval_grader") if settings.get(name)}
    return {
        "format": FORMAT,
        "model": {
            "name": facts.model,
            "base": facts.base.name,
            "base_place": facts.base.place,
            "base_job": facts.base.job,
            "base_checkpoint": facts.base.checkpoint,
            "revision": facts.base.revision,
            "fingerprint": facts.fingerprint,
        },
        "data": {
            name: {"sha256": file.sha256, "bytes": file.num_bytes} for name, file in facts.files.items()
        },
        "graders": {name: {"type": rule["type"], "sha256": sha256(rule)} for name, rule in graders.items()},
        "configuration_sha256": sha256(configuration),
        **without_secrets(configuration),
        "engine": dict(facts.engine),
        "service": {"version": facts.service_version},
        "evaluation": dict(facts.evaluation),
    }


def sha256(value: Any) -> str:
    """SHA-256 of the canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def text(manifest: Mapping[str, Any]) -> str:
    """The content of an archive's manifest.json."""
    return json.dumps(manifest, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _named_by_content(facts: Facts) -> Document:
    """The method, with the files of its retention sets replaced by their digests."""
    method: Document = copy.deepcopy(dict(facts.method))
    for kept in settings_in(method).get("retention") or ():
        file = facts.files.get(f"retention.{kept['name']}")
        kept["file"] = f"sha256:{file.sha256}" if file else HIDDEN
    return method


def without_secrets(value: Any) -> Any:
    """Hides the headers of graders and tools, which may contain keys. The schemas of tools are kept."""
    if isinstance(value, Mapping):
        return {
            name: part if is_schema(value, name) else _without_secrets(name, part)
            for name, part in value.items()
        }
    return [without_secrets(part) for part in value] if isinstance(value, list | tuple) else value


def is_schema(value: Mapping[str, Any], name: str) -> bool:
    """Whether a field is the JSON schema of a tool, in which `headers` can be the name of a parameter."""
    return name == "parameters" and value.get("type") == "http"


def _without_secrets(name: str, part: Any) -> Any:
    is_headers = name == "headers" and isinstance(part, Mapping)
    return dict.fromkeys(part, HIDDEN) if is_headers else without_secrets(part)


def hides_secrets(manifest: Mapping[str, Any]) -> bool:
    """Whether the manifest has headers of graders or tools, whose values it hides."""
    return any(value == HIDDEN for _, value in _leaves(manifest["method"]))


def request_of(manifest: Mapping[str, Any], file_ids: Mapping[str, str]) -> Document:
    """The body that creates the same job again. `file_ids`: SHA-256 of a dataset's content → file id."""
    method = copy.deepcopy(dict(manifest["method"]))
    for kept in settings_in(method).get("retention") or ():
        kept["file"] = file_ids[kept["file"].removeprefix("sha256:")]
    body = {"model": manifest["model"]["name"], "method": method}
    names = ("seed", "resources", "validation_split")
    body |= {name: manifest[name] for name in names if manifest.get(name) is not None}
    for name, file in manifest["data"].items():
        if not name.startswith("retention."):
            body[name] = file_ids[file["sha256"]]
    job = manifest.get("job") or {}
    return body | {name: job[name] for name in ("suffix", "metadata") if job.get(name)}


def differences(left: Mapping[str, Any], right: Mapping[str, Any]) -> list[Document]:
    """The fields that differ, by their path; `job` is not compared."""
    one, other = (dict(_leaves({**each, "job": None, "object": None})) for each in (left, right))
    paths = sorted(one.keys() | other.keys())
    return [
        {"field": path, "left": one.get(path), "right": other.get(path)}
        for path in paths
        if one.get(path) != other.get(path)
    ]


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted path and value of each leaf; an empty list or object is a leaf."""
    parts: Iterator[tuple[str, Any]]
    if isinstance(value, Mapping) and value:
        parts = ((f"{path}.{name}" if path else str(name), part) for name, part in value.items())
    elif isinstance(value, list | tuple) and value:
        parts = ((f"{path}[{index}]", part) for index, part in enumerate(value))
    else:
        yield path, value
        return
    for place, part in parts:
        yield from _leaves(part, place)
