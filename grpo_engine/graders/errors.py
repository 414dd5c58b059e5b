"""The exception that graders raise for a completion without a reward; `GraderBase` makes it a GradeError."""

from grpo_engine.contract.records import GradeErrorCode, storable


class UnscorableError(Exception):
    """This completion cannot be scored. `printed`: what the user's code printed before."""

    def __init__(self, code: GradeErrorCode, message: str, printed: str = "") -> None:
        super().__init__(message)
        self.code: GradeErrorCode = code
        self.message = storable(message)
        self.printed = printed
