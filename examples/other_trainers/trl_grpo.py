"""MCP servers in TRL's GRPOTrainer: python trl_grpo.py MODEL"""

import asyncio
import sys
import threading
from contextlib import AsyncExitStack
from inspect import Parameter, Signature
from pathlib import Path

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

import mcprl
from mcprl.episodes.rewards import meets
from mcprl.tools import load_server_specs

HERE = Path(__file__).resolve().parent
TASKS = {task.id: task for task in mcprl.load_tasks(HERE / "tasks.jsonl")}
TYPES = {"string": str, "integer": int, "number": float, "boolean": bool, "array": list, "object": dict}
TOOLBOX = mcprl.Toolbox(load_server_specs(HERE / "servers.json", {}), log_dir=Path("logs"))
LOOP = asyncio.new_event_loop()  # of the toolbox: TRL calls tools from threads of its own


def wait(work):
    return asyncio.run_coroutine_threadsafe(work, LOOP).result()


class Environment:
    """An episode, with tools leased for it. TRL calls `reset` first, and offers all other methods to the model."""

    _leases = AsyncExitStack()

    def reset(self, **row):
        wait(self._leases.aclose())
        self._leases, self._lost = AsyncExitStack(), False
        self._lease = wait(self._leases.enter_async_context(TOOLBOX.lease(None)))

    def _call(self, tool, arguments):
        try:
            return wait(self._lease.call(mcprl.ToolCall(name=tool, arguments=arguments))).text
        except mcprl.InfrastructureError as error:
            self._lost = True
            return str(error)


def make_method(tool):
    """Return a method that calls a tool, with the signature and the docstring that TRL reads."""
    schemas = tool.parameters.get("properties", {})
    kinds = {name: TYPES.get(schema.get("type"), str) for name, schema in schemas.items()}
    arguments = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, annotation=kind) for name, kind in kinds.items()]
    described = [f"    {name}: {schema.get('description', name)}" for name, schema in schemas.items()]

    def method(self, **arguments):
        return self._call(tool.name, arguments)

    method.__name__, method.__annotations__ = tool.name, kinds
    method.__doc__ = "\n".join([tool.description, "", "Args:", *described])
    method.__signature__ = Signature([Parameter("self", Parameter.POSITIONAL_ONLY), *arguments])
    return method


def solved(completions, id, environments, **_):
    """1 if the answer is right; None, which TRL leaves out, if a server failed: that is not the model's fault."""
    answers = [completion[-1].get("content") or "" for completion in completions]
    graded = [float(meets(TASKS[name].goal.answer, answer)) for name, answer in zip(id, answers, strict=True)]
    return [None if environment._lost else grade for environment, grade in zip(environments, graded, strict=True)]


def train(model, steps):
    for tool in TOOLBOX.catalog:
        setattr(Environment, tool.name, make_method(tool))
    rows = [{"id": task.id, "prompt": [dict(message) for message in task.prompt]} for task in TASKS.values()]
    settings = GRPOConfig(
        output_dir="outputs/trl",
        use_cpu=not torch.cuda.is_available(),
        max_steps=steps,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=256,
        report_to="none",
        logging_steps=1,
    )
    data = Dataset.from_list(rows)
    trainer = GRPOTrainer(model, solved, settings, train_dataset=data, environment_factory=Environment)
    trainer.train()
    return trainer


def main(model, steps=5):
    threading.Thread(target=LOOP.run_forever, daemon=True).start()
    wait(TOOLBOX.__aenter__())
    try:
        return train(model, steps)
    finally:
        wait(TOOLBOX.__aexit__(None, None, None))


if __name__ == "__main__":
    main(sys.argv[1])
