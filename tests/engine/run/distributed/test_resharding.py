"""Adam's moments keep every bit while the number of ranks changes; each rank's file holds its share only."""

import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.engine.ranks import started_ranks
from tests.engine.run.distributed.resharding import expected_moments
from tests.engine.run.distributed.runs import moments_of

WORLDS = (1, 4, 2, 3, 1)


@pytest.mark.slow
def test_moments_pass_through_any_numbers_of_ranks_with_every_bit(tmp_path: Path) -> None:
    source, expected = tmp_path / "none", expected_moments()
    for number, world in enumerate(WORLDS):
        target = tmp_path / f"{number}-of-{world}"
        command = [sys.executable, "-m", "tests.engine.run.distributed.resharding", source, target]
        with started_ranks([command] * world, [tmp_path] * world) as ranks:
            assert ranks.wait() == [0] * world, (tmp_path / "rank-0.log").read_text()
        found = moments_of(target)
        assert found.keys() == expected.keys()
        assert all(found[name].equal(expected[name]) for name in expected)
        source = target


@pytest.mark.slow
def test_a_rank_writes_no_more_than_its_share(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.engine.run.distributed.resharding", tmp_path / "none", tmp_path]
    with started_ranks([command] * 4, [tmp_path] * 4) as ranks:
        assert ranks.wait() == [0] * 4, (tmp_path / "rank-0.log").read_text()
    shards = [load_file(path) for path in sorted((tmp_path / "optimizer").iterdir())]
    rows = [
        [len(shard.get("exp_avg_sq/e", ())) for shard in shards],
        [len(s.get("exp_avg/b", ())) for s in shards],
    ]
    assert rows == [[2, 2, 2, 2], [1, 1, 0, 0]]
    assert [any(name.startswith("step/") for name in shard) for shard in shards] == [
        True,
        False,
        False,
        False,
    ]
