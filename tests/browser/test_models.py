"""The models page: base and fine-tuned models, and where they lead."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from examples.tiny_model import make_model
from tests.browser.deployment import Deployment


@pytest.fixture
def small(deployment: Deployment) -> Iterator[Path]:
    """A base model with weights, until the test has ended."""
    folder = make_model(deployment.api.settings.models_dir / "small", hidden=32, layers=1)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.usefixtures("small")
def test_base_and_fine_tuned_models_are_listed_with_their_facts(
    page: Page, deployment: Deployment, shots: Callable[[Page, str], None]
) -> None:
    page.goto("/#/jobs")
    page.get_by_role("navigation").get_by_role("link", name="Models", exact=True).click()
    bases = page.get_by_role("table", name="Base models")
    known = bases.get_by_role("row").filter(has_text="small")
    for text in ("512 tokens", "qwen3", "LoRA fits", "Full fits"):
        expect(known).to_contain_text(text)
    unknown = bases.get_by_role("row").filter(has_text="tiny")
    expect(unknown).to_contain_text("64 tokens")
    expect(unknown).not_to_contain_text("LoRA")
    tuned = str(deployment.job("first")["fine_tuned_model"])
    row = page.get_by_role("table", name="Fine-tuned models").get_by_role("row").filter(has_text=tuned)
    expect(row).to_contain_text("from tiny")
    expect(page.get_by_label("From the Hugging Face hub, on the service's machine", exact=True)).to_have_text(
        "grpo models add Qwen/Qwen3-0.6B"
    )
    shots(page, "models")
    row.get_by_role("link", name="first-try", exact=True).click()
    expect(page).to_have_url(f"{deployment.url}/#/jobs/{deployment.jobs['first']}")


def test_a_job_starts_from_the_model_of_the_row(page: Page, deployment: Deployment) -> None:
    tuned = str(deployment.job("first")["fine_tuned_model"])
    page.goto("/#/models")
    page.get_by_role("link", name=f"New job with {tuned}").click()
    expect(page.get_by_label("Start from")).to_have_value(tuned)


def test_a_model_is_tried_against_the_one_that_it_started_from(page: Page, deployment: Deployment) -> None:
    tuned = str(deployment.job("first")["fine_tuned_model"])
    page.goto("/#/models")
    page.get_by_role("link", name=f"Try {tuned}").click()
    expect(page.get_by_label("Left")).to_have_value("tiny")
    expect(page.get_by_label("Right")).to_have_value(tuned)


def test_a_hub_model_is_added_in_the_browser_if_the_operator_allows_it(
    page: Page, deployment: Deployment, shots: Callable[[Page, str], None], expected_errors: list[str]
) -> None:
    listed = deployment.get("/v1/models")
    new = {**listed["data"][0], "id": "Qwen/Qwen3-0.6B", "size_bytes": 1_500_000_000}

    def answer(route: Route) -> None:
        if route.request.method == "GET":
            return route.fulfill(json={**listed, "hub_models": True})
        if route.request.post_data_json != {"id": new["id"]}:
            message = "there is no model Qwen/absent on https://huggingface.co."
            return route.fulfill(status=400, json={"error": {"message": message, "code": "model_not_found"}})
        listed["data"] = [new, *listed["data"]]
        return route.fulfill(json=new)

    expected_errors.append("400")
    page.route("**/v1/models", answer)
    page.goto("/#/models")
    field = page.get_by_label("From the Hugging Face hub", exact=True)
    field.fill("Qwen/absent")
    field.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("there is no model Qwen/absent")
    shots(page, "models-hub")
    field.fill(" Qwen/Qwen3-0.6B")
    page.get_by_role("button", name="Add", exact=True).click()
    row = page.get_by_role("table", name="Base models").get_by_role("row").filter(has_text=new["id"])
    expect(row).to_contain_text("1.5 GB")
