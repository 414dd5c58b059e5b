"""The try-it page: two models respond side by side, can be stopped, and show errors."""

from collections.abc import Callable

from playwright.sync_api import Locator, Page, expect

from tests.browser.deployment import JOBS, Deployment


def tuned(deployment: Deployment) -> str:
    return str(deployment.job("first")["fine_tuned_model"])


def test_from_the_job_s_page_base_and_adapter_answer_side_by_side(
    page: Page, deployment: Deployment, shots: Callable[[Page, str], None]
) -> None:
    page.goto(f"/#/jobs/{deployment.jobs['first']}")
    page.get_by_role("link", name="Try it").click()
    expect(page.get_by_label("Left")).to_have_value("tiny")
    expect(page.get_by_label("Right")).to_have_value(tuned(deployment))
    page.get_by_text("System prompt and settings").click()
    temperature = page.get_by_label("Temperature")
    expect(temperature).to_have_value("0")
    temperature.fill("1")
    page.get_by_label("Prompt", exact=True).fill("random <b>17 + 25</b>?")
    page.get_by_label("Prompt", exact=True).press("Control+Enter")
    base = page.get_by_role("region", name="Answer of tiny")
    adapter = page.get_by_role("region", name="Answer of first-try")
    expect(base).to_contain_text("Base: random <b>17 + 25</b>? (1)")
    expect(adapter).to_contain_text("Adapter: random <b>17 + 25</b>?! (1)")
    expect(base.locator("b")).to_have_count(0)
    expect(base).to_contain_text("stopped by the model")
    expect(page.get_by_role("button", name="Stop")).to_be_disabled()
    shots(page, "try")


def answer_to(page: Page, prompt: str) -> Locator:
    """Asks the base model alone."""
    page.goto("/#/try")
    page.get_by_label("Right").select_option("")
    page.get_by_label("Prompt", exact=True).fill(prompt)
    page.get_by_role("button", name="Send").click()
    return page.get_by_role("region", name="Answer of tiny")


def test_an_answer_can_be_stopped(page: Page) -> None:
    answer = answer_to(page, "hang on")
    expect(answer).to_contain_text("Base:")
    page.get_by_role("button", name="Stop").click()
    expect(answer).to_contain_text("Stopped")
    expect(page.get_by_role("button", name="Send")).to_be_enabled()


def test_an_error_during_a_response_is_shown_next_to_it(
    page: Page, shots: Callable[[Page, str], None], expected_errors: list[str]
) -> None:
    expected_errors.append("503")  # it died before its first token
    page.goto("/#/try")
    page.get_by_label("Right").select_option("")
    page.get_by_label("Prompt", exact=True).fill("die now")
    page.get_by_role("button", name="Send").click()
    answer = page.get_by_role("region", name="Answer of tiny")
    expect(answer.get_by_role("alert")).to_contain_text("The model's process ended while it was answering")
    shots(page, "try-failed")


def test_a_refused_prompt_shows_the_reason(page: Page, expected_errors: list[str]) -> None:
    expected_errors.append("400")
    page.goto("/#/try")
    page.get_by_label("Right").select_option("")
    page.get_by_label("Prompt", exact=True).fill("refuse this")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("alert")).to_contain_text("too long")


def test_a_conversation_has_several_turns_until_it_starts_again(
    page: Page, shots: Callable[[Page, str], None]
) -> None:
    page.goto("/#/try")
    page.get_by_label("Right").select_option("")
    prompt = page.get_by_label("Prompt", exact=True)
    answer = page.get_by_role("region", name="Answer of tiny")
    prompt.fill("first question")
    prompt.press("Control+Enter")
    expect(answer).to_contain_text("stopped by the model")
    expect(prompt).to_have_value("")
    page.get_by_text("System prompt and settings").click()
    page.get_by_label("System prompt", exact=True).fill("Be brief.")
    page.get_by_label("Temperature").fill("0.5")
    page.get_by_label("Max tokens").fill("30")
    prompt.fill("second question")
    with page.expect_request("**/v1/chat/completions") as sent:
        prompt.press("Control+Enter")
    body = sent.value.post_data_json
    assert [message["content"] for message in body["messages"]] == [
        "Be brief.",
        "first question",
        "Base: first question",
        "second question",
    ]
    assert (body["temperature"], body["max_tokens"]) == (0.5, 30)
    expect(answer).to_contain_text("Base: second question")
    expect(answer).to_contain_text("Base: first question")
    shots(page, "try-turns")
    page.get_by_role("button", name="New conversation").click()
    expect(answer).to_be_hidden()
    prompt.fill("a third one")
    with page.expect_request("**/v1/chat/completions") as sent:
        prompt.press("Control+Enter")
    assert [message["role"] for message in sent.value.post_data_json["messages"]] == ["system", "user"]


def test_two_checkpoints_of_a_job_are_compared(page: Page, deployment: Deployment) -> None:
    model = tuned(deployment)
    page.goto(f"/#/try?model={model}")
    earlier = f"{model}:ckpt-step-40"
    page.get_by_label("Left").select_option(earlier)
    page.get_by_label("Prompt", exact=True).fill("hello")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("region", name="Answer of first-try, step 40")).to_contain_text("Adapter: hello!")
    expect(page.get_by_role("region", name="Answer of first-try", exact=True)).to_contain_text(
        "Adapter: hello!"
    )


def test_a_checkpoint_is_compared_with_the_model_that_training_started_from(
    page: Page, deployment: Deployment
) -> None:
    page.goto(f"/#/try?model={tuned(deployment)}:ckpt-step-40")
    expect(page.get_by_label("Left")).to_have_value("tiny")
    expect(page.get_by_label("Right")).to_have_value(f"{tuned(deployment)}:ckpt-step-40")


def test_held_out_rows_of_the_job_are_offered_as_prompts(page: Page, deployment: Deployment) -> None:
    page.goto(f"/#/try?model={tuned(deployment)}")
    expect(page.get_by_text("Held-out rows:")).to_be_visible()
    page.get_by_role("button", name="What is 3 + 3?").click()
    expect(page.get_by_label("Prompt", exact=True)).to_have_value("What is 3 + 3?")
    expect(page.get_by_role("button", name="Send")).to_be_focused()
    with page.expect_request("**/v1/chat/completions") as sent:
        page.keyboard.press("Enter")
    assert sent.value.post_data_json["temperature"] == 0
    expect(page.get_by_role("region", name="Answer of first-try")).to_contain_text("Adapter: What is 3 + 3?!")


def test_the_held_out_rows_of_a_split_file_are_those_that_were_evaluated(
    page: Page, deployment: Deployment
) -> None:
    job = {**deployment.job("first"), "validation_file": None, "validation_split": 0.25}
    path = f"**{JOBS}/{job['id']}"
    messages = [{"role": "user", "content": "What is 3 + 3?"}]
    evaluated = {"prompt": "<user>What is 3 + 3?", "messages": messages}
    page.route(path, lambda route: route.fulfill(json=job))
    page.route(f"{path}/rollouts?*", lambda route: route.fulfill(json={"data": [evaluated]}))
    page.goto(f"/#/try?model={tuned(deployment)}")
    rows = page.locator(".samples > .row")
    expect(rows).to_have_text(
        [
            "Held-out rows:What is 3 + 3?",
            "Training rows:What is 0 + 0?What is 1 + 1?What is 2 + 2?What is 4 + 4?",
        ]
    )


def test_the_seconds_until_the_first_word_are_shown(page: Page) -> None:
    page.route("**/v1/chat/completions", lambda route: None)
    answer = answer_to(page, "hello")
    expect(answer).to_contain_text("The model is loading… 1 s")
    page.get_by_role("button", name="Stop").click()
    expect(answer).to_contain_text("Stopped")
