"""Completions of several turns as conversations: the model's texts, the answers, the reward of each turn."""

from collections.abc import Iterable, Iterator
from typing import Any

from service.cli.terminal.output import counted, excerpt, say, short_number

PROMPT_CHARACTERS = 240
STYLES = {"model": "bold", "reward": "green"}
"""Styles by speaker; answers have none."""

Spoken = tuple[str, str]
"""A speaker (`model`, `environment`, `tool search`) or `reward`, and the text."""


def has_turns(one: dict[str, Any]) -> bool:
    """Whether the completion called tools or acted in an environment."""
    return bool(one["episode"] or one["tool_turns"])


def print_conversations(found: Iterable[dict[str, Any]]) -> None:
    """Prints completions, as the API lists them; each group's prompt once."""
    group = None
    for one in found:
        if one["rollout_id"] != group:
            _print_prompt(one, is_first=group is None)
            group = one["rollout_id"]
        say(f"\n{_heading(one)}", "cyan")
        turns = list(_turns(one))
        width = max((len(speaker) for turn in turns for speaker, _ in turn), default=0)
        for number, turn in enumerate(turns, 1):
            _print_turn(number, turn, width)
        if _has_failed(one):
            say(f"  session failed, not scored: {one['episode']['failure']}", "red")


def _has_failed(one: dict[str, Any]) -> bool:
    """Whether its session failed: its finish reason is then `length`, although no limit ended it."""
    return bool(one["episode"] and one["episode"]["failure"])


def _print_prompt(one: dict[str, Any], *, is_first: bool) -> None:
    last = one["messages"][-1] if one["messages"] else {"role": "prompt", "content": one["prompt"]}
    space = "" if is_first else "\n"
    say(f"{space}step {one['step']} {one['split']}, row {one['row'] + 1}", "bold")
    say(f"{last['role']}: {excerpt(last['content'], PROMPT_CHARACTERS)}")


def _heading(one: dict[str, Any]) -> str:
    facts = [
        f"completion {one['index'] + 1}: reward {short_number(one['reward'])}",
        f"advantage {short_number(one['advantage'])}",
        counted(one["num_tokens"], "token"),
        "session failed" if _has_failed(one) else one["finish_reason"],
    ]
    if episode := one["episode"]:
        facts.append(f"environment {episode['environment']}, seed {episode['seed']}")
    return ", ".join(facts)


def _turns(one: dict[str, Any]) -> Iterator[list[Spoken]]:
    """What was said in each turn."""
    episode = one["episode"]
    if episode is None:
        for turn in one["tool_turns"] or [{"text": one["text"], "answers": ()}]:
            yield [("model", turn["text"]), *_tools_said(turn["answers"])]
        return
    is_rewarded = any(turn["reward"] is not None for turn in episode["turns"])
    for turn in episode["turns"]:
        reward = "none" if turn["reward"] is None else short_number(turn["reward"])
        answers = {"environment": turn["observation"]} if turn["observation"] else {}
        rewards = {"reward": reward + ", done" * turn["done"]} if is_rewarded or turn["done"] else {}
        yield [("model", turn["action"]), *_tools_said(turn["answers"]), *answers.items(), *rewards.items()]
    if episode["unanswered"]:
        yield [("model", episode["unanswered"])]


def _tools_said(answers: Iterable[dict[str, Any]]) -> Iterator[Spoken]:
    for each in answers:
        yield f"tool {each['name']}{' failed' * each['failed']}", each["text"]


def _print_turn(number: int, turn: list[Spoken], width: int) -> None:
    """One line for each speaker. Further lines of a text are indented, so they cannot look like a speaker."""
    for speaker, text in turn:
        place = number if speaker == "model" else ""
        lines = text.splitlines() or [""]
        label = f"{place:>3}  {speaker:<{width}}  "
        say(label + f"\n{' ' * len(label)}".join(lines), STYLES.get(speaker, ""))
