"""The kinds of rule that need no other rule. A new kind is a file and a line here."""

from __future__ import annotations

from grpo_engine.graders.code_tests import CodeTests
from grpo_engine.graders.endpoint import Endpoint
from grpo_engine.graders.format import Format
from grpo_engine.graders.length import Length
from grpo_engine.graders.math_answer import MathAnswer
from grpo_engine.graders.numeric import Numeric
from grpo_engine.graders.python_code import PythonGrader
from grpo_engine.graders.reward_model import RewardModel
from grpo_engine.graders.score_model import ScoreModel
from grpo_engine.graders.string_check import StringCheck
from grpo_engine.graders.text_similarity import TextSimilarity

LeafGrader = (
    StringCheck
    | Numeric
    | Format
    | Length
    | MathAnswer
    | TextSimilarity
    | CodeTests
    | PythonGrader
    | ScoreModel
    | Endpoint
    | RewardModel
)
