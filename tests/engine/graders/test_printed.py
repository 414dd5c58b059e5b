"""Prints of graders in the engine's output: named, bounded, and without effect on what surrounds them."""

import pytest

from grpo_engine.graders.printed import MAX_RUN_BYTES, PrintedOutput

HOSTILE = [
    ("\x1b[31mred\x1b[0m", ["\ufffd[31mred\ufffd[0m"]),
    ("ok\r12:00:00 step 9: reward 1", ["ok", "12:00:00 step 9: reward 1"]),
    ("a\u2028b\x85c\x0bd", ["a", "b", "c", "d"]),
    ("\u202egnp.exe\x00\x07", ["\ufffdgnp.exe\ufffd\ufffd"]),
    ("\ud800", ["\ufffd"]),
    ("x" * 2000, ["x" * 499 + "…"]),
]


@pytest.mark.parametrize(("text", "lines"), HOSTILE)
def test_each_line_has_the_name_and_no_control_characters(
    capsys: pytest.CaptureFixture[str], text: str, lines: list[str]
) -> None:
    PrintedOutput().show({"own": text})
    assert capsys.readouterr().out == "".join(f"[grader own] {line}\n" for line in lines)


def test_a_run_s_prints_are_bounded_and_the_end_is_announced_once(capsys: pytest.CaptureFixture[str]) -> None:
    output = PrintedOutput()
    for _ in range(1000):
        output.show({"own": "x" * 400 + "\n" + "y" * 400})
    *lines, last = capsys.readouterr().out.splitlines()
    assert last == "[graders printed more than 64 KiB; the rest is dropped]"
    assert set(lines) == {f"[grader own] {'x' * 400}", f"[grader own] {'y' * 400}"}
    assert MAX_RUN_BYTES <= sum(len(line) + 1 for line in lines) < MAX_RUN_BYTES + 500
