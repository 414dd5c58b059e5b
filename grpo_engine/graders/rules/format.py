"""`format`: the completion has the required shape: tags in order, a pattern, or a JSON schema."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from grpo_engine.contract.records import Listed, Sample
from grpo_engine.contract.strict_json import parse_json
from grpo_engine.graders import pattern as patterns
from grpo_engine.graders.base import Graded, RewardGrader, Template
from grpo_engine.graders.errors import UnscorableError
from grpo_engine.graders.template import render

TagName = Annotated[str, Field(max_length=64, pattern=r"^[A-Za-z_][A-Za-z0-9_.:-]*$")]


def _check_pattern(pattern: str) -> str:
    patterns.compiled(pattern)
    return pattern


def _check_schema(schema: dict[str, Any]) -> dict[str, Any]:
    # imported late, as below: jsonschema would be a tenth of the start time of every engine and worker
    from grpo_engine.graders.rules.json_schema import check_schema

    return check_schema(schema)


class Format(RewardGrader):
    """1.0 if the input has the format, otherwise 0.0. Give exactly one of tags, pattern and json_schema."""

    template_fields = ("input",)

    type: Literal["format"]
    input: Template = "{{sample.output_text}}"
    """Template of the text to grade; by default the completion."""
    tags: Annotated[Listed[TagName], Field(min_length=1, max_length=16)] | None = None
    """Names such as ["think", "answer"]: each must open and close exactly once, in this order."""
    strict: bool = False
    """Allow only white space outside of the tags."""
    pattern: Annotated[str, AfterValidator(_check_pattern)] | None = None
    """Regular expression in RE2 syntax; `.` matches a newline only with (?s)."""
    match: Literal["full", "search"] = "full"
    """Whether the pattern must match the whole input or some part of it."""
    json_schema: Annotated[dict[str, Any], AfterValidator(_check_schema)] | None = None
    """JSON schema to which the whole input must conform."""

    @model_validator(mode="after")
    def _one_shape(self) -> Self:
        given = [name for name in ("tags", "pattern", "json_schema") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"give one of tags, pattern and json_schema, not {' and '.join(given) or 'none'}"
            )
        if self.strict and self.tags is None:
            raise ValueError("strict requires tags")
        if self.match == "search" and self.pattern is None:
            raise ValueError("match requires pattern")
        if self.tags is not None and len(set(self.tags)) != len(self.tags):
            raise ValueError("tags must differ from each other")
        return self

    def evaluate(self, sample: Sample, item: Mapping[str, Any]) -> Graded:
        return Graded(float(self._fits(render(self.input, sample, item))))

    def _fits(self, text: str) -> bool:
        if self.tags is not None:
            return has_tags(text, self.tags, strict=self.strict)
        if len(text) > patterns.MAX_TEXT_CHARACTERS:
            raise UnscorableError(
                "other_error", f"longer than {patterns.MAX_TEXT_CHARACTERS} characters: not checked"
            )
        if self.pattern is not None:
            return patterns.matches(self.pattern, text, full=self.match == "full")
        return self._conforms(text)

    def _conforms(self, text: str) -> bool:
        try:
            instance = parse_json(text)
        except ValueError:
            return False
        from grpo_engine.graders.rules.json_schema import TooMuchWorkError, conforms

        try:
            return conforms(instance, self.json_schema or {})
        except TooMuchWorkError as error:
            raise UnscorableError("other_error", f"json_schema: {error}") from None


def has_tags(text: str, tags: tuple[str, ...], *, strict: bool) -> bool:
    """Whether each `<tag>…</tag>` occurs exactly once, in this order and without nesting.

    `strict`: also require that nothing but white space is outside of them.
    """
    position = 0
    outside: list[str] = []
    for tag in tags:
        opening, closing = f"<{tag}>", f"</{tag}>"
        if text.count(opening) != 1 or text.count(closing) != 1:
            return False
        start, end = text.find(opening, position), text.find(closing, position)
        if not position <= start < end:
            return False
        outside.append(text[position:start])
        position = end + len(closing)
    outside.append(text[position:])
    return not strict or not any(part.strip() for part in outside)
