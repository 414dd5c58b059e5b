"""What a command tells its user in one line before it ends with exit code 1."""

from __future__ import annotations


class CommandError(Exception):
    """The command cannot go on. `code` and `param` are the API's, where it answered."""

    def __init__(
        self, message: str, *, code: str | None = None, param: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.param = param
        self.hint = hint

    def document(self) -> dict[str, dict[str, str | None]]:
        """`{"error": {message, code, param, hint}}`."""
        fields = {"message": self.message, "code": self.code, "param": self.param, "hint": self.hint}
        return {"error": fields}

    def line(self) -> str:
        """`message [code=… param=…] Hint: …` without line breaks."""
        named = (("code", self.code), ("param", self.param))
        details = " ".join(f"{name}={value}" for name, value in named if value)
        parts = [self.message, f"[{details}]" if details else "", f"Hint: {self.hint}" if self.hint else ""]
        return " ".join(" ".join(part.split()) for part in parts if part)
