"""`events.jsonl`: numbered without gaps across attempts, nothing twice, unfinished lines cut off."""

from pathlib import Path

from grpo_engine.contract.events import Evaluated, PhaseChanged, RolloutsRecorded, StepFinished, parse_event
from grpo_engine.files.event_log import Journal


def lines(path: Path) -> list[tuple[int, str]]:
    return [(event.sequence, event.type) for event in map(parse_event, path.read_bytes().splitlines())]


def step(number: int) -> StepFinished:
    return StepFinished(step=number, metrics={"reward": number / 10})


def test_a_second_attempt_continues_the_numbers_and_repeats_no_step(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    first = Journal(path)
    for event in (PhaseChanged(phase="loading"), step(1), RolloutsRecorded(step=2, groups=()), step(2)):
        first.write(event)
    first.close()
    second = Journal(path)
    assert second.write(step(2)) is None
    assert second.write(RolloutsRecorded(step=2, groups=())) is None
    second.write(step(3))
    second.close()
    assert lines(path) == [
        (1, "phase"),
        (2, "step_finished"),
        (3, "rollouts"),
        (4, "step_finished"),
        (5, "step_finished"),
    ]


def test_a_line_that_a_killed_engine_left_unfinished_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    journal = Journal(path)
    journal.write(step(1))
    journal.close()
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])
    again = Journal(path)
    again.write(step(2))
    again.close()
    assert lines(path) == [(1, "step_finished"), (2, "step_finished")]


def test_a_complete_line_without_its_newline_is_cut_off_too(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    journal = Journal(path)
    journal.write(step(1))
    journal.write(step(2))
    journal.close()
    path.write_bytes(path.read_bytes()[:-1])
    again = Journal(path)
    assert again.write(step(2)) is not None
    again.close()
    assert lines(path) == [(1, "step_finished"), (2, "step_finished")]


def test_a_step_that_the_worker_already_published_is_only_a_phase(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    journal = Journal(path, first_sequence=41, published_step=7)
    assert journal.write(RolloutsRecorded(step=7, groups=())) is None
    assert journal.write(step(7)) is None
    written = journal.write(step(8))
    assert written is not None
    assert journal.write(Evaluated(step=7, metrics={})) is not None
    journal.close()
    assert lines(path) == [(41, "phase"), (42, "step_finished"), (43, "evaluated")]
