"""The memory of the machine or of its container."""

import os
from pathlib import Path

import pytest

from grpo_engine.process import host_memory


@pytest.mark.parametrize(
    ("limit", "is_less"), [("1073741824\n", True), ("max\n", False), (f"{2**63}\n", False)]
)
def test_the_container_s_limit_counts_if_it_is_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, is_less: bool
) -> None:
    (tmp_path / "memory.max").write_text(limit)
    monkeypatch.setattr(host_memory, "LIMITS", (tmp_path / "absent", tmp_path / "memory.max"))
    machine_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert host_memory.usable_bytes() == (2**30 if is_less else machine_bytes)
