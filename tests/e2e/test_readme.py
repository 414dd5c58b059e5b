"""The shell blocks of the README and the guides install, first job and exports run in a clean home.

One service, started by the README's block, serves all pages; the install guide starts it the same way.
"""

import os
import re
import shlex
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.service.cli.commands.hub import hub
from tests.service.embedded import run_shell
from tests.support.forking import client as forking
from tests.support.servers import wait_until

ROOT = Path(__file__).parents[2]
TOKEN = "hf_of_this_test"
NOT_RUN = {"make setup": "it downloads packages; the tests run in its environment"}
"""Lines of the pages that are not run, and why."""


def shell_blocks(page: str) -> list[str]:
    """The page's shell blocks without the lines of `NOT_RUN`."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    return [
        "".join(line for line in block.splitlines(True) if line.strip() not in NOT_RUN) for block in blocks
    ]


TWO_COMMANDS, START, QUICK_START = shell_blocks("README.md")
(FIRST_START,) = shell_blocks("docs/start/install.md")
(FIRST_JOB,) = shell_blocks("docs/start/first-job.md")
(EXPORTS,) = shell_blocks("docs/read-a-run/exports.md")


def words(block: str) -> list[list[str]]:
    return [shlex.split(line, comments=True) for line in block.splitlines()]


@dataclass
class Checkout:
    """A folder with the files that the pages name, and a service on its own port."""

    folder: Path
    environment: dict[str, str]
    port: int

    def here(self, block: str) -> str:
        return block.replace("grpo up", f"grpo up --port {self.port}").replace("8000", str(self.port))

    def run(self, block: str, **more: str) -> str:
        """Run a block. Returns its output."""
        return run_shell(self.here(block), self.folder, self.environment | more)

    def start(self) -> subprocess.Popen[bytes]:
        """A shell that has run the README's start command; it stops the service when its input ends."""
        script = self.here(START) + "touch ready\nread -r _ || true\nkill $!\nwait\n"
        with (self.folder / "up.log").open("wb") as log:
            return subprocess.Popen(
                ["bash", "-uc", script],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
            )


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    folder, port = tmp_path_factory.mktemp("checkout"), free_port()
    for name in (".venv", "examples"):
        (folder / name).symlink_to(ROOT / name)
    path = f"{folder / '.venv' / 'bin'}:{os.environ['PATH']}"
    given = {
        "HOME": str(folder),
        "PATH": path,
        "GRPO_URL": f"http://127.0.0.1:{port}",
        "GRPO_WARM_ENGINE": "0",
        "GRPO_ENGINE_PYTHON": str(forking.engine_python()),
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GRPO_")}
    made = Checkout(folder, kept | given, port)
    shell = made.start()
    try:
        wait_until(
            lambda: (folder / "ready").exists() or shell.poll() is not None, 120, "the service is ready"
        )
        assert shell.poll() is None, (folder / "up.log").read_text()
        yield made
    finally:
        shell.communicate(timeout=60)


@pytest.fixture(scope="module")
def quick_start(checkout: Checkout) -> str:
    """The id of the README's job."""
    return checkout.run(QUICK_START + "echo $JOB\n").split()[-1]


@pytest.fixture(scope="module")
def first_job(checkout: Checkout) -> str:
    """Output of the first-job guide's commands, and the job's id."""
    return checkout.run(FIRST_JOB + "echo $JOB\n")


def test_the_pages_start_alike() -> None:
    assert words(TWO_COMMANDS) == [["make", "demo"], ["make", "test"]]
    assert words(FIRST_START) == words(START)


@pytest.mark.slow
def test_the_quick_start_ends_with_an_adapter(checkout: Checkout, quick_start: str) -> None:
    assert quick_start.startswith("ftjob-")
    with tarfile.open(checkout.folder / "adapter.tar.gz") as archive:
        assert {"adapter_config.json", "adapter_model.safetensors"} <= set(archive.getnames())


@pytest.mark.slow
def test_the_first_job_ends_as_the_guide_describes(checkout: Checkout, first_job: str) -> None:
    assert "succeeded" in first_job
    assert "the model cannot do this task yet" in " ".join(first_job.split())
    adapter = checkout.folder / first_job.split()[-1]
    assert (adapter / "adapter_config.json").exists()
    assert "vllm serve" in (adapter / "README.md").read_text()


@pytest.mark.slow
def test_the_export_commands_work_as_described(checkout: Checkout, quick_start: str, first_job: str) -> None:
    block = EXPORTS.replace("JOB", first_job.split()[-1]).replace("OTHER", quick_start)
    with hub(TOKEN) as here:
        more = {"HF_ENDPOINT": here.url, "HF_HUB_DISABLE_XET": "1"}
        output = checkout.run(block.replace("HF_TOKEN=…", f"HF_TOKEN={TOKEN}"), **more)
    assert list((checkout.folder / "model").glob("*.safetensors"))
    assert "ftjob-" in output.replace(first_job.split()[-1], "").replace(quick_start, "")  # the run again
    assert {"adapter_model.safetensors", "README.md"} <= here.files.keys()
