"""An entry point for SkyRL's trainer on its GPU nodes, with mcprl's environment. SkyRL must be installed.

    python -m skyrl.train.entrypoints.main_base trainer.override_entrypoint=mcprl_skyrl_gym.trainer \\
        mcprl.recipe=recipe.yaml data.train_data="['train.parquet']" generator.max_turns=10 …

Arguments that begin with `mcprl.` are ours, all others are SkyRL's. Before training, every prompt is rendered the way
SkyRL renders it and compared with the prompt of mcprl's own trainer.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcprl.errors import BadValueError, MissingExtraError
from mcprl_skyrl_gym.env import register
from mcprl_skyrl_gym.rows import TASK_COLUMN, task_of_extras
from mcprl_skyrl_gym.stages import Stage, StageKey, close_stages, stage_of

_PREFIX = "mcprl."
_LOST = "infrastructure_fault"


def _module(name: str) -> Any:
    """Import a module of SkyRL as Any, because SkyRL is not installed in the type checker's environment."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"{error.name} is not installed",
            fix="run this command in SkyRL's environment: pip install 'skyrl[fsdp]==0.3.0'",
        ) from error


_MAIN = _module("skyrl.train.entrypoints.main_base")
_BASE_EXPERIMENT: Any = _MAIN.BasePPOExp
_BASE_GENERATOR: Any = _module("skyrl.train.generators.skyrl_gym_generator").SkyRLGymGenerator


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The entry point's own settings: Settings(recipe=Path("/…/recipe.yaml"))"""

    recipe: Path
    overrides: tuple[str, ...] = ()
    strict: bool = False


class McpGymGenerator(_BASE_GENERATOR):
    """SkyRL's generator. An episode lost to an infrastructure fault stays in its batch, but carries no loss."""

    def _post_process_agent_loop_output(self, agent_loop_output: Any, _env_extras: Any, _trajectory_id: Any) -> Any:
        outputs: Sequence[Any] = getattr(agent_loop_output, "step_outputs", [agent_loop_output])
        if any(output.env_metrics.get(_LOST) for output in outputs):
            for output in outputs:
                output.loss_mask = [0] * len(output.loss_mask)
                output.stop_reason = _LOST
        return agent_loop_output


class McpPPOExp(_BASE_EXPERIMENT):
    """SkyRL's experiment. It registers our environment in the process that generates episodes."""

    def __init__(self, cfg: Any, settings: Settings) -> None:
        require_fit(cfg)
        register(settings.recipe, overrides=settings.overrides, strict=settings.strict)
        self.settings = settings
        super().__init__(cfg)  # pyright: ignore[reportUnknownMemberType]

    def get_generator(self, cfg: Any, tokenizer: Any, inference_engine_client: Any) -> Any:
        """Return SkyRL's generator for our environment, after starting the tool servers and checking the prompts."""
        stage = stage_of(StageKey(recipe=self.settings.recipe, overrides=self.settings.overrides))
        for dataset in (self.train_dataset, self.eval_dataset):
            for written in dataset.dataframe[TASK_COLUMN] if dataset is not None else ():
                require_same_prompt({TASK_COLUMN: written}, stage, cfg.generator, tokenizer)
        return McpGymGenerator(
            generator_cfg=cfg.generator,
            skyrl_gym_cfg=cfg.environment.skyrl_gym,
            inference_engine_client=inference_engine_client,
            tokenizer=tokenizer,
            policy_model_name=_MAIN.resolve_policy_model_name(cfg),
        )


def require_fit(cfg: Any) -> None:
    """Raise BadValueError if SkyRL's configuration would cut episodes short or rewrite them."""
    generator = cfg.generator
    for holds, what, fix in (
        (generator.batched, "with generator.batched, an episode can have only one turn", "generator.batched=false"),
        (
            not generator.use_conversation_multi_turn,
            "without generator.use_conversation_multi_turn, tool results become part of the policy's message",
            "generator.use_conversation_multi_turn=true",
        ),
        (
            generator.chat_template.name_or_path is not None,
            "with generator.chat_template, SkyRL retokenizes turns and drops all rewards except that of the last turn",
            "generator.chat_template.name_or_path=null",
        ),
        (
            generator.vision_language_generator,
            "generator.vision_language_generator expects images, but tool results are text",
            "generator.vision_language_generator=false",
        ),
    ):
        if holds:
            raise BadValueError(what, fix=f"set {fix}")


def require_same_prompt(extras: Mapping[str, Any], stage: Stage, generator_cfg: Any, tokenizer: Any) -> None:
    """Raise BadValueError if SkyRL's prompt differs from mcprl's, or leaves no room for a turn."""
    task = task_of_extras(extras)
    rendered: Sequence[int] = tokenizer.apply_chat_template(
        stage.conversation(task),
        add_generation_prompt=True,
        tokenize=True,
        return_dict=False,
        **generator_cfg.chat_template_kwargs,
    )
    if tuple(rendered) != stage.prompt_ids(task):
        raise BadValueError(
            f"SkyRL and mcprl render the prompt of task {task.id} to different tokens",
            fix="set trainer.policy.model.path to the recipe's model.path, and set "
            "generator.chat_template_kwargs.enable_thinking to the recipe's model.thinking",
        )
    limit = generator_cfg.max_input_length
    if limit is not None and len(rendered) > limit:
        # SkyRL's loop fails on an episode without any turn, and loses the whole batch.
        raise BadValueError(
            f"the prompt of task {task.id} has {len(rendered)} tokens, but generator.max_input_length is {limit}",
            fix="raise generator.max_input_length, or offer fewer tools",
        )


def read_arguments(arguments: Sequence[str]) -> tuple[Settings, list[str]]:
    """Separate our settings from SkyRL's arguments.

    >>> read_arguments(["mcprl.recipe=/r.yaml", "mcprl.set=seed=3", "trainer.epochs=1"])
    (Settings(recipe=PosixPath('/r.yaml'), overrides=('seed=3',), strict=False), ['trainer.epochs=1'])
    """
    recipes: list[str] = []
    overrides: list[str] = []
    strict = False
    for argument in arguments:
        match argument.removeprefix(_PREFIX).split("=", 1) if argument.startswith(_PREFIX) else []:
            case []:
                pass
            case ["recipe", path]:
                recipes.append(path)
            case ["set", override]:
                overrides.append(override)
            case ["strict", "true" | "false" as value]:
                strict = value == "true"
            case _:
                raise BadValueError(
                    f"{argument} is not mcprl.recipe=FILE, mcprl.set=KEY=VALUE or mcprl.strict=true|false",
                    fix="correct the argument",
                )
    if len(recipes) != 1:
        raise BadValueError(
            f"mcprl.recipe is given {len(recipes)} times instead of once", fix="pass mcprl.recipe=FILE exactly once"
        )
    theirs = [argument for argument in arguments if not argument.startswith(_PREFIX)]
    # Absolute, because Ray's workers have other working folders.
    return Settings(recipe=Path(recipes[0]).resolve(), overrides=tuple(overrides), strict=strict), theirs


def _train(cfg: Any, settings: Settings) -> None:
    """Run the entire training loop in a Ray worker."""
    try:
        McpPPOExp(cfg, settings).run()
    finally:
        close_stages()


def main() -> None:
    """Train with SkyRL, using the command line arguments of this process."""
    settings, arguments = read_arguments(sys.argv[1:])
    cfg = _MAIN.SkyRLTrainConfig.from_cli_overrides(arguments)
    require_fit(cfg)
    _MAIN.validate_cfg(cfg)
    _MAIN.initialize_ray(cfg)
    ray = _module("ray")
    ray.get(ray.remote(num_cpus=1)(_train).remote(cfg, settings))
