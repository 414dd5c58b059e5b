"""The model card and the manifest beside the weights in an archive.

Boundary: texts for `publish.py`. They contain no attempts, ids or times, so that the archive of a killed and
resumed job equals that of an undisturbed one.
"""

from __future__ import annotations

from service.jobs.results.manifest import document, text
from service.jobs.results.model_card import model_card
from service.jobs.results.provenance import facts_of
from service.platform.tables.core import Job
from worker.attempt.attempt import Attempt

CARD, MANIFEST = "README.md", "manifest.json"


def beside_weights(attempt: Attempt, *, step: int | None = None) -> dict[str, str]:
    """File name → text. `step` of a checkpoint, whose evaluation may still be missing; None: the result."""
    with_rows = attempt.read(lambda s: facts_of(s, s.get_one(Job, attempt.job.id), attempt.worker.catalog))
    manifest = document(with_rows)
    if step is not None:
        manifest |= {"evaluation": {}, "checkpoint": {"step": step}}
    return {CARD: model_card(manifest), MANIFEST: text(manifest)}
