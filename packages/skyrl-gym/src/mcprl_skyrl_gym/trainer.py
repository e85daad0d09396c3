"""An entry point for SkyRL's trainer on its GPU nodes, with mcprl's environment. It runs where SkyRL is installed.

    python -m skyrl.train.entrypoints.main_base trainer.override_entrypoint=mcprl_skyrl_gym.trainer \\
        mcprl.recipe=recipe.yaml data.train_data="['train.parquet']" generator.max_turns=10 …

What begins with `mcprl.` is ours, all else is SkyRL's own. Before anything is trained, every prompt is rendered as
SkyRL will render it and compared with what mcprl's own trainer would sample from.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcprl.errors import BadValueError, MissingExtraError
from mcprl_skyrl_gym.registration import register
from mcprl_skyrl_gym.rows import TASK_COLUMN, task_of_extras
from mcprl_skyrl_gym.stages import Stage, StageKey, close_stages, stage_of

__all__ = ["McpGymGenerator", "McpPPOExp", "Settings", "main", "read_arguments"]


_PREFIX = "mcprl."
_LOST = "infrastructure_fault"


def _module(name: str) -> Any:
    """Typed as Any: SkyRL is not installed where mcprl is checked."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"{error.name} is not installed", fix="run this in SkyRL's environment: pip install 'skyrl[fsdp]==0.3.0'"
        ) from error


_MAIN = _module("skyrl.train.entrypoints.main_base")
_BASE_EXPERIMENT: Any = _MAIN.BasePPOExp
_BASE_GENERATOR: Any = _module("skyrl.train.generators.skyrl_gym_generator").SkyRLGymGenerator


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the entry point is told besides SkyRL's configuration. Settings(recipe=Path("/…/recipe.yaml"))"""

    recipe: Path
    overrides: tuple[str, ...] = ()
    strict: bool = False


class McpGymGenerator(_BASE_GENERATOR):
    """SkyRL's generator. An episode that the infrastructure failed stays in its batch, but no token of it has loss."""

    def _post_process_agent_loop_output(self, agent_loop_output: Any, _env_extras: Any, _trajectory_id: Any) -> Any:
        outputs: Sequence[Any] = getattr(agent_loop_output, "step_outputs", [agent_loop_output])
        if any(output.env_metrics.get(_LOST) for output in outputs):
            for output in outputs:
                output.loss_mask = [0] * len(output.loss_mask)
                output.stop_reason = _LOST
        return agent_loop_output


class McpPPOExp(_BASE_EXPERIMENT):
    """SkyRL's experiment with our environment registered in the process that generates."""

    def __init__(self, cfg: Any, settings: Settings) -> None:
        require_fit(cfg)
        register(settings.recipe, overrides=settings.overrides, strict=settings.strict)
        self.settings = settings
        super().__init__(cfg)  # pyright: ignore[reportUnknownMemberType]

    def get_generator(self, cfg: Any, tokenizer: Any, inference_engine_client: Any) -> Any:
        """SkyRL's own generator for our environment. The tool servers are up, and the prompts fit, when it is there."""
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
    """Stop here where SkyRL's configuration would cut episodes short or rewrite them."""
    generator = cfg.generator
    for holds, what, fix in (
        (generator.batched, "generator.batched plays one turn only", "generator.batched=false"),
        (
            not generator.use_conversation_multi_turn,
            "without generator.use_conversation_multi_turn, results are put into the policy's own message",
            "generator.use_conversation_multi_turn=true",
        ),
        (
            generator.chat_template.name_or_path is not None,
            "with generator.chat_template, SkyRL tokenises turns again and drops the rewards of all but the last",
            "generator.chat_template.name_or_path=null",
        ),
        (
            generator.vision_language_generator,
            "generator.vision_language_generator is for images, and results are texts",
            "generator.vision_language_generator=false",
        ),
    ):
        if holds:
            raise BadValueError(what, fix=f"set {fix}")


def require_same_prompt(extras: Mapping[str, Any], stage: Stage, generator_cfg: Any, tokenizer: Any) -> None:
    """Stop here where SkyRL would sample after other tokens than mcprl, or where a prompt leaves no room for a turn."""
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
            f"SkyRL renders the prompt of task {task.id} as other tokens than the recipe's model does",
            fix="set trainer.policy.model.path to the recipe's model.path, and in generator.chat_template_kwargs "
            "enable_thinking as model.thinking has it",
        )
    limit = generator_cfg.max_input_length
    if limit is not None and len(rendered) > limit:
        # SkyRL's loop fails on an episode without any turn, and the whole batch with it.
        raise BadValueError(
            f"the prompt of task {task.id} has {len(rendered)} tokens with its tools, generator.max_input_length is "
            f"{limit}",
            fix="raise generator.max_input_length, or offer fewer tools",
        )


def read_arguments(arguments: Sequence[str]) -> tuple[Settings, list[str]]:
    """Our settings, and the arguments that are SkyRL's.

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
                    f"{argument} is none of mcprl.recipe=FILE, mcprl.set=KEY=VALUE, mcprl.strict=true|false",
                    fix="correct it",
                )
    if len(recipes) != 1:
        raise BadValueError("there is not just one mcprl.recipe", fix="add mcprl.recipe=FILE once")
    theirs = [argument for argument in arguments if not argument.startswith(_PREFIX)]
    # Absolute: Ray's workers have working folders of their own.
    return Settings(recipe=Path(recipes[0]).resolve(), overrides=tuple(overrides), strict=strict), theirs


def _train(cfg: Any, settings: Settings) -> None:
    """The whole run, in a worker of Ray."""
    try:
        McpPPOExp(cfg, settings).run()
    finally:
        close_stages()


def main() -> None:
    """Train with SkyRL, by the arguments of this process."""
    settings, arguments = read_arguments(sys.argv[1:])
    cfg = _MAIN.SkyRLTrainConfig.from_cli_overrides(arguments)
    require_fit(cfg)
    _MAIN.validate_cfg(cfg)
    _MAIN.initialize_ray(cfg)
    ray = _module("ray")
    ray.get(ray.remote(num_cpus=1)(_train).remote(cfg, settings))
