"""A job's page: the API's numbers, live updates, and events."""

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from service.platform.db import connect
from tests.browser.charts import drawn, figure, points, table
from tests.browser.conftest import PHONE, TOO_WIDE, watched
from tests.browser.deployment import JOBS, Deployment
from tests.service.job_samples import finish_export, upload


def open_job(page: Page, deployment: Deployment, name: str) -> dict[str, Any]:
    page.goto(f"/#/jobs/{deployment.jobs[name]}")
    return deployment.job(name)


@pytest.fixture(scope="module")
def finished(context: BrowserContext, deployment: Deployment) -> Iterator[Page]:
    """The page of the job `first`, opened once for all tests that only read it."""
    with watched(context, []) as page:
        open_job(page, deployment, "first")
        drawn(page, "Time by phase")
        yield page


def measured(deployment: Deployment, name: str, metric: str) -> list[tuple[int, float]]:
    rows = deployment.get(f"{JOBS}/{deployment.jobs[name]}/metrics")["data"]
    return [(row["step"], row[metric]) for row in rows if metric in row]


def test_the_reward_curve_is_the_apis_with_its_spread_and_the_held_out_rewards(
    finished: Page, deployment: Deployment
) -> None:
    job = deployment.job("first")
    traces = drawn(finished, "Reward")
    rewards = measured(deployment, "first", "reward")
    spread = dict(measured(deployment, "first", "reward_std"))
    assert points(traces["Training"]) == rewards
    assert points(traces["Training ±"]) == [(step, reward + spread[step]) for step, reward in rewards]
    before = [(0, job["eval"]["baseline"]["reward"])]
    assert points(traces["Held-out"]) == before + measured(deployment, "first", "eval/reward")


def test_each_graders_part_is_a_line(finished: Page, deployment: Deployment) -> None:
    traces = drawn(finished, "Reward by grader")
    for part in ("correct", "format"):
        assert points(traces[part]) == measured(deployment, "first", f"rewards/{part}/mean")


def test_the_time_by_phase_is_stacked_bars(finished: Page, deployment: Deployment) -> None:
    traces = drawn(finished, "Time by phase")
    assert {trace["type"] for trace in traces.values()} == {"bar"}
    for phase in ("sample", "score", "train"):
        assert points(traces[phase]) == measured(deployment, "first", f"timing/{phase}_seconds")


def test_single_metrics_have_the_apis_values(finished: Page, deployment: Deployment) -> None:
    charts = {
        "KL divergence to the reference": "kl",
        "Entropy": "entropy",
        "Truncated completions": "completions/clipped_ratio",
        "Groups without signal": "frac_reward_zero_std",
        "Completion length": "completions/mean_length",
    }
    for title, metric in charts.items():
        traces = drawn(finished, title)
        (line,) = (trace for name, trace in traces.items() if not name.endswith("±"))
        assert points(line) == measured(deployment, "first", metric), title


def test_a_chart_has_a_table_and_a_sentence(finished: Page, deployment: Deployment) -> None:
    drawn(finished, "Entropy")
    entropies = measured(deployment, "first", "entropy")
    rows = table(finished, "Entropy")
    assert [int(step) for step, _ in rows] == [step for step, _ in entropies]
    assert [text for _, text in rows] == [f"{value:.4g}" for _, value in entropies]
    sentence = figure(finished, "Entropy").locator(".plot").get_attribute("aria-label")
    assert sentence.startswith(f"Entropy. Entropy: {len(entropies)} values, first {entropies[0][1]:.4g}")


def test_any_other_metric_can_be_drawn(finished: Page, deployment: Deployment) -> None:
    finished.get_by_label("Another metric").select_option("completions/max_length")
    line = drawn(finished, "completions/max_length")["completions/max_length"]
    assert points(line) == measured(deployment, "first", "completions/max_length")


def test_a_supervised_job_has_a_loss_and_no_empty_charts(page: Page, deployment: Deployment) -> None:
    open_job(page, deployment, "supervised")
    assert points(drawn(page, "Loss")["Loss"]) == measured(deployment, "supervised", "loss")
    titles = page.locator("figcaption > span:first-child").all_inner_texts()
    assert titles == ["Loss", "Gradient norm"]
    newest = deployment.get(f"{JOBS}/{deployment.jobs['supervised']}/checkpoints")["data"][0]
    listed = page.get_by_role("region", name="Checkpoints, newest first")
    expect(listed.get_by_role("columnheader", name="Loss")).to_be_visible()
    expect(listed.locator("tbody td").first).to_have_text(f"{newest['metrics']['loss']:.4g}")


def test_the_evaluation_shows_before_after_and_the_interval(finished: Page, deployment: Deployment) -> None:
    evaluation = deployment.job("first")["eval"]
    panel = finished.get_by_role("region", name="Evaluation on held-out rows")
    expect(panel).to_contain_text(evaluation["verdict"]["text"])
    figures = panel.locator("dd").all_inner_texts()
    reported = [evaluation[which]["reward"] for which in ("baseline", "best", "last")]
    assert [float(text.split("\n")[0]) for text in figures] == [float(f"{value:.4g}") for value in reported]
    low, high = evaluation["verdict"]["low"], evaluation["verdict"]["high"]
    expect(panel.get_by_role("img")).to_have_accessible_name(
        f"Difference {evaluation['verdict']['difference']}, 95 percent interval {low} to {high}"
    )


def test_a_failed_job_shows_the_reason_and_advice(page: Page, deployment: Deployment) -> None:
    failure = open_job(page, deployment, "failed")["failure"]
    panel = page.get_by_role("region", name="Failure")
    for text in (failure["message"], failure["code"], failure["hint"], *failure["evidence"]):
        expect(panel).to_contain_text(text)


def test_warnings_are_shown_with_their_advice(page: Page, deployment: Deployment) -> None:
    warnings = open_job(page, deployment, "guarded")["warnings"]
    assert len(warnings) == 2
    for warning in warnings:
        expect(page.get_by_role("region", name="2 warnings")).to_contain_text(warning["message"])


def test_a_downloaded_checkpoint_is_the_one_of_the_list(finished: Page, deployment: Deployment) -> None:
    newest = deployment.get(f"{JOBS}/{deployment.jobs['first']}/checkpoints")["data"][0]
    label = f"Download the checkpoint of step {newest['step_number']}"
    with finished.expect_download() as found:
        finished.get_by_role("button", name=label).click()
    assert hashlib.sha256(found.value.path().read_bytes()).hexdigest() == newest["sha256"]
    assert found.value.suggested_filename == f"{deployment.jobs['first']}-step-{newest['step_number']}.tar.gz"


def test_the_merged_model_is_exported_awaited_and_downloaded(finished: Page, deployment: Deployment) -> None:
    place = f"{JOBS}/{deployment.jobs['first']}/exports"
    settings = deployment.api.settings
    with finished.expect_download() as found:
        finished.get_by_role("button", name="Merged model", exact=True).click()
        expect(finished.get_by_role("button", name="Merged model: queued")).to_be_visible()
        (export,) = deployment.get(place)["data"]
        database = connect(settings)  # the worker is busy with another job, so this acts in its place
        finish_export(settings, database, export["id"], b"a merged model")
        database.engine.dispose()
    assert found.value.path().read_bytes() == b"a merged model"


def test_metrics_are_downloaded_as_the_api_has_them(finished: Page, deployment: Deployment) -> None:
    job = deployment.job("first")
    with finished.expect_download() as found:
        finished.get_by_role("button", name="Metrics (CSV)").click()
    reported = deployment.client.get(f"{JOBS}/{job['id']}/metrics.csv").content
    assert found.value.path().read_bytes() == reported


def test_a_result_comes_with_the_commands_that_serve_it_and_merge_it(
    finished: Page, deployment: Deployment
) -> None:
    job_id = deployment.jobs["first"]
    serve = deployment.get(f"{JOBS}/{job_id}/manifest")["job"]["serve"]
    panel = finished.get_by_role("region", name="Use the result")
    adapter, merged, archive = panel.locator("pre").all_inner_texts()
    grpo = f"grpo --url {deployment.url}"
    assert adapter == f"{grpo} download {job_id} --extract\n{serve}"
    assert merged.startswith(f"{grpo} merge {job_id} --to {job_id}-merged\nvllm serve ./{job_id}-merged ")
    assert f'curl -f "{deployment.url}{JOBS}/{job_id}/exports"' in archive
    assert f"{deployment.url}{JOBS}/{job_id}/adapter?format=merged" in archive
    finished.context.grant_permissions(["clipboard-read", "clipboard-write"])
    panel.get_by_role("button", name="Copy: Merge adapter and base into one model").click()
    expect(panel.get_by_text("Copied")).to_be_visible()
    assert finished.evaluate("navigator.clipboard.readText()") == merged


def test_the_configuration_is_the_jobs(page: Page, deployment: Deployment) -> None:
    job = open_job(page, deployment, "faster")
    page.get_by_text("Hyperparameters (").click()
    panel = page.get_by_role("region", name="Configuration")
    given = job["method"]["reinforcement"]["hyperparameters"]
    shown = dict(
        zip(panel.locator("dt").all_inner_texts(), panel.locator("dd").all_inner_texts(), strict=True)
    )
    assert float(shown["learning_rate"]) == given["learning_rate"] == 4e-5
    assert shown["seed"] == "8"


def test_events_are_newest_first_with_steps_on_request(finished: Page, deployment: Deployment) -> None:
    job = deployment.job("first")
    reported = deployment.get(f"{JOBS}/{job['id']}/events", limit=50)["data"]
    messages = finished.locator(".events .text")
    expect(messages.first).to_have_text(reported[0]["message"])
    assert messages.count() == len([event for event in reported if event["type"] == "message"])
    finished.get_by_label("Show every step").check()
    expect(messages).to_have_count(len(reported))


def test_a_running_job_grows_without_a_reload(page: Page, deployment: Deployment) -> None:
    open_job(page, deployment, "running")
    before = drawn(page, "Entropy")["Entropy"]["x"][-1]
    plot = figure(page, "Entropy").locator(".plot").element_handle()
    page.wait_for_function("([plot, before]) => plot.data[0].x.at(-1) > before", arg=[plot, before])
    reported = dict(measured(deployment, "running", "entropy"))
    shown = points(drawn(page, "Entropy")["Entropy"])
    assert dict(shown) == {step: reported[step] for step, _ in shown}


def test_a_waiting_job_has_a_place_and_no_curves_yet(page: Page, deployment: Deployment) -> None:
    job = open_job(page, deployment, "queued")
    expect(page.get_by_text(job["queue"]["reason"])).to_be_visible()
    expect(page.get_by_role("heading", name="No metrics yet")).to_be_visible()
    with page.expect_response("**/metrics?*") as asked_again:
        pass
    assert asked_again.value.ok


def test_a_job_is_cancelled_only_after_confirmation(page: Page, deployment: Deployment) -> None:
    job_id = deployment.create(upload(deployment.client))
    page.goto(f"/#/jobs/{job_id}")
    page.get_by_role("button", name="Cancel job").click()
    page.get_by_role("dialog").get_by_role("button", name="Keep running").click()
    assert deployment.get(f"{JOBS}/{job_id}")["status"] == "queued"
    page.get_by_role("button", name="Cancel job").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel job").click()
    expect(page.locator("main .badge")).to_have_text("cancelled")
    expect(page.get_by_role("button", name="Cancel job")).to_have_count(0)
    assert deployment.get(f"{JOBS}/{job_id}")["status"] == "cancelled"


def test_a_job_is_paused_and_resumed(page: Page, deployment: Deployment) -> None:
    job_id = deployment.create(upload(deployment.client))
    page.goto(f"/#/jobs/{job_id}")
    page.get_by_role("button", name="Pause", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Pause job").click()
    expect(page.locator("main .badge")).to_have_text("paused")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("main .badge")).to_have_text("queued")
    deployment.client.post(f"{JOBS}/{job_id}/cancel")


def test_a_missing_job_shows_an_error(page: Page, expected_errors: list[str]) -> None:
    expected_errors.append("404")
    page.goto("/#/jobs/ftjob-gone")
    expect(page.get_by_role("heading", name="Not found")).to_be_visible()


def test_a_long_model_name_is_broken_on_a_phone(page: Page, deployment: Deployment) -> None:
    job = {**deployment.job("faster"), "model": f"ft:tiny:default:sums:{'x' * 60}"}
    page.route(f"**{JOBS}/{job['id']}", lambda route: route.fulfill(json=job))
    page.set_viewport_size(PHONE)
    page.goto(f"/#/jobs/{job['id']}")
    expect(page.get_by_text(job["model"]).first).to_be_visible()
    assert page.evaluate(TOO_WIDE) <= 0


def test_the_jobs_page_looks_right(
    page: Page, deployment: Deployment, shots: Callable[[Page, str], None]
) -> None:
    for name, last in {"faster": "Time by phase", "failed": "Time by phase", "supervised": "Loss"}.items():
        open_job(page, deployment, name)
        drawn(page, last)
        shots(page, f"job-{name}")
