"""The pages' stream reader: every event once, even after a lost connection, until the end."""

from playwright.sync_api import Page

from tests.browser.deployment import JOBS, Deployment

FOLLOW = """async ([id, after]) => {
  const { follow } = await import("/dashboard/api.js");
  const events = [], connections = [];
  const onConnection = (isUp) => connections.push(isUp);
  await follow(id, { after, onConnection, onEvent: (event) => events.push(event) });
  return { events, connections };
}"""


def newest(deployment: Deployment, job_id: str) -> int:
    """The number of a job's last event; numbers start at 1 without gaps."""
    return int(deployment.get(f"{JOBS}/{job_id}/events", limit=1)["first_id"].rsplit("-", 1)[-1])


def test_a_finished_jobs_stream_has_every_event_once_and_ends(page: Page, deployment: Deployment) -> None:
    job_id = deployment.jobs["first"]
    page.goto("/")
    reported = page.evaluate(FOLLOW, [job_id, None])
    assert [event["id"] for event in reported["events"]] == list(range(1, newest(deployment, job_id) + 1))
    assert reported["events"][-1]["type"] == "status"
    rewards = [event["data"]["reward"] for event in reported["events"] if "reward" in event["data"]]
    rows = deployment.get(f"{JOBS}/{job_id}/metrics")["data"]
    assert rewards == [row["reward"] for row in rows]


def test_a_lost_connection_is_resumed_after_the_last_event(
    page: Page, deployment: Deployment, expected_errors: list[str]
) -> None:
    expected_errors.append("ERR_CONNECTION_RESET")
    job_id = deployment.jobs["failed"]
    page.goto("/")
    page.route("**/stream", lambda route: route.abort("connectionreset"), times=1)
    reported = page.evaluate(FOLLOW, [job_id, 3])
    assert [event["id"] for event in reported["events"]] == list(range(4, newest(deployment, job_id) + 1))
    assert reported["connections"][:2] == [False, True]
