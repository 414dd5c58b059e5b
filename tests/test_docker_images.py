"""Checks of the Dockerfiles that need no container engine. `make containers` builds them."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCKERFILES = [ROOT / "docker" / "api.Dockerfile", ROOT / "docker" / "worker.Dockerfile"]
# no VOLUME: each container would leave an unnamed volume behind
INSTRUCTIONS = {"FROM", "ARG", "RUN", "COPY", "ENV", "WORKDIR", "USER", "EXPOSE", "CMD", "STOPSIGNAL"}


def instructions(path: Path) -> list[tuple[str, str]]:
    """(instruction, arguments) without comments; continued lines are joined."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    parts = (line.split(maxsplit=1) for line in joined.splitlines() if line.strip())
    return [(name, rest) for name, rest in parts]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_an_image_ends_as_an_unprivileged_user(path: Path) -> None:
    last_stage = instructions(path)
    users = [rest for name, rest in last_stage if name == "USER"]
    assert users == ["10001:10001"]
    after = [name for name, _ in last_stage[[name for name, _ in last_stage].index("USER") + 1 :]]
    assert "RUN" not in after


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_an_image_has_known_instructions_and_pinned_parents(path: Path) -> None:
    found = instructions(path)
    assert {name for name, _ in found} <= INSTRUCTIONS
    parents = [rest.split(" AS ")[0] for name, rest in found if name == "FROM"]
    assert parents == ["python:3.11.14-slim-bookworm", "dependencies", "python:3.11.14-slim-bookworm"]
    # a registry would have to deliver the syntax before anything is built
    assert "syntax=" not in path.read_text()
    for name, rest in found:
        if name == "COPY" and not rest.startswith("--from"):
            assert all((ROOT / source).exists() for source in rest.split()[:-1])


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_a_changed_source_line_installs_no_dependency_again(path: Path) -> None:
    stages: list[list[tuple[str, str]]] = []
    for name, rest in instructions(path):
        stages.extend([[]] if name == "FROM" else [])
        stages[-1].append((name, rest))
    dependencies, sources, final = stages
    assert [rest for name, rest in dependencies if name == "COPY"] == ["pyproject.toml ./"]
    assert "pip install --editable" in dependencies[-1][1]
    assert not any("--editable" in rest for _, rest in sources)
    assert sources[-1] == ("RUN", "chmod -R a+rX /src")
    copied = [rest for name, rest in final if name == "COPY"]
    assert copied == ["--from=dependencies /opt/venv /opt/venv", "--from=sources /src /src"]


def test_the_worker_image_fails_without_its_compiled_operations() -> None:
    found = instructions(DOCKERFILES[1])
    (place,) = [number for number, (_, rest) in enumerate(found) if "build_ext" in rest]
    # before all other sources, whose changes then compile nothing
    assert found[place - 1] == ("COPY", "grpo_engine/models/fast/native grpo_engine/models/fast/native")
    compiled = found[place][1]
    assert compiled.endswith("&& ls grpo_engine/models/fast/native/_compiled*.so")


def test_the_build_context_holds_only_what_the_images_copy() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert lines[0] == "*"
    allowed = {line[1:] for line in lines if line.startswith("!")}
    copied = [rest.split()[0] for path in DOCKERFILES for name, rest in instructions(path) if name == "COPY"]
    assert allowed == {source.split("/")[0] for source in copied if not source.startswith("--from")}


def test_the_api_image_installs_no_torch() -> None:
    assert "torch" not in re.sub(r"(?m)^#.*$", "", DOCKERFILES[0].read_text())
