"""Adam's moments keep every bit while the number of ranks changes; each rank's file holds its share only."""

from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.engine.ranks import started_ranks
from tests.engine.run.distributed.resharding import WORLDS, expected_moments
from tests.engine.run.distributed.runs import moments_of
from tests.support.forking.client import engine_python

NUM_RANKS = max(WORLDS)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What each number of ranks wrote, by its place in `WORLDS`."""
    folder = tmp_path_factory.mktemp("resharding")
    command = [engine_python(), "-m", "tests.engine.run.distributed.resharding", folder]
    with started_ranks([command] * NUM_RANKS, [folder] * NUM_RANKS) as ranks:
        assert ranks.wait() == [0] * NUM_RANKS, (folder / "rank-0.log").read_text()
    return folder


@pytest.mark.parametrize("place", range(len(WORLDS)))
def test_moments_pass_through_any_numbers_of_ranks_with_every_bit(folder: Path, place: int) -> None:
    found, expected = moments_of(folder / str(place)), expected_moments()
    assert found.keys() == expected.keys()
    assert all(found[name].equal(expected[name]) for name in expected)


def test_a_rank_writes_no_more_than_its_share(folder: Path) -> None:
    written = folder / str(WORLDS.index(NUM_RANKS)) / "optimizer"
    shards = [load_file(path) for path in sorted(written.iterdir())]
    assert [len(shard.get("exp_avg_sq/e", ())) for shard in shards] == [2, 2, 2, 2]
    assert [len(shard.get("exp_avg/b", ())) for shard in shards] == [1, 1, 0, 0]
    has_steps = [any(name.startswith("step/") for name in shard) for shard in shards]
    assert has_steps == [True, False, False, False]
