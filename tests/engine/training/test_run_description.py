"""The description of a run: versions of what computes it."""

from importlib.metadata import PackageNotFoundError, version

import pytest

from grpo_engine.training import run_description


def test_an_engine_that_runs_from_its_sources_says_that_it_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def found(name: str) -> str:
        if name == "grpo-service":
            raise PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(run_description, "version", found)
    versions = run_description.library_versions()
    assert versions["grpo-service"] == "not installed"
    assert versions["torch"] == version("torch")
