"""The kinds of reward rules. A new kind is a file in `rules/` or `suites/`, and a line here."""

from grpo_engine.graders.rules.code_tests import CodeTests
from grpo_engine.graders.rules.endpoint import Endpoint, EnvironmentReward
from grpo_engine.graders.rules.format import Format
from grpo_engine.graders.rules.length import Length
from grpo_engine.graders.rules.math_answer import MathAnswer
from grpo_engine.graders.rules.numeric import Numeric
from grpo_engine.graders.rules.python_code import PythonGrader
from grpo_engine.graders.rules.reward_model import RewardModel
from grpo_engine.graders.rules.score_model import ScoreModel
from grpo_engine.graders.rules.string_check import StringCheck
from grpo_engine.graders.rules.text_similarity import TextSimilarity
from grpo_engine.graders.suites.reasoning_gym import ReasoningGym

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
    | ReasoningGym
    | EnvironmentReward
)
