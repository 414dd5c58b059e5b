"""Installing what a bare machine lacks: wheels of missing packages only, and nothing that torch brings."""

import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

from bench.packages import describe_project, install, requirements, version_in


def wheel(folder: Path, name: str) -> None:
    """A wheel of one empty module."""
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)


def test_only_packages_that_the_interpreter_lacks_are_installed(tmp_path: Path) -> None:
    wheels, folder = tmp_path / "wheels", tmp_path / "site"
    wheels.mkdir()
    for name in ("pydantic", "module_of_this_test"):
        wheel(wheels, name)
    assert install(wheels, folder) == ["module_of_this_test"]
    assert not (folder / "pydantic.py").exists()
    code = "import module_of_this_test"
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(folder)}, check=True)


def test_torch_and_what_depends_on_it_are_not_among_the_requirements() -> None:
    names = requirements().keys()
    assert {"pydantic", "google-re2", "tokenizers", "pytest"} <= names
    assert not names & {"torch", "transformers", "peft", "grpo-service"}


def test_the_version_of_a_package_is_that_of_the_named_interpreter() -> None:
    assert version_in(sys.executable, "pytest") is not None
    assert version_in(sys.executable, "package-that-does-not-exist") is None


def test_the_project_itself_is_found_where_only_its_sources_are(tmp_path: Path) -> None:
    describe_project(tmp_path)
    code = "from importlib.metadata import version; print(version('grpo-service'))"
    command = [sys.executable, "-S", "-c", code]  # without site-packages, where it is installed
    done = subprocess.run(
        command, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == version("grpo-service"), done.stderr
