"""The tab of a job's checkpoints: downloads, exports and the commands that use the result."""

import hashlib

from playwright.sync_api import Page, expect

from service.jobs.model.states import JobState
from service.jobs.progress import logs
from service.jobs.progress.logs import PrintedLines
from service.platform.db import connect
from service.platform.tables.core import Job
from tests.browser.deployment import JOBS, Deployment
from tests.browser.job.opened import open_job
from tests.service.job_samples import finish_export


def test_checkpoints_show_the_held_out_reward_first_and_mark_the_best(
    page: Page, deployment: Deployment
) -> None:
    open_job(page, deployment, "first", "checkpoints")
    reported = deployment.get(f"{JOBS}/{deployment.jobs['first']}/checkpoints")["data"]
    listed = page.get_by_role("region", name="Checkpoints, newest first")
    expect(listed.get_by_role("columnheader")).to_have_text(
        ["Step", "Held-out reward (greedy)", "Training reward", "Saved", "Size"]
    )
    held_out = listed.locator("tbody td:nth-child(2)").all_inner_texts()
    assert held_out == [f"{one['metrics']['eval/reward']:.3f}" for one in reported]
    (best,) = (one for one in reported if one["is_best"])
    expect(listed.get_by_role("row", name="best")).to_contain_text(str(best["step_number"]))


def test_a_list_of_checkpoints_that_failed_is_read_again_on_request(
    page: Page, deployment: Deployment, expected_errors: list[str]
) -> None:
    expected_errors.append("503")
    error = {"error": {"message": "The database does not respond.", "code": "unavailable"}}
    page.route("**/checkpoints?*", lambda route: route.fulfill(status=503, json=error), times=1)
    open_job(page, deployment, "first", "checkpoints")
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("region", name="Checkpoints, newest first")).to_be_visible()


def test_a_downloaded_checkpoint_is_the_one_of_the_list(page: Page, deployment: Deployment) -> None:
    open_job(page, deployment, "first", "checkpoints")
    newest = deployment.get(f"{JOBS}/{deployment.jobs['first']}/checkpoints")["data"][0]
    label = f"Download the checkpoint of step {newest['step_number']}"
    with page.expect_download() as found:
        page.get_by_role("button", name=label).click()
    assert hashlib.sha256(found.value.path().read_bytes()).hexdigest() == newest["sha256"]
    assert found.value.suggested_filename == f"{deployment.jobs['first']}-step-{newest['step_number']}.tar.gz"


def test_the_merged_model_is_exported_awaited_and_downloaded(page: Page, deployment: Deployment) -> None:
    open_job(page, deployment, "first", "checkpoints")
    place = f"{JOBS}/{deployment.jobs['first']}/exports"
    settings = deployment.api.settings
    with page.expect_download() as found:
        page.get_by_role("button", name="Merged model", exact=True).click()
        expect(page.get_by_role("button", name="Merged model: queued")).to_be_visible()
        (export,) = deployment.get(place)["data"]
        database = connect(settings)  # the worker is busy with another job, so this acts in its place
        finish_export(settings, database, export["id"], b"a merged model")
        database.engine.dispose()
    assert found.value.path().read_bytes() == b"a merged model"


def test_a_failed_export_s_log_is_one_click_away(page: Page, deployment: Deployment) -> None:
    open_job(page, deployment, "faster", "checkpoints")
    place = f"{JOBS}/{deployment.jobs['faster']}/exports"
    page.get_by_role("button", name="Merged model", exact=True).click()
    expect(page.get_by_role("button", name="Merged model: queued")).to_be_visible()
    database = connect(deployment.api.settings)
    with database.transaction() as session:  # a worker's part
        row = session.get_one(Job, deployment.get(place)["data"][0]["id"])
        row.failure = {"code": "not_mergeable", "message": "It does not fit.", "hint": "", "evidence": []}
        row.state = JobState.FAILED.value
        logs.append(session, row.id, 1, [PrintedLines(0, ["what it was"])], after=0)
    database.engine.dispose()
    expect(page.get_by_text("It does not fit.")).to_be_visible()
    with page.expect_download() as saved:
        page.get_by_role("button", name="Download log").click()
    assert saved.value.path().read_text() == "what it was\n"


def test_metrics_are_downloaded_as_the_api_has_them(page: Page, deployment: Deployment) -> None:
    job = open_job(page, deployment, "first", "checkpoints")
    with page.expect_download() as found:
        page.get_by_role("button", name="Metrics (CSV)").click()
    reported = deployment.client.get(f"{JOBS}/{job['id']}/metrics.csv").content
    assert found.value.path().read_bytes() == reported


def test_a_result_comes_with_the_commands_that_serve_it_and_merge_it(
    page: Page, deployment: Deployment
) -> None:
    job_id = open_job(page, deployment, "first", "checkpoints")["id"]
    serve = deployment.get(f"{JOBS}/{job_id}/manifest")["job"]["serve"]
    panel = page.get_by_role("region", name="Use the result")
    expect(panel.locator("pre")).to_have_count(3)
    adapter, merged, archive = panel.locator("pre").all_inner_texts()
    grpo = f"grpo --url {deployment.url}"
    assert adapter == f"{grpo} download {job_id} --extract\n{serve}"
    assert merged.startswith(f"{grpo} merge {job_id} --to {job_id}-merged\nvllm serve ./{job_id}-merged ")
    assert f'curl -f "{deployment.url}{JOBS}/{job_id}/exports"' in archive
    assert f"{deployment.url}{JOBS}/{job_id}/adapter?format=merged" in archive
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    panel.get_by_role("button", name="Copy: Merge adapter and base into one model").click()
    expect(page.locator("#announcer")).to_have_text("Copied")  # the button says so only for two seconds
    assert page.evaluate("navigator.clipboard.readText()") == merged
