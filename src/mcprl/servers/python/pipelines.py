"""The steps of a pipeline, in the forms in which policies write them."""

from __future__ import annotations

from typing import Any, cast

from mcprl.servers.python.programs import Step

__all__ = ["MAX_STEPS", "BadPipelineError", "steps_of"]

MAX_STEPS = 50


class BadPipelineError(ValueError):
    """What was given is no list of steps."""


def steps_of(pipeline: Any) -> tuple[Step, ...]:
    """Steps with names that differ, from a list of codes or of objects, or from one code.

    >>> steps_of(["data * 2", {"name": "half", "code": "data / 2"}])
    (Step(name='step 1', code='data * 2'), Step(name='half', code='data / 2'))
    """
    entries = cast("list[Any]", pipeline) if isinstance(pipeline, list) else [pipeline]
    if not 1 <= len(entries) <= MAX_STEPS:
        raise BadPipelineError(f"pipeline_steps needs 1 to {MAX_STEPS} steps; there are {len(entries)}.")
    steps: list[Step] = []
    for number, entry in enumerate(entries, start=1):
        fields = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {"code": entry}
        code = fields.get("code")
        if not isinstance(code, str):
            raise BadPipelineError(f'Step {number} has no code. Give a text, or {{"name": …, "code": …}}.')
        name = str(fields.get("name") or f"step {number}")
        taken = {step.name for step in steps}
        steps.append(Step(name=name if name not in taken else f"{name} ({number})", code=code))
    return tuple(steps)
