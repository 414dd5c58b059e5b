"""`grpo webhooks`: where the service tells that jobs have ended."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from service.cli.options import client_of
from service.cli.terminal.output import JsonFlag, at, print_json, print_table, say

WEBHOOKS = "/v1/webhook_endpoints"
ENDS = [f"fine_tuning.job.{state}" for state in ("succeeded", "failed", "cancelled")]

WebhookId = Annotated[str, typer.Argument(metavar="WEBHOOK", help="Its id (`grpo webhooks list`).")]

app = typer.Typer(no_args_is_help=True, help="Be told when jobs end: register URLs, test them, see the log.")


@app.command()
def add(
    context: typer.Context,
    url: Annotated[str, typer.Argument(help="https, on port 443 or 8443.")],
    event: Annotated[list[str], typer.Option(help="An event type; may be given again.")] = ENDS,
    name: Annotated[str, typer.Option(help="What it is for.")] = "",
    as_json: JsonFlag = False,
) -> None:
    """Register a URL and print its id and its signing secret: this once."""
    with client_of(context) as client:
        webhook = client.post(WEBHOOKS, {"url": url, "event_types": event, "name": name})
    if as_json:
        print_json(webhook)
        return
    say(webhook["id"])
    say(webhook["signing_secret"])


@app.command("list")
def list_webhooks(context: typer.Context, as_json: JsonFlag = False) -> None:
    """List webhooks, newest first."""
    with client_of(context) as client:
        webhooks = list(client.pages(WEBHOOKS, 100))
    if as_json:
        print_json(webhooks)
        return
    print_table(
        ("id", "name", "url", "events", "state", "created"),
        [
            (
                *(one["id"], one["name"], one["url"], _events(one)),
                *(
                    "enabled" if one["enabled"] else one["disabled_reason"] or "disabled",
                    at(one["created_at"]),
                ),
            )
            for one in webhooks
        ],
    )


@app.command()
def remove(context: typer.Context, webhook_id: WebhookId, as_json: JsonFlag = False) -> None:
    """Delete a webhook and its log."""
    with client_of(context) as client:
        answer = client.delete(f"{WEBHOOKS}/{webhook_id}")
    if as_json:
        print_json(answer)
    else:
        say(f"{webhook_id} is deleted.")


@app.command("test")
def send_test(context: typer.Context, webhook_id: WebhookId, as_json: JsonFlag = False) -> None:
    """Send an event now and tell how the receiver answered; 1 where that was no success."""
    with client_of(context) as client:
        found = client.post(f"{WEBHOOKS}/{webhook_id}/test")
    status = found["status_code"]
    if as_json:
        print_json(found)
    else:
        say(f"It answered {status}.")
    if not 200 <= status < 300:
        raise typer.Exit(1)


@app.command()
def deliveries(
    context: typer.Context,
    webhook_id: WebhookId,
    limit: Annotated[int, typer.Option(help="At most so many, newest first.", min=1)] = 20,
    as_json: JsonFlag = False,
) -> None:
    """Show what was sent to a webhook and what will be."""
    with client_of(context) as client:
        found = list(client.pages(f"{WEBHOOKS}/{webhook_id}/deliveries", limit))
    if as_json:
        print_json(found)
        return
    print_table(
        ("id", "event", "job", "state", "attempts", "last answer", "next"),
        [
            (
                *(one["id"], one["event"]["type"], one["event"]["data"]["id"], one["status"]),
                *(len(one["attempts"]), _last_answer(one), at(one["next_attempt_at"])),
            )
            for one in found
        ],
    )


@app.command()
def redeliver(
    context: typer.Context,
    webhook_id: WebhookId,
    delivery_id: Annotated[str, typer.Argument(metavar="DELIVERY", help="`grpo webhooks deliveries`")],
    as_json: JsonFlag = False,
) -> None:
    """Send a delivery again, under the same id."""
    with client_of(context) as client:
        delivery = client.post(f"{WEBHOOKS}/{webhook_id}/deliveries/{delivery_id}/redeliver")
    if as_json:
        print_json(delivery)
    else:
        say(f"{delivery_id} is sent again.")


def _events(webhook: dict[str, Any]) -> str:
    return ",".join(event.removeprefix("fine_tuning.job.") for event in webhook["event_types"])


def _last_answer(delivery: dict[str, Any]) -> str:
    if not delivery["attempts"]:
        return ""
    last = delivery["attempts"][-1]
    return str(last["status_code"] or last["error"])
