"""The description of a run: versions of what computes it."""

from importlib.metadata import version

from grpo_engine.training.run_description import library_versions, package_version


def test_an_engine_that_runs_from_its_sources_says_that_it_is_not_installed() -> None:
    assert package_version("grpo-service-from-its-sources") == "not installed"
    assert library_versions()["torch"] == version("torch")
