"""The artifact of a training-free job: the library in plain files.

step-00000003/experiences/  experiences.json  prompt.txt  prompt.json  manifest.json
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo_engine.files.atomic_folder import seal
from grpo_engine.training_free.library import Experience
from grpo_engine.training_free.prompts import Row, library_text, with_experiences

FOLDER = "experiences"
PLACEMENT = (
    "Put prompt.txt before the text of the system message, with an empty line between; without a system "
    "message, before the text of the first user message. `example` is the first training row as it was sent."
)


def write(
    folder: Path, lessons: Sequence[Experience], template: str, example: Row, facts: dict[str, Any]
) -> None:
    """Create `folder` with the lessons, their prompt text and an `example` that contains it; seal it with
    `facts`."""
    folder.mkdir()
    text = library_text(lessons, template)
    _write_json(folder / "experiences.json", [lesson.model_dump() for lesson in lessons])
    (folder / "prompt.txt").write_text(text, encoding="utf-8")
    sent = with_experiences(example, lessons, template)
    shown = {name: sent[name] for name in ("messages", "prompt") if name in sent}
    _write_json(folder / "prompt.json", {"text": text, "placement": PLACEMENT, "example": shown})
    seal(folder, facts)


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")
