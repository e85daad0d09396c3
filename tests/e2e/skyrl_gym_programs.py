"""Programs for the interpreter of an environment with SkyRL; `test_skyrl_gym.py` starts them. They end with JSON.

PYTHON skyrl_gym_programs.py generate RECIPE DATASET SCRIPTS     episodes through SkyRL's own generator
PYTHON skyrl_gym_programs.py experiment RECIPE DATASET           the entry point for clusters, as far as CPUs go
"""

from __future__ import annotations

import asyncio
import json
import sys
import typing
from collections import defaultdict
from pathlib import Path

import typing_extensions

if sys.version_info < (3, 12):
    typing.TypedDict = typing_extensions.TypedDict  # pydantic reads no other below Python 3.12

import skyrl_gym
from skyrl.train.config import GeneratorConfig, SamplingParams, SkyRLGymConfig
from skyrl.train.generators.skyrl_gym_generator import SkyRLGymGenerator
from transformers import AutoTokenizer

from mcprl.recipe import load_recipe
from mcprl_skyrl_gym import close_stages, register
from mcprl_skyrl_gym.rows import task_of_extras
from mcprl_skyrl_gym.stages import StageKey, stage_of


class ScriptedEngine:
    """Stands for the client of SkyRL's inference servers: says what the script of a task has for its next turn."""

    model_name = "scripted"

    def __init__(self, tokenizer, scripts):
        self.tokenizer = tokenizer
        self.scripts = scripts
        self.asked = defaultdict(list)  # by task, the tokens of each request
        self.said = defaultdict(list)
        self.finished = 0

    async def generate(self, input_batch, model=None):
        (prompt_ids,) = input_batch["prompt_token_ids"]
        shown = self.tokenizer.decode(prompt_ids)
        (task,) = [name for name in self.scripts if f"Do {name}." in shown]
        text = self.scripts[task][len(self.asked[task])]
        ids = [*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id]
        self.asked[task].append(list(prompt_ids))
        self.said[task].append(ids)
        return {
            "responses": [self.tokenizer.decode(ids, skip_special_tokens=True)],
            "response_ids": [list(ids)],
            "stop_reasons": ["stop"],
            "response_logprobs": [[-0.5] * len(ids)],
            "prompt_logprobs": None,
            "rollout_expert_indices": None,
        }

    async def finish_session(self, session_id):
        self.finished += 1


def batch_of(dataset: Path):
    """A batch as SkyRL's trainer makes it of the rows that its dataset reads."""
    from skyrl.train.dataset import PromptDataset

    tokenizer = AutoTokenizer.from_pretrained(model_of(sys.argv[2]))
    rows = PromptDataset(str(dataset), tokenizer, max_prompt_length=512, num_workers=1)
    loaded = rows.collate_fn([rows[index] for index in range(len(rows))])
    return {
        "prompts": [row["prompt"] for row in loaded],
        "env_classes": [row["env_class"] for row in loaded],
        "env_extras": [row["env_extras"] for row in loaded],
        "sampling_params": None,
        "trajectory_ids": None,
    }


def model_of(recipe):
    return load_recipe(Path(recipe)).model.path


def requests_are_mcprls(stage, task, engine, result):
    """Whether both requests of an episode of two turns held the tokens that mcprl's own chat lays down."""
    chat = stage.wording._chat
    _, tools = stage._opening(task)
    first = stage.prompt_ids(task)
    tool, text = result
    said = engine.said[task.id][0]
    second = (*first, *said, *chat.extend(first, said, [{"role": "tool", "name": tool, "content": text}], tools))
    return [tuple(asked) for asked in engine.asked[task.id]] == [first, second]


def generate(recipe, dataset, scripts):
    register(recipe)
    batch = batch_of(Path(dataset))
    tokenizer = AutoTokenizer.from_pretrained(model_of(recipe))
    scripted = json.loads(Path(scripts).read_text())
    engine = ScriptedEngine(tokenizer, scripted["turns"])
    generator = SkyRLGymGenerator(
        GeneratorConfig(max_turns=3, max_input_length=4096, sampling_params=SamplingParams(logprobs=1)),
        SkyRLGymConfig(),
        engine,
        tokenizer,
    )
    output = asyncio.run(generator.generate(batch, disable_tqdm=True))
    stage = stage_of(StageKey(recipe=Path(recipe)))
    episodes = {}
    for index, extras in enumerate(batch["env_extras"]):
        task = task_of_extras(extras)
        ids, mask = output["response_ids"][index], output["loss_masks"][index]
        episodes[task.id] = {
            "rewards": output["rewards"][index],
            "masked": tokenizer.decode([i for i, m in zip(ids, mask, strict=True) if not m]),
            "learnt": tokenizer.decode([i for i, m in zip(ids, mask, strict=True) if m]),
            "metrics": output["env_metrics"][index],
            "turns": len(engine.said[task.id]),
            "aligned": len(ids) == len(mask) == len(output["rollout_logprobs"][index]),
        }
    tasks = {task.id: task for task in map(task_of_extras, batch["env_extras"])}
    return {
        "episodes": episodes,
        "rollout": output["rollout_metrics"],
        "finished": engine.finished,
        "same": {
            name: requests_are_mcprls(stage, tasks[name], engine, seen) for name, seen in scripted["results"].items()
        },
        "first_prompt": tokenizer.decode(output["prompt_token_ids"][0]),
        "pids": stage.toolbox.pids("meeting"),
    }


def experiment(recipe, dataset):
    from skyrl.train.entrypoints import main_base

    from mcprl_skyrl_gym import trainer

    read = main_base.PromptDataset
    # SkyRL filters prompts in eight processes, each of which imports torch.
    main_base.PromptDataset = lambda **settings: read(**{**settings, "num_workers": 1})
    settings, theirs = trainer.read_arguments(
        [
            f"mcprl.recipe={recipe}",
            f"data.train_data=['{dataset}']",
            f"trainer.policy.model.path={model_of(recipe)}",
            "trainer.placement.colocate_all=false",
            "trainer.eval_interval=-1",
            "trainer.train_batch_size=1",
            "generator.max_turns=3",
            "generator.max_input_length=4096",
        ]
    )
    cfg = main_base.SkyRLTrainConfig.from_cli_overrides(theirs)
    made = trainer.McpPPOExp(cfg, settings)
    generator = made.get_generator(cfg, made.tokenizer, ScriptedEngine(made.tokenizer, {}))
    found = {
        "is_skyrls_experiment": isinstance(made, main_base.BasePPOExp),
        "is_skyrls_generator": isinstance(generator, SkyRLGymGenerator),
        "registered": skyrl_gym.registry["mcprl"].entry_point,
        "rows": len(made.train_dataset),
    }
    cfg.generator.max_input_length = 40
    found["too_long"] = refused(made.get_generator, cfg, made.tokenizer, None)
    cfg.generator.max_input_length = 4096
    made.tokenizer.chat_template = made.tokenizer.chat_template.replace("assistant", "helper")
    found["other_template"] = refused(made.get_generator, cfg, made.tokenizer, None)
    cfg.generator.batched = True
    found["batched"] = refused(trainer.McpPPOExp, cfg, settings)
    lost = generator._post_process_agent_loop_output(episode({"infrastructure_fault": 1.0}), {}, None)
    played = generator._post_process_agent_loop_output(episode({"infrastructure_fault": 0.0}), {}, None)
    found["masks"] = [lost.loss_mask, played.loss_mask]
    return found


def episode(metrics):
    from skyrl.train.generators.skyrl_gym_generator import TrajectoryOutput

    return TrajectoryOutput(
        response_ids=[5, 6],
        reward=[0.0, 0.0],
        stop_reason="stop",
        loss_mask=[1, 1],
        prompt_ids=[4],
        rollout_logprobs=None,
        env_metrics=metrics,
    )


def refused(function, *arguments):
    from mcprl.errors import ConfigurationError

    try:
        function(*arguments)
    except ConfigurationError as error:
        return str(error)
    return None


if __name__ == "__main__":
    found = {"generate": generate, "experiment": experiment}[sys.argv[1]](*sys.argv[2:])
    if sys.argv[1] == "experiment":
        close_stages()  # the other program leaves that to the end of the process
    print(json.dumps(found))
