"""Why a completion has no reward, as an exception inside graders; `GraderBase` turns it into a GradeError."""

from grpo_engine.contract.records import GradeErrorCode
from grpo_engine.graders.feedback import storable


class UnscorableError(Exception):
    """This completion cannot be scored."""

    def __init__(self, code: GradeErrorCode, message: str) -> None:
        super().__init__(message)
        self.code: GradeErrorCode = code
        self.message = storable(message)
