"""`grpo probe`: a failed one names the command that prints its log."""

import re
from pathlib import Path

from tests.service.embedded import Up, write_rows


def test_a_failed_probe_leads_to_its_log(up: Up, job_file: Path) -> None:
    write_rows(job_file.with_name("rows.jsonl"), faults={"fail_at": 2, "prints": "what it was\n"})
    ended = up.grpo("probe", job_file)
    (command,) = re.findall(r"`grpo (logs ftprobe-\w+)`", ended.stderr)
    assert ended.returncode == 1
    assert "the loss is NaN" in ended.stderr
    assert up.grpo(*command.split()).stdout.splitlines() == ["fake engine starts", "what it was"]
