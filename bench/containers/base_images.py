"""Provides the base images of Dockerfiles and compose file: pulls them, or makes them from Debian's packages.

An image that is made here has the official one's name, user, folders and entrypoint, but Debian's version of
the software.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from bench.containers.engine import debian_mirror, run

ROOT = Path(__file__).parents[2]
STAND_INS = Path(__file__).parent / "stand_ins"
DEBIAN = "debian:bookworm-slim"
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")


def provide_base_images(folder: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """Pull or make each image; yields a line about each."""
    for image in sorted(base_images()):
        if _succeeds(environment, "docker", "image", "inspect", image):
            yield f"{image}: present"
        elif _succeeds(environment, "docker", "pull", "--quiet", image):
            yield f"{image}: pulled"
        else:
            _make(image, folder, environment)
            yield f"{image}: made from Debian's packages, because no registry provides it"


def base_images() -> set[str]:
    """Images that the project uses and does not build."""
    services = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]
    used = {service["image"] for service in services.values() if not service["image"].startswith("grpo-")}
    for path in (ROOT / "docker").glob("*.Dockerfile"):
        used |= set(re.findall(r"^FROM (\S+:\S+)", path.read_text(), re.MULTILINE))
    return used


def _make(image: str, folder: Path, environment: Mapping[str, str]) -> None:
    if not _succeeds(environment, "docker", "image", "inspect", DEBIAN):
        _make_debian(folder / "debian", environment)
    context = folder / "context"
    if not context.exists():
        shutil.copytree(STAND_INS, context)
        shutil.copy(AUTHORITIES, context)
        _copy_pip_settings(context)
    file = context / f"{image.split(':')[0]}.Dockerfile"
    run(environment, "docker", "build", "--quiet", "--tag", image, "--file", file, context)


def _make_debian(root: Path, environment: Mapping[str, str]) -> None:
    """Make a root file system of Debian 12, from apt's mirror on this machine and with apt's options."""
    shutil.rmtree(root, ignore_errors=True)
    program = shutil.which("debootstrap", path=environment["PATH"]) or "debootstrap"
    with (root.parent / "debootstrap.log").open("wb") as log:
        command = ["sh", program, "--variant=minbase", "bookworm", str(root), debian_mirror()]
        subprocess.run(command, env=environment, stdout=log, stderr=log, check=True)
    shutil.copytree("/etc/apt/apt.conf.d", root / "etc/apt/apt.conf.d", dirs_exist_ok=True)
    for archive in (root / "var/cache/apt/archives").glob("*.deb"):
        archive.unlink()
    with subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE) as packed:
        command = ["docker", "import", "-", DEBIAN]
        subprocess.run(command, env=environment, stdin=packed.stdout, check=True, capture_output=True)
    shutil.rmtree(root)


def _copy_pip_settings(context: Path) -> None:
    """Copy pip's settings of this machine: the index and folders of wheels, such as CPU builds of torch."""
    found = run(os.environ, sys.executable, "-m", "pip", "config", "list")
    settings = dict(re.findall(r"\.(index-url|find-links)='(.*)'", found))
    wheels = context / "wheels"
    wheels.mkdir()
    for folder in settings.get("find-links", "").split():
        if Path(folder).is_dir():
            shutil.copytree(folder, wheels, dirs_exist_ok=True)
    index = f"index-url = {settings['index-url']}\n" if "index-url" in settings else ""
    (context / "pip.conf").write_text(f"[global]\nfind-links = /opt/wheels\n{index}")


def _succeeds(environment: Mapping[str, str], *command: str) -> bool:
    return subprocess.run(command, env=environment, capture_output=True).returncode == 0
