"""MCP servers in an environment of verifiers 0.2.0: python verifiers_env.py URL MODEL

URL is that of any OpenAI-compatible endpoint.
"""

import asyncio
import json
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import verifiers as vf
from datasets import Dataset
from verifiers.types import Tool, ToolMessage

import mcprl
from mcprl.episodes.rewards import meets
from mcprl.tools import load_server_specs

HERE = Path(__file__).resolve().parent
TASKS = {task.id: task for task in mcprl.load_tasks(HERE / "tasks.jsonl")}


class McpEnv(vf.MultiTurnEnv):
    """Offers the tools of a toolbox. Each rollout has a lease of its own."""

    def __init__(self, toolbox, **settings):
        tools = [Tool(name=t.name, description=t.description, parameters=dict(t.parameters)) for t in toolbox.catalog]
        super().__init__(tool_defs=tools, **settings)
        self._toolbox = toolbox

    async def setup_state(self, state):
        state["stack"] = AsyncExitStack()
        state["lease"] = await state["stack"].enter_async_context(self._toolbox.lease(None))
        return state

    @vf.cleanup
    async def release(self, state):
        await state.pop("stack").aclose()

    @vf.stop
    async def has_answered(self, state):
        return bool(state["trajectory"]) and not state["trajectory"][-1]["completion"][-1].tool_calls

    async def env_response(self, messages, state, **_):
        replies = []
        for made in messages[-1].tool_calls:
            try:
                call = mcprl.ToolCall(name=made.name, arguments=json.loads(made.arguments))
                text = (await state["lease"].call(call)).text  # a mistake of the model is a text, too
            except json.JSONDecodeError as error:
                text = f"The arguments are not JSON: {error}"
            except mcprl.InfrastructureError as error:
                raise vf.InfraError(str(error)) from error  # the rollout is lost: the model is not to blame
            replies.append(ToolMessage(content=text, tool_call_id=made.id))
        return replies


async def solved(completion, info):
    return float(meets(TASKS[info["id"]].goal.answer, completion[-1].content or ""))


async def main(url, model, rollouts=8):
    rows = [{"prompt": [dict(message) for message in t.prompt], "info": {"id": t.id}} for t in TASKS.values()]
    client = vf.ClientConfig(api_base_url=url, api_key_var="OPENAI_API_KEY")
    async with mcprl.Toolbox(load_server_specs(HERE / "servers.json", {}), log_dir=Path("logs")) as toolbox:
        rubric = vf.Rubric(funcs=[solved])
        environment = McpEnv(toolbox, eval_dataset=Dataset.from_list(rows), rubric=rubric, max_turns=5)
        return await environment.evaluate(client, model, rollouts_per_example=rollouts)


if __name__ == "__main__":
    results = asyncio.run(main(*sys.argv[1:]))
    print([output["reward"] for output in results["outputs"]])
