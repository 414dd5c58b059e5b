"""Installs into a folder the packages of service and engine that an interpreter lacks; replaces none.

    python3 -m bench.packages --to FOLDER [--wheels WHEELS]    for this interpreter, with PYTHONPATH=FOLDER
    python3 -m bench.packages --download WHEELS --python-version 3.12

It is for hosts on which torch and transformers are already installed, such as GPU machines without a
package index or a compiler.
Boundary: uses only the standard library, because nothing else is installed yet.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
GIVEN = {"torch", "transformers", "grpo-service"}
ON_TORCH = ("accelerate", "bitsandbytes", "peft", "psutil")
"""Packages to install without their dependencies, because torch would be among them."""
RIVAL = ("trl", "datasets", "dill", "multiprocess")
"""TRL, which is measured too, and what it needs beyond the packages that machines with torch have."""
PLATFORMS = [f"manylinux_2_{number}_x86_64" for number in (28, 27, 26, 24, 17)] + ["manylinux2014_x86_64"]


def requirements() -> dict[str, str]:
    """Name → requirement of service, engine and tests, except packages that the host provides or that
    depend on torch."""
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    extras = project["optional-dependencies"]
    listed = [*project["dependencies"], *extras["service"], *extras["engine"], *extras["tests"]]
    named = {re.split(r"[^A-Za-z0-9._-]", each)[0]: each for each in listed}
    return {name: each for name, each in named.items() if name not in GIVEN and name not in ON_TORCH}


def required(extra: str, name: str = "") -> str:
    """An extra's requirement of a package, by default the one after which it is named: vllm==0.32.0."""
    listed = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"][extra]
    return str(next(each for each in listed if each.startswith(name or extra)))


def download(wheels: Path, python_version: str | None) -> None:
    """Download the requirements and their dependencies; `python_version` None: for this interpreter."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "--dest", str(wheels)]
    if python_version is not None:
        platforms = [f"--platform={each}" for each in PLATFORMS]
        pip += ["--implementation=cp", f"--python-version={python_version}", *platforms]
    subprocess.run([*pip, *requirements().values()], check=True)
    rival = [required("dev", RIVAL[0]), *RIVAL[1:]]
    subprocess.run([*pip, "--no-deps", *ON_TORCH, *rival], check=True)


def install(wheels: Path, folder: Path) -> list[str]:
    """Install the wheels of packages that this interpreter lacks; returns their names."""
    lacking = {each.name.partition("-")[0]: each for each in sorted(wheels.glob("*.whl"))}
    lacking = {name: wheel for name, wheel in lacking.items() if not _is_installed(name)}
    if lacking:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--upgrade"]
        subprocess.run([*pip, "--target", str(folder), *map(str, lacking.values())], check=True)
    return list(lacking)


def describe_project(folder: Path) -> None:
    """Register the project as an installed package in `folder`, although it runs from its sources, so that
    the service can find its own version."""
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    name, number = project["name"].replace("-", "_"), project["version"]
    described = folder / f"{name}-{number}.dist-info" / "METADATA"
    described.parent.mkdir(parents=True, exist_ok=True)
    described.write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {number}\n")


def _is_installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def has_modules(python: str, *modules: str) -> bool:
    """Whether that interpreter can find the modules; they are not imported."""
    code = "import sys; from importlib.util import find_spec; sys.exit(not all(map(find_spec, sys.argv[1:])))"
    return subprocess.run([python, "-c", code, *modules], check=False).returncode == 0


def version_in(python: str, package: str) -> str | None:
    """Version of a package that is installed for that interpreter."""
    code = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
    ended = subprocess.run([python, "-c", code, package], check=False, capture_output=True, text=True)
    return ended.stdout.strip() or None


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.packages", description=__doc__.splitlines()[0])
    parser.add_argument("--to", type=Path, help="folder that gets what this interpreter lacks")
    parser.add_argument("--wheels", type=Path, help="folder of wheels; default: the package index")
    parser.add_argument("--download", type=Path, metavar="WHEELS", help="download wheels, install nothing")
    parser.add_argument("--python-version", help="version of the interpreter that will install them")
    options = parser.parse_args()
    if options.download is not None:
        download(options.download, options.python_version)
        return
    with tempfile.TemporaryDirectory() as folder:
        wheels = options.wheels
        if wheels is None or not any(wheels.glob("*.whl")):
            wheels = Path(folder)
            download(wheels, None)
        describe_project(options.to)
        print(f"installed into {options.to}: {', '.join(install(wheels, options.to)) or 'nothing'}")


if __name__ == "__main__":
    main()
