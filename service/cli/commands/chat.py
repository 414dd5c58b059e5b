"""`grpo chat MODEL`: chat with a model in the terminal, or with two in turn, or send one message.

Ctrl-C stops a response; at the prompt it ends the conversation.
"""

import json
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import httpx
import typer

from service.cli.http.client import Client
from service.cli.http.sse import documents
from service.cli.options import client_of
from service.cli.terminal.errors import CommandError
from service.cli.terminal.output import JsonFlag, plain, print_json, say, stderr

CHAT = "/v1/chat/completions"


def chat(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Base, fine-tuned or checkpoint model.")],
    text: Annotated[str | None, typer.Argument(help="One message; without it a prompt opens.")] = None,
    system: Annotated[str | None, typer.Option(help="A system prompt.")] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.", min=0, max=2)] = 1.0,
    max_tokens: Annotated[int | None, typer.Option(help="Max tokens of a response.", min=1)] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same response.")] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="A second model; `parent`: the model that training started from."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Chat with a model. The first response waits until a worker has loaded the model."""
    settings = {"temperature": temperature, "max_tokens": max_tokens, "seed": seed}
    client = client_of(context)
    names = [model] if against is None else [_second(client, model, against), model]
    first = [{"role": "system", "content": system}] if system else []
    if as_json:
        messages = [*first, {"role": "user", "content": text if text is not None else sys.stdin.read()}]
        answers = [client.post(CHAT, {**settings, "model": name, "messages": messages}) for name in names]
        print_json(answers[0] if against is None else {"object": "list", "data": answers})
        return
    conversations = {name: [*first] for name in names}
    for line in [text] if text is not None else _typed_lines():
        for name, messages in conversations.items():
            if against is not None:
                say(name, "bold")
            _answer(client, {**settings, "model": name}, messages, line)


def _second(client: Client, model: str, against: str) -> str:
    """The second model's name. Raises CommandError if a base model is compared with its parent."""
    if against != "parent":
        return against
    parent = client.get(f"/v1/models/{model}").get("parent")
    if parent is None:
        raise CommandError(f"{model} was not trained here, so it has no parent", param="against")
    return str(parent)


def _answer(client: Client, settings: dict[str, Any], messages: list[dict[str, Any]], line: str) -> None:
    """Print one response and keep both turns; if the user stops the response, keep neither."""
    messages.append({"role": "user", "content": line})
    try:
        response = _streamed(client, {**settings, "messages": messages})
    except KeyboardInterrupt:
        stderr.print("\n(stopped)")
        messages.pop()
    else:
        messages.append({"role": "assistant", "content": response})


def _typed_lines() -> Iterator[str]:
    """The user's lines until Ctrl-C, Ctrl-D or the end of the input."""
    try:
        while line := typer.prompt(">", prompt_suffix=" ", default="", show_default=False):
            yield line
    except typer.Abort:
        stderr.print()


def _streamed(client: Client, body: dict[str, Any]) -> str:
    """Prints the response as it arrives and returns it. Raises CommandError."""
    whole = ""
    try:
        with client.streaming(CHAT, headers={}, body={**body, "stream": True}) as response:
            for chunk in documents(response.iter_bytes()):
                if error := chunk.get("error"):
                    raise CommandError(error["message"], code=error["code"])
                piece = chunk["choices"][0]["delta"].get("content") or ""
                print(plain(piece), end="", flush=True)
                whole += piece
    except (httpx.TransportError, json.JSONDecodeError) as error:
        raise CommandError("the response was cut off", code="unreachable") from error
    print()
    return whole
