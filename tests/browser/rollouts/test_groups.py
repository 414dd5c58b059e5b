"""The group view: the API's data, with models' output shown as text."""

import json
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.deployment import JOBS, Deployment
from tests.browser.rollouts.pages import HOSTILE, groups_of, open_page, shown_group, signed

Shots = Callable[[Page, str], None]


def test_bars_waterline_and_advantages_are_the_apis(page: Page, deployment: Deployment, shots: Shots) -> None:
    group = groups_of(deployment, deployment.jobs["first"], step=3)[0]
    open_page(page, deployment.jobs["first"], "?step=3")
    assert shown_group(page) == group["id"]
    columns = page.locator(".column")
    expect(columns).to_have_count(len(group["completions"]))
    zero = page.locator(".bars-plot .zero").bounding_box()
    best = max(one["reward"] or 0 for one in group["completions"])
    heights = []
    for at, one in enumerate(group["completions"]):
        column = columns.nth(at)
        if one["reward"] is None:
            expect(column).to_contain_text("error")
            continue
        expect(column.locator(".advantage")).to_have_text(signed(one["advantage"]))
        drawn = [float(column.get_attribute(f"data-{name}") or "nan") for name in ("reward", "advantage")]
        assert drawn == [one["reward"], one["advantage"]]
        box = column.locator(".fill").bounding_box()
        assert box is not None
        heights.append((one["reward"], box["height"]))
    tallest = max(height for _, height in heights)
    for reward, height in heights:
        assert height == pytest.approx(max(2, tallest * reward / best), abs=1)
    line = page.locator(".waterline").bounding_box()
    assert line is not None
    assert zero is not None
    assert zero["y"] - line["y"] == pytest.approx(tallest * group["mean_reward"] / best, abs=2)
    expect(page.locator(".waterline")).to_have_text(f"mean {group['mean_reward']:.4g}")
    shots(page, "rollouts")


def test_all_completions_are_side_by_side_with_their_rewards_and_parts(
    page: Page, deployment: Deployment
) -> None:
    group = groups_of(deployment, deployment.jobs["first"], step=3)[0]
    open_page(page, deployment.jobs["first"], "?step=3")
    cards = page.get_by_role("article")
    expect(cards).to_have_count(len(group["completions"]))
    for at, one in enumerate(group["completions"]):
        card = page.get_by_role("article", name=f"Completion {at + 1}", exact=True)
        expect(card.locator(".model-text")).to_have_text(one["text"])
        expect(card).to_contain_text(f"{one['num_tokens']} tokens")
        reward = "error" if one["reward"] is None else f"{one['reward']:.4g}"
        expect(card.locator(".reward b")).to_have_text(reward)
        expect(card.locator(".advantage b")).to_have_text(signed(one["advantage"]))
        for name, score in one["parts"].items():
            if score is not None:
                expect(card.locator(".parts > div", has_text=name)).to_have_text(f"{name}{score:g}")


def test_click_and_arrow_keys_in_the_bars_mark_a_card(page: Page, deployment: Deployment) -> None:
    open_page(page, deployment.jobs["first"], "?step=3")
    page.locator(".column").nth(1).click()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".column").nth(2)).to_be_focused()
    expect(page.locator(".column").nth(2)).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".card.chosen h3")).to_have_text("Completion 3")


def test_a_failing_test_shows_its_result_and_a_loop_its_time_limit(
    page: Page, deployment: Deployment
) -> None:
    job_id = deployment.jobs["first"]
    places = {
        "got" if test["got"] else "detail": (group["step"], at, test)
        for group in groups_of(deployment, job_id, limit=100, to_step=20, split="train")
        for at, one in enumerate(group["completions"])
        for test in one["explanations"]["correct"]
        if group["position"] == 0 and not test["passed"]
    }
    for kind, (step, at, test) in places.items():
        open_page(page, job_id, f"?step={step}")
        expect(page.get_by_label("Step number")).to_have_value(str(step))
        checks = page.get_by_role("article").nth(at).locator(".checks")
        expect(checks.locator("summary")).to_have_text("correct: 1 failed")
        expect(checks.locator(".failed")).to_contain_text(test[kind])
        expect(checks.locator(".failed")).to_contain_text("expected 19")
    assert set(places) == {"got", "detail"}


def test_the_prompt_is_messages_with_the_rows_fields_and_its_template_on_demand(
    page: Page, deployment: Deployment
) -> None:
    group = groups_of(deployment, deployment.jobs["first"], step=3)[0]
    open_page(page, deployment.jobs["first"], "?step=3")
    prompt = page.locator(".messages")
    expect(prompt.locator(".message")).to_have_text(
        [f"{one['role']}{one['content']}" for one in group["messages"]]
    )
    expect(prompt).not_to_contain_text("<|im_start|>")
    expect(page.locator(".reference > div").first).to_have_text(f"answer{group['reference']['answer']}")
    template = page.get_by_role("button", name="Template")
    template.click()
    expect(template).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".template")).to_have_text(group["prompt"])
    template.click()
    expect(prompt.locator(".message")).to_have_count(2)


def test_a_long_text_is_cut_until_it_is_opened(page: Page, long_text: str, shots: Shots) -> None:
    open_page(page, long_text)
    text = page.locator(".model-text").first
    cut = text.bounding_box()
    page.get_by_role("button", name="Show all").first.click()
    whole = text.bounding_box()
    assert cut is not None
    assert whole is not None
    assert cut["height"] < 300 < whole["height"]
    page.get_by_text("As a table").click()
    shots(page, "rollouts-long")


def spoken(card: Locator) -> list[str]:
    """The text of each turn of a card."""
    return [" ".join(text.split()) for text in card.get_by_role("listitem").all_inner_texts()]


def test_turns_are_a_conversation_with_their_rewards(page: Page, turns: str, shots: Shots) -> None:
    open_page(page, turns)
    expect(page.get_by_role("article")).to_have_count(4)
    won, cut, failed, agents = page.get_by_role("article").all()
    expect(won.get_by_role("region", name="Conversation of completion 1")).to_be_visible()
    expect(won).to_contain_text("environment words, seed 7")
    assert spoken(won) == [
        "Turn 1 Reward 0.2 Model crane Environment two are right",
        "Turn 2 No reward Model <b> Environment Error",
        "Turn 3 Reward 1 Done Model crate Environment solved",
    ]
    assert spoken(cut)[0] == "Turn 1 No reward Model I look. Tool find · failed Error: no answer"
    assert spoken(cut)[2:] == ["Turn 3 Cut, not sent Model sla"]
    assert spoken(failed)[1:] == ["Turn 2 Session failed Model crown"]
    assert spoken(agents) == ["Turn 1 Model I look. Environment 7", "Turn 2 Model It is 7."]
    expect(failed.locator(".note")).to_contain_text("Session failed: no answer within 30 s")
    expect(failed).not_to_contain_text("Max tokens")
    expect(cut).to_contain_text("Max tokens")
    expect(page.locator(".column.truncated")).to_have_count(1)
    assert failed.locator(".parts, b", has_text="model_grader_server_error").count() == 0
    shots(page, "rollouts-turns")
    page.get_by_role("button", name="Next group").click()
    second = page.get_by_role("article").first.get_by_role("listitem").nth(1)
    expect(second.locator(".role")).to_have_text(["Model", "Tool find · failed"])
    expect(second.locator(".answer-text")).to_have_text("Error: no answer")
    shots(page, "rollouts-tools")


def test_hostile_text_is_text_and_negative_rewards_hang_below(page: Page, hostile: str, shots: Shots) -> None:
    open_page(page, hostile)
    expect(page.locator(".model-text").first).to_have_text(HOSTILE, use_inner_text=False)
    expect(page.locator(".parts").first).to_contain_text(HOSTILE)
    expect(page.locator(".reference")).to_contain_text(HOSTILE)
    expect(page.locator(".checks").first).to_contain_text(HOSTILE)
    assert page.locator("#main img, #main script").count() == 0
    assert page.title().startswith("Rollouts")
    below = page.locator(".column").nth(1).locator(".fill").bounding_box()
    zero = page.locator(".bars-plot .zero").bounding_box()
    assert below is not None
    assert zero is not None
    assert below["y"] >= zero["y"] - 1
    shots(page, "rollouts-hostile")


def test_another_grader_is_tried_and_its_rewards_are_marked(
    page: Page, deployment: Deployment, shots: Shots
) -> None:
    job_id = deployment.jobs["first"]
    open_page(page, job_id, "?step=5")
    page.get_by_text("Test another grader").click()
    page.get_by_label("Grader (JSON)").fill("{")
    page.get_by_role("button", name="Rescore").click()
    expect(page.get_by_role("alert")).to_contain_text("This is not JSON")
    grader = {"type": "format", "name": "shape", "tags": ["answer"]}
    page.get_by_label("Grader (JSON)").fill(json.dumps(grader))
    page.get_by_role("button", name="Rescore").click()
    expect(page.locator(".column .rescored").first).to_be_visible()  # a tenant rescores one after another
    body = {"grader": grader, "from_step": 5, "to_step": 5}
    reported = deployment.client.post(f"{JOBS}/{job_id}/rollouts/rescore", json=body).json()
    changes = page.locator(".rescore .figures div").last
    expect(changes).to_contain_text(str(reported["summary"]["num_sign_changes"]))
    expect(page.locator(".column .rescored")).to_have_count(len(reported["data"][0]["completions"]))
    shots(page, "rollouts-rescore")


def test_a_refusal_for_several_reasons_shows_each_once(
    page: Page, deployment: Deployment, expected_errors: list[str]
) -> None:
    expected_errors.append("400")
    open_page(page, deployment.jobs["first"], "?step=5")
    page.get_by_text("Test another grader").click()
    page.get_by_label("Grader (JSON)").fill("[]")
    page.get_by_label("Max completions").fill("9999")
    page.get_by_role("button", name="Rescore").click()
    alert = page.get_by_role("alert")
    expect(alert.get_by_role("listitem")).to_have_count(2)
    expect(alert.get_by_text("got 9999")).to_have_count(1)


def test_whitespace_at_the_end_of_a_completion_is_counted(page: Page, deployment: Deployment) -> None:
    job_id = deployment.jobs["first"]
    answer = deployment.get(f"{JOBS}/{job_id}/rollouts", step=3)
    answer["data"][0]["completions"][0]["text"] = "39" + 17 * " "
    page.route("**/rollouts?*", lambda route: route.fulfill(json=answer))
    open_page(page, job_id, "?step=3")
    expect(page.get_by_role("article").first).to_contain_text("ends with 17 spaces or line breaks")
