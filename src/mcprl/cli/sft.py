"""`mcprl sft`: supervised fine-tuning, usually as a first step before reinforcement learning."""

from __future__ import annotations

from mcprl.cli.options import Overrides, Recipe
from mcprl.cli.train import Debug, DryRun, run_in_new_folder


def command(recipe: Recipe, overrides: Overrides = None, dry_run: DryRun = False, debug: Debug = False) -> None:
    """Fine-tune a model on the data in sft.data: task solutions, demonstrations, episodes of earlier runs, or chats.

    The run has its own folder, named after the recipe with the suffix -sft. Afterwards, `mcprl train RECIPE --set
    model.adapter=FOLDER/adapter` starts from its adapter. Stopping and resuming work as for `mcprl train`.
    """
    from mcprl.recipe import load_recipe

    run_in_new_folder(load_recipe(recipe, overrides or []).for_sft(), dry_run=dry_run, debug=debug)
