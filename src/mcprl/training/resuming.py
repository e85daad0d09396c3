"""Where a run stands that ended before its time, and from where it goes on.

A run goes on from its newest whole checkpoint. Episodes that were finished after it are in the journal: they are used,
and not collected again, unless the settings that made them have changed.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from mcprl.config import RunConfig
from mcprl.errors import NoCheckpointError, NoRunError
from mcprl.recipe import load_recipe
from mcprl.training.checkpoints import Checkpoint, Checkpoints, Damaged
from mcprl.training.folder import RunFolder
from mcprl.training.journal import EpisodeJournal

__all__ = ["Standing", "find_standing", "take_up"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a run stands. Without a checkpoint, no step of it was finished, and it begins with the first.

    Standing(config=…, checkpoint=Checkpoint(step=12, …), damaged=(), journaled=9, journal_fits=True,
             rolled_back=(13, 14), problems=())

    `rolled_back` are the newer checkpoints that an older one was chosen over.
    """

    config: RunConfig
    checkpoint: Checkpoint | None
    damaged: tuple[Damaged, ...]
    journaled: int
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
    settings = folder.path / "config.yaml"
    as_it_was, config = load_recipe(settings, []), load_recipe(settings, list(overrides))
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
    newer = tuple(other.step for other in checkpoints.all() if from_step is not None and other.step > step)
    journal = EpisodeJournal(folder.journal)
    journaled = sum(len(journal.finished(kept)) for kept in journal.steps if kept >= step)
    return Standing(
        config=config,
        checkpoint=checkpoint,
        damaged=tuple(damaged),
        journaled=journaled,
        # Steps beyond an older checkpoint were played by weights that there will not be; other settings play otherwise.
        journal_fits=not newer and _plays_alike(as_it_was, config),
        rolled_back=newer,
        problems=tuple(journal.problems),
    )


def take_up(folder: RunFolder, standing: Standing) -> None:
    """Make the folder one of a run that stands there: what is newer, or made under other settings, goes."""
    Checkpoints(folder.checkpoints).remove_after(standing.step)
    if not standing.journal_fits:
        shutil.rmtree(folder.journal)
        folder.journal.mkdir()
    # Weights for the sampler are written anew from the checkpoint.
    shutil.rmtree(folder.weights)
    folder.weights.mkdir()
    folder.rewrite_config(standing.config)


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


# Settings that change neither what is played nor by which weights.
_WITHOUT_EFFECT = {"checkpoint_every", "keep_checkpoints", "shutdown_s", "outputs"}


def _plays_alike(one: RunConfig, other: RunConfig) -> bool:
    """Whether episodes of one configuration are those that the other would have played, by the same weights."""
    without_effect = {*_WITHOUT_EFFECT, "steps"} if one.learner.schedule == "constant" else _WITHOUT_EFFECT
    as_dicts = [config.model_dump(exclude={"name": True, "training": without_effect}) for config in (one, other)]
    return as_dicts[0] == as_dicts[1]
