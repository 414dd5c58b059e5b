"""The kinds of rule that score on their own. A new kind is a file and a line here."""

from __future__ import annotations

from grpo_engine.graders.format import Format
from grpo_engine.graders.length import Length
from grpo_engine.graders.numeric import Numeric
from grpo_engine.graders.string_check import StringCheck

SingleGrader = StringCheck | Numeric | Format | Length
