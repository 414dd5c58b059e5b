"""A taskset of `verifiers` and its harness, to try `agent.py`: a sum, then whether it is right."""

from typing import Any

import openai
import verifiers.v1 as vf

__all__ = ["AskingTwice", "Sums"]


class Sum(vf.TaskData):
    answer: str = ""


class SumTask(vf.Task[Sum]):
    @vf.reward(weight=1.0)
    async def exact(self, trace: vf.Trace) -> float:
        said = [node.message.content for node in trace.nodes if node.message.role == "assistant"]
        return float(bool(said) and str(said[-1]).strip() == self.data.answer)


class Sums(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self) -> list[SumTask]:
        pairs = [(a, b) for a in range(4) for b in range(4)]
        return [SumTask(Sum(prompt=f"{a} + {b}", answer=str(a + b)), self.config.task) for a, b in pairs]


class AskingTwice(vf.Harness[vf.HarnessConfig]):
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(  # type: ignore[override]
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: Any,
        data: Sum,
        **_: Any,
    ) -> vf.ProgramResult:
        messages: list[Any] = [{"role": "user", "content": str(data.prompt)}]
        async with openai.AsyncOpenAI(base_url=endpoint, api_key=secret) as client:
            for _turn in range(2):
                reply = await client.chat.completions.create(model=ctx.model, messages=messages)
                messages += [reply.choices[0].message, {"role": "user", "content": "Are you sure?"}]
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")
