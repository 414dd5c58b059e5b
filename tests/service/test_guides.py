"""The examples of the grader guide give what they say, and every link of the pages leads somewhere."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SCORED = re.findall(
    r"```json\n(.*?)```\n\nThe reward is `([\d.]+)`",
    (DOCS / "write-a-job" / "graders.md").read_text(),
    re.DOTALL,
)
PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "README.md"])


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(("request_text", "score"), SCORED, ids=range(len(SCORED)))
def test_a_grader_of_the_guide_gives_the_score_it_states(
    client: TestClient, request_text: str, score: str
) -> None:
    request: dict[str, Any] = json.loads(request_text)
    answer = client.post("/v1/fine_tuning/alpha/graders/run", json=request).json()
    assert answer["reward"] == pytest.approx(float(score)), answer["metadata"]["errors"]


def test_every_example_of_the_grader_guide_states_its_score() -> None:
    assert len(SCORED) == (DOCS / "write-a-job" / "graders.md").read_text().count("```json")


def anchors(page: Path) -> set[str]:
    """Anchors of the page's headings, as GitHub makes them, and those that the page sets itself."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    made = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return made | set(re.findall(r'<a id="([^"]+)">', page.read_text()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_to_a_file_and_its_heading(page: Path) -> None:
    links = re.findall(r"\]\(([^):]*?)(?:#([^)]*))?\)", page.read_text())
    places = [((page.parent / target).resolve() if target else page, anchor) for target, anchor in links]
    assert [str(place) for place, _ in places if not place.exists()] == []
    assert [anchor for place, anchor in places if anchor and anchor not in anchors(place)] == []
