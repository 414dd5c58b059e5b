"""Where no sandbox holds and the operator insists: plain processes, limited all the same."""

import os
from pathlib import Path

import pytest

from grpo_engine.graders import make_sample
from grpo_engine.sandbox import Capability, PythonServer, SandboxUnavailable, capability
from grpo_engine.sandbox.unsafe import VARIABLE
from tests.engine.graders.helpers import read
from tests.engine.sandbox.patience import PATIENCE

ABOUT_ITSELF = """
import os
def grade(sample, item):
    return {'score': os.getuid(), 'feedback': ' '.join([os.getcwd(), *sorted(os.environ)])}
"""


@pytest.fixture
def no_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capability, "self_test", lambda: Capability(None, reason="no bwrap"))


@pytest.fixture
def _unsafe(no_sandbox: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")


def grader(body: str) -> str:
    return f"import os, signal, time\ndef grade(sample, item):\n    if item: return 0.5\n    {body}\n"


def test_without_a_sandbox_and_without_the_switch_nothing_runs(no_sandbox: None) -> None:
    with pytest.raises(SandboxUnavailable, match="no bwrap"):
        PythonServer(ABOUT_ITSELF)
    code = read(type="code_tests", tests='[{"call": "f", "args": [], "expected": 1}]')
    score = code.grade(make_sample("def f(): return 1"), {})
    assert (score.reward, score.errors["code_tests"].code) == (None, "python_grader_server_error")


@pytest.mark.usefixtures("_unsafe")
def test_a_plain_process_is_unprivileged_with_its_own_folder_and_environment() -> None:
    with PythonServer(ABOUT_ITSELF) as server:
        outcome = server.call({}, {}, PATIENCE)
        assert outcome.value is not None, outcome.error
        assert '"score": 65534' in outcome.value or os.getuid() != 0
        assert "HOME LANG PWD PYTHONHASHSEED" in outcome.value or "HOME LANG PYTHONHASHSEED" in outcome.value
        folder = server._sandbox._folder if server._sandbox else None
        assert folder is not None
        assert folder in outcome.value
    assert not Path(folder).exists()


@pytest.mark.usefixtures("_unsafe")
def test_without_a_sandbox_a_completion_is_still_judged_from_outside() -> None:
    code = read(type="code_tests", tests='[{"call": "f", "args": [2], "expected": 4}]')
    assert code.grade(make_sample("def f(n): return n * 2"), {}).reward == 1.0
    assert code.grade(make_sample("import os\ndef f(n): os._exit(0)"), {}).reward == 0.0


@pytest.mark.usefixtures("_unsafe")
@pytest.mark.parametrize(
    "body",
    [
        "while True: pass",
        "os._exit(0)",
        "print('x' * 2**22); return 1.0",
        "return len(bytearray(2**33))",
        "os.fork(); return 1.0",
        "os.kill(os.getppid(), signal.SIGKILL); return 1.0",
        "os.kill(os.getppid(), signal.SIGSTOP); return 1.0",
        "open('left', 'w').write('x' * 2**26); return 1.0",
    ],
)
def test_a_hostile_grader_is_an_error_of_its_call_and_the_next_call_works(body: str) -> None:
    with PythonServer(grader(body)) as server:
        assert server.call({}, {}, 0.4).value is None
        assert server.call({}, {"honest": True}, PATIENCE).value == "0.5"


@pytest.mark.usefixtures("_unsafe")
def test_a_daemon_is_found_and_killed() -> None:
    body = "\n    ".join(
        (
            "if os.fork() == 0:",
            "    os.setsid()",
            "    if os.fork() == 0: time.sleep(3600)",
            "    os._exit(0)",
            "return 1.0",
        )
    )
    with PythonServer(grader(body)) as server:
        assert server.call({}, {"honest": True}, PATIENCE).value == "0.5"
        assert server._sandbox is not None
        folder = server._sandbox._folder
        assert folder is not None
        assert len(working_in(folder)) == 1
        outcome = server.call({}, {}, PATIENCE)
        assert (outcome.value, outcome.error) == (None, "it left a process running")
        assert working_in(folder) == []


def working_in(folder: str) -> list[str]:
    """Processes whose working directory it is, or was before it was removed."""
    links = [path / "cwd" for path in Path("/proc").glob("[0-9]*")]
    return [str(link) for link in links if link_of(link).startswith(folder)]


def link_of(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""
