"""Where a run stands that ended before its time, and from where it goes on.

A run goes on from its newest whole checkpoint. Episodes that were finished after it are in the journal: they are used,
and not played again, unless they were played under other conditions (`conditions`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mcprl.config import RunConfig
from mcprl.errors import NoCheckpointError, NoRunError, OtherStateError
from mcprl.recipe import load_recipe
from mcprl.training.checkpoints import Checkpoint, Checkpoints, Damaged
from mcprl.training.conditions import Conditions, changed_settings, refuse_fixed_settings
from mcprl.training.folder import RunFolder
from mcprl.training.journal import EpisodeJournal
from mcprl.training.state import RunState, read_state

__all__ = ["Standing", "find_standing", "take_up"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a run stands. Without a checkpoint, no step of it was finished, and it begins with the first.

    Standing(config=…, checkpoint=Checkpoint(step=12, …), state=RunState(step=12, …), damaged=(), journaled=9,
             changed={"learner.learning_rate": (0.001, 1e-05)}, journal_fits=False, rolled_back=(13, 14), problems=())

    `changed` are the settings that differ from those of the checkpoint, with both values. `rolled_back` are the newer
    checkpoints that an older one was chosen over.
    """

    config: RunConfig
    checkpoint: Checkpoint | None
    state: RunState | None
    damaged: tuple[Damaged, ...]
    journaled: int
    changed: Mapping[str, tuple[Any, Any]]
    journal_fits: bool
    rolled_back: tuple[int, ...]
    problems: tuple[str, ...]

    @property
    def step(self) -> int:
        """Steps done."""
        return 0 if self.checkpoint is None else self.checkpoint.step


def find_standing(folder: RunFolder, overrides: Sequence[str] = (), from_step: int | None = None) -> Standing:
    """Look at the folder of a run, verify its checkpoints, and change nothing.

    `from_step` chooses an older checkpoint, to go another way from there.
    """
    config = load_recipe(folder.config_file, list(overrides))
    checkpoints = Checkpoints(folder.checkpoints)
    checkpoint, damaged = checkpoints.newest() if from_step is None else (_chosen(checkpoints, from_step), [])
    # One that was never finished covers no step that would be lost: its episodes are still in the journal.
    spoilt = [found for found in damaged if not found.path.name.startswith(".")]
    if checkpoint is None and spoilt:
        raise NoCheckpointError(
            f"none of the checkpoints in {folder.checkpoints} is whole: {spoilt[0].path.name} {spoilt[0].why}",
            fix="start a new run; or delete the folder checkpoints, and the run begins with its first step again",
        )
    step = 0 if checkpoint is None else checkpoint.step
    # Without a summary it ended between its last checkpoint and its end, and has only to be finished.
    if step >= config.training.steps and (folder.path / "summary.json").exists():
        raise NoRunError(
            f"{folder.path} has done all its {step} steps",
            fix=f"add steps, such as --set training.steps={step + 100}, or take another run",
        )
    state = None if checkpoint is None else read_state(checkpoint.path)
    played_under = Conditions.read(folder.conditions)
    before = state or played_under
    if before is not None:
        refuse_fixed_settings(before.settings, config, steps_done=step)
    now = config.model_dump(mode="json")
    newer = tuple(other.step for other in checkpoints.all() if from_step is not None and other.step > step)
    journal = EpisodeJournal(folder.journal)
    journaled = sum(len(journal.finished(kept)) for kept in journal.steps if kept >= step)
    return Standing(
        config=config,
        checkpoint=checkpoint,
        state=state,
        damaged=tuple(damaged),
        journaled=journaled,
        changed={} if before is None else changed_settings(before.settings, now),
        # Steps after an older checkpoint were played by weights that this run will not have.
        journal_fits=not newer
        and played_under is not None
        and not played_under.differences(replace(played_under, settings=now)),
        rolled_back=newer,
        problems=tuple(journal.problems),
    )


def take_up(folder: RunFolder, standing: Standing, conditions: Conditions) -> list[str]:
    """Make the folder that of a run which stands there and goes on under these conditions: what does not fit, goes.

    Returns what has changed besides settings, if episodes are given up because of that.
    """
    if standing.state is not None and standing.state.model != conditions.model:
        raise OtherStateError(
            f"the model in {standing.config.model.path} is not the one that the run began with",
            fix="give model.path the files of then, or start a new run",
        )
    Checkpoints(folder.checkpoints).remove_after(standing.step)
    before = Conditions.read(folder.conditions)
    changed = [] if before is None else before.differences(conditions)
    if changed or not standing.journal_fits:
        folder.clear(folder.journal)
    conditions.write(folder.conditions)
    folder.clear(folder.weights)  # the learner writes them again, from the checkpoint
    folder.rewrite_config(standing.config)
    return changed if standing.journal_fits and standing.journaled else []


def _chosen(checkpoints: Checkpoints, step: int) -> Checkpoint:
    there = [checkpoint.step for checkpoint in checkpoints.all()]
    if step not in there:
        raise NoCheckpointError(
            f"there is no checkpoint of step {step}, but of {', '.join(map(str, there)) or 'none'}",
            fix="give one of these; training.keep_checkpoints sets how many are kept",
        )
    found = checkpoints.verify(step)
    if isinstance(found, Damaged):
        raise NoCheckpointError(f"the checkpoint of step {step} is damaged: {found.why}", fix="give another one")
    return found
