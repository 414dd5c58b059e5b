"""The reference pages list every setting with its default and every error code."""

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_engine.chat.protocol import INVALID
from grpo_engine.config.runtime import Runtime
from grpo_engine.contract import errors as engine_errors
from service.cli.terminal.errors import PAGE, place_of
from service.platform import errors
from service.serving.answer import GONE
from service.settings import Settings, unknown_variables

ROOT = Path(__file__).parents[2]
CONFIGURATION = (ROOT / "docs" / "reference" / "configuration.md").read_text()
ERRORS = (ROOT / "docs" / "reference" / "errors.md").read_text().split("## Failed jobs")[0]
WHERE = [
    "service",
    "worker/serving",
    "grpo_engine/chat",
    "grpo_engine/serve",
]
ELSEWHERE = {"cli", "doctor"}
RAISES = {"_refused", "Refused", "SuiteError"}
NO_ANSWERS = {"poisoned", "unsafe_graders"}
"""Codes of a job's failure and of a job's warning."""


def rows() -> dict[str, str]:
    """Variable, or key of the runtime → its default on the page."""
    found = {}
    for names, defaults in re.findall(r"^\| (`.*?) \| (.*?) \|", CONFIGURATION, re.M):
        keys = re.findall(r"`([\w]+)`", names)
        values = defaults.split(", ") if len(keys) > 1 else [defaults]
        found.update(zip(keys, values, strict=True))
    return found


@pytest.fixture
def defaults(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    for name in [name for name in os.environ if name.startswith("GRPO_")]:
        monkeypatch.delenv(name)
    settings = {f"GRPO_{name.upper()}": value for name, value in Settings()}
    return settings | dict(Runtime())


def test_the_page_names_every_setting_and_nothing_else(defaults: dict[str, object]) -> None:
    assert rows().keys() == defaults.keys()


def test_no_variable_on_the_page_is_unknown_to_the_doctor() -> None:
    assert unknown_variables(re.findall(r"GRPO_[A-Z_]+\b", CONFIGURATION)) == []


def test_a_default_on_the_page_is_the_one_in_the_code(defaults: dict[str, object]) -> None:
    shown = {name: text.strip("`") for name, text in rows().items()}
    numbers = {name: float(text) for name, text in shown.items() if re.fullmatch(r"[\d.]+", text)}
    assert len(numbers) > 20
    assert numbers == {name: defaults[name] for name in numbers}
    empty = {name for name, text in shown.items() if text.startswith("none")}
    assert not any(defaults[name] for name in empty)
    assert {shown[name] for name in ("GRPO_MODE", "GRPO_POOL", "sharding")} == {
        str(defaults[name]) for name in ("GRPO_MODE", "GRPO_POOL", "sharding")
    }


def codes_of(tree: ast.AST) -> Iterator[str]:
    """Literal codes of the errors and refusals that this module creates."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            given = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
            if isinstance(node.func, ast.Name) and node.func.id in RAISES:
                given += node.args
            for value in given:
                if isinstance(value, ast.Constant) and re.fullmatch(r"[a-z]+(_[a-z0-9]+)+", str(value.value)):
                    yield value.value


def test_every_error_code_of_a_response_is_on_the_page() -> None:
    files = [
        file for place in WHERE for file in [ROOT / place, *(ROOT / place).rglob("*.py")] if file.is_file()
    ]
    answered = {
        code
        for file in files
        if not ELSEWHERE.intersection(file.parts)
        for code in codes_of(ast.parse(file.read_text()))
    }
    classes = {made.code for made in vars(errors).values() if hasattr(made, "code")}
    assert len(answered) > 60
    assert (answered - NO_ANSWERS) | classes | GONE | INVALID <= set(re.findall(r"`(\w+)`", ERRORS))


def test_every_code_of_the_page_has_its_own_anchor() -> None:
    page = (ROOT / PAGE).read_text()
    given = re.findall(r'<a id="([^"]+)"></a>`(\w+)`', page)
    places = [place for place, _ in given]
    assert sorted(places) == sorted(set(places))
    assert {place.removeprefix("failed-") for place, code in given} == {code for _, code in given}
    responses, failures = page.split("## Failed jobs")
    listed = re.findall(r"^\| [\d, ]+ \| (.*?) \|", responses, re.M)
    listed += re.findall(r"^\| (<a id=.*?) \|", responses, re.M)
    codes = {code for row in listed for code in re.findall(r"`(\w+)`", row)}
    assert len(codes) > 100
    assert codes <= set(places)
    failed = {
        code for row in re.findall(r"^\| (<a.*?) \|", failures, re.M) for code in re.findall(r"`(\w+)`", row)
    }
    assert {f"failed-{code}" for code in failed | {"not_mergeable"}} <= set(places)


def test_every_error_code_of_the_command_and_of_failed_jobs_leads_to_an_anchor() -> None:
    page = (ROOT / PAGE).read_text()
    tree = [ast.parse(file.read_text()) for file in (ROOT / "service" / "cli").rglob("*.py")]
    codes = {
        keyword.value.value
        for module in tree
        for node in ast.walk(module)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "code" and isinstance(keyword.value, ast.Constant)
    }
    assert len(codes) > 15
    assert {code for code in codes if f'<a id="{code}">' not in page} == set()
    failures = {
        made.code for made in vars(engine_errors).values() if isinstance(getattr(made, "code", None), str)
    }
    assert {code for code in failures if f'<a id="failed-{code}">' not in page} == set()
    assert place_of("no_signal", is_failure=True) == f"{PAGE}#failed-no_signal"


def test_every_error_code_on_the_page_exists_in_the_code() -> None:
    source = "\n".join(
        file.read_text()
        for folder in ("service", "worker", "grpo_engine")
        for file in (ROOT / folder).rglob("*.py")
    )
    codes = {
        code
        for row in re.findall(r"^\| [\d, ]+ \| (.*?) \|", ERRORS, re.M)
        for code in re.findall(r"`(\w+)`", row)
    }
    computed = {"invalid_training_file", "invalid_validation_file"}
    assert len(codes) > 80
    assert {code for code in codes - computed if f'"{code}"' not in source} == set()
