import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_engine.sandbox import (
    Capability,
    Limits,
    Outcome,
    PythonServer,
    SandboxUnavailable,
    launch,
    self_test,
)
from grpo_engine.sandbox.capability import _attack
from grpo_engine.sandbox.launch import Interpreter, interpreters
from grpo_engine.sandbox.process import Sandbox, _outcome
from tests.engine.sandbox.hostile_graders import ENDLESS_GRADERS, GRADERS
from tests.engine.sandbox.patience import PATIENCE
from tests.threads import at_once

COUNT = """
import os
calls = []
def grade(sample, item):
    calls.append(1)
    if item.get('file'):
        open('/tmp/left', 'w').write('here')
    return {'score': len(calls) + 10 * os.path.exists('/tmp/left'), 'feedback': str(os.getppid())}
"""


@pytest.fixture
def server() -> Iterator[PythonServer]:
    with PythonServer(COUNT) as server:
        yield server


def test_the_self_test_contains_every_attack() -> None:
    capability = self_test()
    assert capability.reason == ""
    assert capability.available
    assert set(capability.attacks) == {
        *("network", "sockets", "host_files", "writes", "devices", "root", "namespaces", "system_calls"),
        *("processes", "environment", "descriptors", "limits", "memory", "fork_bomb", "endless_loop"),
        *("output_flood", "left_behind", "host_root", "outliving", "times"),
    }
    assert all(capability.attacks.values())


def test_the_self_test_passes_with_every_interpreter() -> None:
    for interpreter in interpreters():
        assert all(_attack(interpreter).values()), interpreter


def test_without_a_sandbox_nothing_runs() -> None:
    with pytest.raises(SandboxUnavailable, match="no bwrap"):
        Capability(None, reason="no bwrap").require()


def test_a_missing_interpreter_is_reported() -> None:
    with pytest.raises(SandboxUnavailable, match="does not start"):
        Sandbox(Interpreter("/usr/bin/python0", "/usr", "0"), "", "<code>", Limits())


def test_a_sandbox_that_cannot_start_leaves_no_descriptor_open(monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter, before = self_test().require(), os.listdir("/proc/self/fd")
    monkeypatch.setattr(launch, "_MAX_USER_NAMESPACES", "/proc/sys/user/none")
    with pytest.raises(SandboxUnavailable, match="no user namespaces"):
        Sandbox(interpreter, "", "<code>", Limits())
    assert os.listdir("/proc/self/fd") == before


def test_a_reply_without_value_and_error_is_an_error() -> None:
    assert _outcome({}) == Outcome(error="no answer", reusable=False)


def test_a_sandbox_that_died_between_two_calls_is_replaced(server: PythonServer) -> None:
    first = server.call({}, {}, PATIENCE)
    assert server._sandbox is not None
    server._sandbox._process.kill()
    server._sandbox._process.wait()
    second = server.call({}, {}, PATIENCE)
    assert (second.value, second.error) == (first.value, "")


def test_a_sandbox_is_replaced_after_its_number_of_calls(
    server: PythonServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpo_engine.sandbox.server.CALLS_PER_SANDBOX", 2)
    used = []
    for _ in range(5):
        assert server.call({}, {}, PATIENCE).value is not None
        used.append(server._sandbox)
    assert [used.index(each) for each in used] == [0, 0, 2, 2, 4]


def test_a_call_returns_json_and_sees_nothing_of_the_previous_call(server: PythonServer) -> None:
    first, second = (server.call({}, {}, PATIENCE) for _ in range(2))
    assert first.value == second.value
    assert first.value is not None
    assert first.value.startswith('{"score": 1,')


def test_files_of_one_call_are_gone_in_the_next(server: PythonServer) -> None:
    left = server.call({}, {"file": True}, PATIENCE)
    assert left.value is not None
    assert left.value.startswith('{"score": 11,')
    assert not left.reusable
    after = server.call({}, {}, PATIENCE)
    assert after.value is not None
    assert after.value.startswith('{"score": 1,')


@pytest.mark.parametrize("name", GRADERS)
def test_a_hostile_grader_is_an_error_of_its_call_and_the_next_call_works(name: str) -> None:
    source = f"def grade(sample, item):\n    if item: return 0.5\n    {GRADERS[name]}\n"
    with PythonServer(source) as server:
        outcome = server.call({}, {}, PATIENCE)
        assert outcome.value is None
        assert outcome.error
        assert not outcome.timed_out
        assert server.call({}, {"honest": True}, PATIENCE).value == "0.5"


@pytest.mark.parametrize("name", ENDLESS_GRADERS)
def test_an_endless_grader_ends_at_its_deadline_and_the_next_call_works(name: str) -> None:
    source = f"def grade(sample, item):\n    if item: return 0.5\n    {ENDLESS_GRADERS[name]}\n"
    with PythonServer(source) as server:
        outcome = server.call({}, {}, 0.4)
        assert outcome.value is None
        assert outcome.timed_out
        assert server.call({}, {"honest": True}, PATIENCE).value == "0.5"


def test_a_server_outlives_the_thread_of_its_first_call(server: PythonServer) -> None:
    thread = threading.Thread(target=server.call, args=({}, {}, PATIENCE))
    thread.start()
    thread.join()
    for _ in range(3):
        outcome = server.call({}, {}, PATIENCE)
        assert outcome.value is not None, outcome.error


def test_calls_from_several_threads_take_turns(server: PythonServer) -> None:
    outcomes = at_once(8, lambda _: server.call({}, {}, PATIENCE).value)
    assert None not in outcomes


def test_a_sandbox_dies_with_a_killed_owner() -> None:
    code = (
        "from grpo_engine.sandbox import PythonServer\n"
        "server = PythonServer('def grade(s, i):\\n    return 1')\n"
        "server.call({}, {}, 60.0)\n"
        "print(server._sandbox._process.pid, flush=True)\n"
        "input()\n"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=os.getcwd()) as owner:
        assert owner.stdout is not None
        sandbox = os.pidfd_open(int(owner.stdout.readline()))
        os.kill(owner.pid, signal.SIGKILL)
        ended, _, _ = select.select([sandbox], [], [], PATIENCE)
        os.close(sandbox)
        assert ended


def test_a_closed_server_leaves_no_process() -> None:
    with PythonServer(COUNT) as server:
        server.call({}, {}, PATIENCE)
        assert server._sandbox is not None
        inside = os.dup(server._sandbox._inside or 0)
    ended, _, _ = select.select([inside], [], [], PATIENCE)
    os.close(inside)
    assert ended


def run(code: str, seconds: float = PATIENCE, stdin: str = "") -> Outcome:
    with PythonServer(code) as server:
        return server.request(seconds, mode="script", stdin=stdin)


def test_code_runs_unprivileged_with_an_empty_environment() -> None:
    ran = run("import os, sys\nprint(os.getuid(), os.geteuid(), sorted(os.environ))")
    uid, effective, names = ran.output.split(maxsplit=2)
    assert uid == effective != "0"
    assert eval(names) == ["HOME", "LANG", "LD_LIBRARY_PATH", "PWD", "PYTHONHASHSEED"]


def test_a_program_that_fails_keeps_its_output_and_names_the_line() -> None:
    ran = run("print('before')\n1 / 0")
    assert ran.output == "before\n"
    assert "line 2" in ran.error
    assert ran.error.endswith("ZeroDivisionError: division by zero")


def test_a_program_that_takes_too_long_keeps_its_output() -> None:
    ran = run("import time\nprint('before', flush=True)\ntime.sleep(3600)", 3.0)
    assert (ran.output, ran.timed_out) == ("before\n", True)


def test_a_program_reads_its_input() -> None:
    assert run("print(sum(map(int, input().split())))", stdin="1 2 3\n").output == "6\n"


def test_programs_are_deterministic() -> None:
    code = "import random\nprint(random.random(), list({'a', 'b', 'c', 'd'}), hash('x'))"
    assert run(code) == run(code)


def test_a_server_is_quick() -> None:
    with PythonServer("def grade(sample, item):\n    return 1") as server:
        server.call({}, {}, PATIENCE)
        values = {server.call({"output_text": "x" * 1000}, {"n": n}, PATIENCE).value for n in range(100)}
        assert values == {"1"}


def test_large_inputs_go_in_whole() -> None:
    with PythonServer("def grade(sample, item):\n    return len(sample['output_text'])") as server:
        assert server.call({"output_text": "é" * 2**20}, {}, PATIENCE).value == str(2**20)


def test_installed_packages_are_visible_only_if_they_are_listed(tmp_path: Path) -> None:
    hidden = tmp_path / "site-packages"
    hidden.mkdir(mode=0o755)
    (hidden / "suite.py").write_text("answer = 41")
    tmp_path.chmod(0o700)  # only root can reach it
    source = "def grade(sample, item):\n    import suite\n    suite.answer += 1\n    return suite.answer"
    limits = Limits(packages=(str(hidden),), preload=("suite",))
    with PythonServer(source, limits) as server:
        assert [server.call({}, {}, PATIENCE).value for _ in range(2)] == ["42", "42"]
    with PythonServer(source) as server:
        assert "No module named 'suite'" in server.call({}, {}, PATIENCE).error


def test_a_listed_package_cannot_be_changed(tmp_path: Path) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    source = "import sys\ndef grade(sample, item):\n    open(f'{sys.path[-1]}/left', 'w')"
    with PythonServer(source, Limits(packages=(str(folder),))) as server:
        assert "Read-only file system" in server.call({}, {}, PATIENCE).error
