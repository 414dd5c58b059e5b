"""Jobs on a Ray cluster of several hosts end as they would on one machine, whatever is killed."""

import os
import signal
from collections.abc import Callable

import pytest

from service.platform.db import Database
from service.settings import Settings
from tests.conftest import needs_root
from tests.support.ray_hosts.cluster import program_of
from tests.support.servers import wait_until
from tests.worker.cluster.conftest import Cluster
from tests.worker.jobs import cancel, read_job
from tests.worker.outcomes import messages

pytestmark = needs_root
Submit = Callable[..., str]
WaitFor = Callable[..., None]
Check = Callable[[str], bool]
SLOW = {"step_seconds": 0.5}
BLOCKED = {"hang_at": 7}
"""As in a collective with a rank that does not answer."""
FOUR_ON_TWO = {"required_gpus": 4, "resources": {"gpus": 4, "hosts": 2}}
several_hosts = pytest.mark.several_hosts


@pytest.mark.slow
def test_four_ranks_on_two_hosts_train_one_job(
    cluster: Cluster, settings: Settings, submit: Submit, wait_for: WaitFor, has_ended_well: Check
) -> None:
    job_id = submit({"*": SLOW}, **FOUR_ON_TWO)
    cluster.start_worker(settings)
    wait_for(job_id, 120, step=2)
    assert [len(cluster.engine_pids(node)) for node in cluster.nodes] == [0, 2, 2]
    wait_for(job_id, 60, state="succeeded", attempt=1)
    assert has_ended_well(job_id)
    wait_until(lambda: not cluster.engine_pids(), 120, "no engine is left")
    (log,) = settings.home.glob("worker-*.log")
    assert [line for line in log.read_text().splitlines() if not line.startswith("{")] == []


@several_hosts
@pytest.mark.parametrize("lost", ["rank", "raylet", "worker", "link"])
def test_a_job_survives_the_loss_of(
    lost: str,
    cluster: Cluster,
    settings: Settings,
    submit: Submit,
    wait_for: WaitFor,
    database: Database,
    has_ended_well: Check,
) -> None:
    job_id = submit({"1": BLOCKED}, **FOUR_ON_TWO)
    worker = cluster.start_worker(settings)
    wait_for(job_id, 120, checkpoint_step=5)
    node = cluster.nodes[2]
    before = set(cluster.engine_pids())
    match lost:
        case "rank":
            os.kill(cluster.engine_pids(node)[0], signal.SIGKILL)
        case "raylet":
            node.kill_raylet()
        case "worker":
            worker.kill()
        case "link":
            node.host.link_down()
    wait_until(lambda: not before & set(cluster.engine_pids()), 120, "all ranks have ended")
    if lost == "link":
        # otherwise it may end after the repair, because the head has removed it
        wait_until(lambda: "raylet" not in map(program_of, node.host.pids()), 120, "its Ray node has ended")
    cluster.repair()
    if lost == "worker":
        cluster.start_worker(settings)
    wait_for(job_id, 120, state="succeeded")
    # one more if it was claimed before the loss of a host was known
    assert read_job(database, job_id).attempt in (2, 3), messages(database, job_id)
    assert has_ended_well(job_id)


@several_hosts
def test_a_job_waits_for_its_gpus_says_so_and_can_be_cancelled(
    cluster: Cluster, settings: Settings, submit: Submit, wait_for: WaitFor, database: Database
) -> None:
    running = submit({"*": {"step_seconds": 20}}, required_gpus=2, resources={"gpus": 2})
    cluster.start_worker(settings)
    wait_until(lambda: bool(cluster.engine_pids()), 120, "it runs")
    # another worker of the same cluster, which does not know what the first one has given out
    other = settings.model_copy(update={"home": settings.home.with_name("other"), "pool": "other"})
    other.home.mkdir()
    waiting = submit(required_gpus=4, resources={"gpus": 4}, pool="other")
    cluster.start_worker(other)
    wait_for(waiting, 60, phase="waiting for 2 of 4 GPUs")
    for job_id in (waiting, running):
        cancel(database, job_id)
        wait_for(job_id, 60, state="cancelled", attempt=1)


@several_hosts
def test_a_job_continues_with_fewer_gpus_after_a_host_is_lost_for_good(
    cluster: Cluster,
    settings: Settings,
    submit: Submit,
    wait_for: WaitFor,
    database: Database,
    has_ended_well: Check,
) -> None:
    job_id = submit({"1": BLOCKED}, required_gpus=2, resources={"gpus": 4, "hosts": 2, "min_gpus": 2})
    cluster.start_worker(settings)
    wait_for(job_id, 120, checkpoint_step=5)
    cluster.nodes[2].kill()
    wait_for(job_id, 300, state="succeeded")
    assert "The attempt has 2 of the job's 4 GPUs." in messages(database, job_id)
    assert has_ended_well(job_id)


@several_hosts
def test_a_job_whose_hosts_are_lost_returns_to_the_queue_even_if_enough_gpus_are_left(
    cluster: Cluster,
    settings: Settings,
    submit: Submit,
    wait_for: WaitFor,
    database: Database,
    has_ended_well: Check,
) -> None:
    job_id = submit({"1": BLOCKED}, required_gpus=2, resources={"gpus": 2, "hosts": 2})
    cluster.start_worker(settings)
    wait_for(job_id, 120, checkpoint_step=5)
    cluster.nodes[2].kill()
    reason = "The attempt needs 2 host(s) with 1 GPU(s) each, but the cluster has only 1 left."
    wait_until(lambda: reason in messages(database, job_id), 180, "it returns to the queue")
    cluster.repair()
    wait_for(job_id, 120, state="succeeded")
    assert has_ended_well(job_id)
