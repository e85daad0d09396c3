"""All checks of `mcprl doctor` in order, cheapest first."""

from __future__ import annotations

from mcprl.checks.doctor.examination import Check
from mcprl.checks.doctor.model_checks import check_grammar, check_model, check_prompts, check_template
from mcprl.checks.doctor.play_checks import check_episodes, check_parity, check_sampler
from mcprl.checks.doctor.recipe_checks import check_code, check_gpus, check_installed, check_recipe
from mcprl.checks.doctor.resource_checks import check_disk, check_forecast, check_memory, check_trackers
from mcprl.checks.doctor.server_checks import check_calls, check_keys, check_servers
from mcprl.checks.doctor.task_checks import (
    check_against_tools,
    check_isolation,
    check_leaks,
    check_preamble,
    check_task_file,
    check_worlds,
)

__all__ = ["CHECKS"]

# Findings that would stop a run before its first episode.
_BEFORE_PLAY = frozenset(
    {"installed", "keys", "scoring", "warm start", "tasks and tools", "worlds", "grammar", "prompt length"}
)

CHECKS = (
    Check(name="recipe", run=check_recipe),
    Check(name="installed", run=check_installed, needs=lambda e: (e.config,)),
    Check(name="code", run=check_code, needs=lambda e: (e.config,)),
    Check(name="GPUs", run=check_gpus, needs=lambda e: (e.config,)),
    Check(name="keys", run=check_keys, needs=lambda e: (e.config,)),
    Check(name="tasks", run=check_task_file, needs=lambda e: (e.config,)),
    Check(name="servers", run=check_servers, needs=lambda e: (e.config, e.specs)),
    Check(name="calls", run=check_calls, needs=lambda e: (e.specs, e.toolboxes)),
    Check(name="tasks and tools", run=check_against_tools, needs=lambda e: (e.config, e.tasks, e.catalog)),
    Check(name="preamble", run=check_preamble, needs=lambda e: (e.config, e.preamble, e.catalog)),
    Check(name="isolation", run=check_isolation, needs=lambda e: (e.config, e.tasks, e.catalog)),
    Check(name="worlds", run=check_worlds, needs=lambda e: (e.tasks, e.catalog)),
    Check(name="leaks", run=check_leaks, needs=lambda e: (e.config, e.tasks)),
    Check(name="model", run=check_model, needs=lambda e: (e.config,)),
    Check(
        name="template",
        run=check_template,
        needs=lambda e: (e.config, e.model),
        after=("installed", "renderer"),
        loads_model=True,
    ),
    Check(name="grammar", run=check_grammar, needs=lambda e: (e.config, e.chat, e.catalog), loads_model=True),
    Check(name="prompt length", run=check_prompts, needs=lambda e: (e.config, e.preamble, e.tasks, e.catalog)),
    Check(
        name="sampler",
        run=check_sampler,
        needs=lambda e: (e.config, e.model, e.chat, e.preamble, e.tasks, e.catalog),
        after=_BEFORE_PLAY,
        loads_model=True,
    ),
    Check(name="parity", run=check_parity, needs=lambda e: (e.sample,), loads_model=True),
    Check(name="episodes", run=check_episodes, needs=lambda e: (e.sample,), loads_model=True),
    Check(name="forecast", run=check_forecast, needs=lambda e: (e.config, e.preamble, e.tasks)),
    Check(name="memory", run=check_memory, needs=lambda e: (e.config,)),
    Check(name="disk", run=check_disk, needs=lambda e: (e.config,)),
    Check(name="trackers", run=check_trackers, needs=lambda e: (e.config,)),
)
"""The checks of `mcprl doctor`. `needs` names the results of earlier checks that a check uses."""
