"""Write `images/job-light.png` and `images/job-dark.png`: the dashboard's page of a running job.

    python -m docs.make_screenshots

Runs the demo's two jobs with a small random model under `grpo up` in a temporary home, and opens the second
in Chromium while it trains.
"""

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Literal

from playwright.sync_api import Page, ViewportSize, sync_playwright

from examples.demo import JOB_FILES, Task, embedded, run_job
from examples.tiny_model import make_model
from service.cli.commands.jobs import read_job, with_uploads
from service.cli.http.client import JOBS, Client

IMAGES = Path(__file__).parent / "images"
SEED = 1
STEPS = 45
"""Steps (of 120) that the job has done in the picture."""
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
WINDOW = ViewportSize(width=1280, height=800)
CHARTS_DRAWN = "() => document.querySelectorAll('.js-plotly-plot .main-svg').length >= 4"


def running_job(client: Client, task: Task) -> str:
    """Id of a GRPO job that has trained `STEPS` steps and is still running."""
    keep_distinct_rows(task.folder / "arithmetic.jsonl")
    model = run_job(client, task, "supervised.json", "tiny")["fine_tuned_model"]
    body = read_job(JOB_FILES / "arithmetic_grpo.json") | {"model": model, "seed": task.seed}
    body |= {name: Path(value).name for name, value in body.items() if name.endswith("_file")}
    job = client.create(JOBS, with_uploads(client, body, task.folder))
    while client.get(f"{JOBS}/{job['id']}")["progress"]["step"] < STEPS:
        time.sleep(1)
    return str(job["id"])


def keep_distinct_rows(path: Path) -> None:
    """The demo repeats its rows, which would show a warning on the page."""
    path.write_text("".join(dict.fromkeys(path.read_text().splitlines(keepends=True))))


def take(page: Page, url: str, job_id: str) -> None:
    """Both pictures of the job's page."""
    page.goto(f"{url}/#/jobs/{job_id}")
    page.wait_for_function(CHARTS_DRAWN)
    IMAGES.mkdir(exist_ok=True)
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        page.wait_for_timeout(1000)  # the charts are redrawn in the other colours
        page.screenshot(path=IMAGES / f"job-{scheme}.png")


def main() -> int:
    program = shutil.which("chromium-headless-shell")
    if program is None:
        print("Chromium is missing: run make system", file=sys.stderr)
        return 1
    # As root Chromium runs only without its own sandbox; a container's /dev/shm is too small for it.
    flags = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with tempfile.TemporaryDirectory(prefix="grpo-pictures-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        make_model(home / "models" / "tiny", seed=SEED)
        task = Task.make(home / "rows", SEED)
        with embedded(home) as client, sync_playwright() as playwright:
            job_id = running_job(client, task)
            browser = playwright.chromium.launch(executable_path=program, args=flags)
            page = browser.new_page(viewport=WINDOW, reduced_motion="reduce")
            key = (home / "api_key").read_text().strip()
            page.add_init_script(f"localStorage.setItem('grpo.key', '{key}')")
            take(page, client.url, job_id)
            browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
