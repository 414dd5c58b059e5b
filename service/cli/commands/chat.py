"""`grpo chat MODEL`: talk to a model in the terminal; with a text it answers that one and ends.

What the model says is shown as it comes. Ctrl-C stops an answer, at the prompt it ends the talk.
"""

from __future__ import annotations

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
from service.cli.terminal.output import JsonFlag, plain, print_json, stderr

CHAT = "/v1/chat/completions"


def chat(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Base, fine-tuned or checkpoint model.")],
    text: Annotated[str | None, typer.Argument(help="What to say; without it you are asked.")] = None,
    system: Annotated[str | None, typer.Option(help="A system prompt.")] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.", min=0, max=2)] = 1.0,
    max_tokens: Annotated[int | None, typer.Option(help="Of an answer.", min=1)] = None,
    seed: Annotated[int | None, typer.Option(help="Equal seeds, equal answers.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Talk to a model. A model's first answer waits until a worker has loaded it."""
    settings = {"model": model, "temperature": temperature, "max_tokens": max_tokens, "seed": seed}
    talk: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    with client_of(context) as client:
        if as_json:
            asked = {"role": "user", "content": text if text is not None else sys.stdin.read()}
            print_json(client.post(CHAT, {**settings, "messages": [*talk, asked]}))
            return
        for said in [text] if text is not None else _lines():
            talk.append({"role": "user", "content": said})
            try:
                answer = _answer(client, {**settings, "messages": talk})
            except KeyboardInterrupt:
                stderr.print("\n(stopped)")
                talk.pop()
            else:
                talk.append({"role": "assistant", "content": answer})


def _lines() -> Iterator[str]:
    """What the user types, until Ctrl-C, Ctrl-D or the input's end."""
    try:
        while said := typer.prompt(">", prompt_suffix=" ", default="", show_default=False):
            yield said
    except typer.Abort:
        stderr.print()


def _answer(client: Client, body: dict[str, Any]) -> str:
    """Shows the answer as it grows, and answers all of it. Raises CommandError."""
    whole = ""
    try:
        with client.streaming(CHAT, headers={}, body={**body, "stream": True}) as response:
            for chunk in documents(response.iter_bytes()):
                if error := chunk.get("error"):
                    raise CommandError(error["message"], code=error["code"])
                piece = chunk["choices"][0]["delta"].get("content") or ""
                sys.stdout.write(plain(piece))
                sys.stdout.flush()
                whole += piece
    except (httpx.TransportError, json.JSONDecodeError) as error:
        raise CommandError("the answer was cut off", code="unreachable") from error
    sys.stdout.write("\n")
    return whole
