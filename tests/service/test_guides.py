"""What the guides say is done here: their graders score, their links lead somewhere."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SCORED = re.findall(
    r"```json\n(.*?)```\n\ngives `([\d.]+)`", (DOCS / "write-a-job" / "graders.md").read_text(), re.DOTALL
)
LINKS = [
    (page.relative_to(ROOT), target)
    for page in sorted([*DOCS.rglob("*.md"), ROOT / "README.md"])
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(("request_text", "score"), SCORED, ids=range(len(SCORED)))
def test_a_grader_of_the_guide_gives_what_it_says(client: TestClient, request_text: str, score: str) -> None:
    asked: dict[str, Any] = json.loads(request_text)
    found = client.post("/v1/fine_tuning/alpha/graders/run", json=asked).json()
    assert found["reward"] == pytest.approx(float(score)), found["metadata"]["errors"]


def test_the_grader_guide_tries_every_example() -> None:
    assert len(SCORED) == (DOCS / "write-a-job" / "graders.md").read_text().count("```json")


@pytest.mark.parametrize(("page", "target"), LINKS, ids=lambda value: str(value))
def test_a_guides_link_leads_somewhere(page: Path, target: str) -> None:
    assert (ROOT / page.parent / target).exists()
