"""The tool calls of a model's turn while they run, and their answers as the completion's next tokens."""

from collections.abc import Sequence
from concurrent.futures import Future

from grpo_engine.config.tools import Tool, function_schemas
from grpo_engine.models.policy import Policy
from grpo_engine.objective.types import Completion
from grpo_engine.rollout.sampler.base import Sampling
from grpo_engine.rollout.tools.calls import CallReader, ToolCall
from grpo_engine.rollout.tools.conversation import Conversation
from grpo_engine.rollout.tools.rendering import UNKNOWN_TOOL, AnswerRenderer, tool_format
from grpo_engine.rollout.tools.toolbox import OpenToolbox, Toolbox, ToolResult


class ToolUse:
    """A model's use of a job's tools. Raises ConfigError if a tool cannot work here."""

    def __init__(self, policy: Policy, tools: Sequence[Tool]) -> None:
        self.policy, self.tools = policy, tools
        self.toolbox = Toolbox(tools)
        known = tool_format(policy.tokenizer)
        self.reader = CallReader(known, function_schemas(tools))
        self.renderer = AnswerRenderer(policy, known)

    def calls(self, turn: Completion) -> list[ToolCall]:
        """Calls of a turn."""
        return self.reader.read(self.policy.turn_text(turn.token_ids))

    def calls_of_tools(self, turn: Completion) -> list[ToolCall]:
        """Calls of a turn, if one of them names a tool of the job."""
        calls = self.calls(turn) if self.tools else []
        return calls if any(call.name in self.toolbox.tools for call in calls) else []

    def start(
        self,
        conversation: Conversation,
        calls: Sequence[ToolCall],
        toolbox: OpenToolbox,
        sampling: Sampling,
    ) -> list[Future[ToolResult]]:
        """Run the calls of the conversation's newest turn."""
        key = f"{sampling.seed}/{sampling.step}/{conversation.stream}"
        item = conversation.prompt.item
        conversation.waiting = [
            (call, toolbox.submit(call, item, f"{key}/{number}", conversation.rollout))
            for number, call in enumerate(calls)
        ]
        return [future for _, future in conversation.waiting]

    def answer_tokens(self, conversation: Conversation) -> tuple[int, ...] | None:
        """Tokens of the answers to the newest turn's calls; None if they leave no room for a turn."""
        answered = conversation.collect_answers()
        return self.renderer.render(
            [call.name if call.name in self.toolbox.tools else UNKNOWN_TOOL for call, _ in answered],
            [answer.text for _, answer in answered],
            last_token=conversation.token_ids[-1],
            room=conversation.room - 1,
        )
