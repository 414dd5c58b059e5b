"""What a user's grading code prints, as lines of the engine's output: bounded, without control characters."""

from collections.abc import Mapping

MAX_SAMPLE_CHARACTERS = 2000
"""Maximum characters of one grader for one completion; the rest is cut off."""
MAX_LINE_CHARACTERS = 500
MAX_RUN_BYTES = 2**16


def bounded(output: str) -> str:
    """The beginning of the output of one call."""
    text = output[:MAX_SAMPLE_CHARACTERS].strip("\n")
    return f"{text}…" if len(output) > MAX_SAMPLE_CHARACTERS else text


def lines_of(text: str) -> list[str]:
    """The lines, each bounded and without characters that control a terminal or the direction of text."""
    return [_visible(line) for line in text.splitlines()]


def _visible(line: str) -> str:
    shown = line if len(line) <= MAX_LINE_CHARACTERS else f"{line[: MAX_LINE_CHARACTERS - 1]}…"
    return "".join(each if each.isprintable() or each == "\t" else "\ufffd" for each in shown)


class PrintedOutput:
    """Prints what graders printed, each line with its grader's name, up to `MAX_RUN_BYTES` in a process."""

    def __init__(self) -> None:
        self._left = MAX_RUN_BYTES

    def show(self, printed: Mapping[str, str]) -> None:
        """Print the output of each part; once the bound is reached, a line that says so, then nothing."""
        for part, text in printed.items():
            for line in lines_of(text):
                if self._left <= 0:
                    return
                shown = f"[grader {part}] {line}"
                self._left -= len(shown.encode("utf-8", "replace")) + 1
                print(shown, flush=True)
                if self._left <= 0:
                    print(
                        f"[graders printed more than {MAX_RUN_BYTES // 1024} KiB; the rest is dropped]",
                        flush=True,
                    )
