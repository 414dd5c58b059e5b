"""`grpo webhooks`: URLs that the service notifies when jobs end."""

from typing import Annotated, Any

import typer

from service.cli.options import client_of
from service.cli.terminal.output import JsonFlag, at, print_line, print_table

WEBHOOKS = "/v1/webhook_endpoints"
EVENTS = [f"fine_tuning.job.{state}" for state in ("succeeded", "failed", "cancelled")]

WebhookId = Annotated[str, typer.Argument(metavar="WEBHOOK", help="Its id (`grpo webhooks list`).")]

app = typer.Typer(
    no_args_is_help=True, help="Notifications when jobs end: register URLs, test them, see the log."
)


@app.command()
def add(
    context: typer.Context,
    url: Annotated[str, typer.Argument(help="https, on port 443 or 8443.")],
    event: Annotated[list[str], typer.Option(help="An event type; repeatable.")] = EVENTS,
    name: Annotated[str, typer.Option(help="Its purpose, for display.")] = "",
    as_json: JsonFlag = False,
) -> None:
    """Register a URL and print its id and its signing secret, which is shown only once."""
    webhook = client_of(context).post(WEBHOOKS, {"url": url, "event_types": event, "name": name})
    print_line(webhook, f"{webhook['id']}\n{webhook['signing_secret']}", as_json=as_json)


@app.command("list")
def list_webhooks(context: typer.Context, as_json: JsonFlag = False) -> None:
    """List webhooks, newest first."""
    webhooks = list(client_of(context).pages(WEBHOOKS, 100))
    columns = ("id", "name", "url", "events", "state", "created")
    rows = (
        (one["id"], one["name"], one["url"], _events(one), _state(one), at(one["created_at"]))
        for one in webhooks
    )
    print_table(webhooks, columns, rows, as_json=as_json)


@app.command()
def remove(context: typer.Context, webhook_id: WebhookId, as_json: JsonFlag = False) -> None:
    """Delete a webhook and its log."""
    deleted = client_of(context).delete(f"{WEBHOOKS}/{webhook_id}")
    print_line(deleted, f"{webhook_id} deleted", as_json=as_json)


@app.command("test")
def send_test(context: typer.Context, webhook_id: WebhookId, as_json: JsonFlag = False) -> None:
    """Send an event now and show the receiver's response; exit code 1 unless it is a success."""
    found = client_of(context).post(f"{WEBHOOKS}/{webhook_id}/test")
    status = found["status_code"]
    print_line(found, f"The receiver responded with {status}.", as_json=as_json)
    if not 200 <= status < 300:
        raise typer.Exit(1)


@app.command()
def deliveries(
    context: typer.Context,
    webhook_id: WebhookId,
    limit: Annotated[int, typer.Option(help="Number of newest deliveries.", min=1)] = 20,
    as_json: JsonFlag = False,
) -> None:
    """Show what was sent to a webhook and what will be sent."""
    found = list(client_of(context).pages(f"{WEBHOOKS}/{webhook_id}/deliveries", limit))
    columns = ("id", "event", "job", "state", "attempts", "last response", "next")
    print_table(found, columns, map(_delivery, found), as_json=as_json)


@app.command()
def redeliver(
    context: typer.Context,
    webhook_id: WebhookId,
    delivery_id: Annotated[str, typer.Argument(metavar="DELIVERY", help="`grpo webhooks deliveries`")],
    as_json: JsonFlag = False,
) -> None:
    """Send a delivery again, under the same id."""
    delivery = client_of(context).post(f"{WEBHOOKS}/{webhook_id}/deliveries/{delivery_id}/redeliver")
    print_line(delivery, f"{delivery_id} queued again", as_json=as_json)


def _events(webhook: dict[str, Any]) -> str:
    return ",".join(event.removeprefix("fine_tuning.job.") for event in webhook["event_types"])


def _state(webhook: dict[str, Any]) -> str:
    return "enabled" if webhook["enabled"] else webhook["disabled_reason"] or "disabled"


def _delivery(one: dict[str, Any]) -> tuple[Any, ...]:
    event = one["event"]
    result = len(one["attempts"]), _last_response(one), at(one["next_attempt_at"])
    return one["id"], event["type"], event["data"]["id"], one["status"], *result


def _last_response(delivery: dict[str, Any]) -> str:
    if not delivery["attempts"]:
        return ""
    last = delivery["attempts"][-1]
    return str(last["status_code"] or last["error"])
