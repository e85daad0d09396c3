"""Finds the point from which an interrupted run resumes.

A run resumes from its newest complete checkpoint. Episodes that finished later are in the journal. They are reused
instead of being rerun, unless they ran under different conditions (`Conditions`).
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from mcprl.config import RunConfig
from mcprl.errors import NoCheckpointError, NoRunError, OtherStateError
from mcprl.files import canonical_json, storage_faults, write_file
from mcprl.functions import Code
from mcprl.recipe import load_recipe
from mcprl.records import Task
from mcprl.runs.checkpoints import Checkpoint, Checkpoints, Damaged, RunState, read_state
from mcprl.runs.folder import RunFolder
from mcprl.runs.journal import EpisodeJournal
from mcprl.tools import Tool

# Settings that give a file or folder. Its content is compared by digest; the path may change.
_LOCATIONS = frozenset({"model.path", "model.adapter", "tasks.train", "servers.file", "servers.cassette"})
# Settings that change neither the episodes, nor their rewards, nor the weights.
_WITHOUT_EFFECT_ON_EPISODES = (
    "placement.",
    "tracking.",
    "training.checkpoint_every",
    "training.keep_checkpoints",
    "workers.",
)
# Settings that a resumed run cannot change, and why.
_FIXED = {
    "name": "the run's folder and trackers use it",
    "engine": "one engine cannot read the other's checkpoints",
    "model.dtype": "the checkpoint contains weights of the previous type",
    "learner.tuning": "the checkpoint contains weights trained with the previous setting",
    "learner.lora_rank": "the adapter in the checkpoint has the previous rank",
    "learner.lora_alpha": "the adapter in the checkpoint was trained with the previous scale",
    "learner.sharding": "the checkpoint has the previous sharding",
    "training.outputs": "a run cannot move to another folder",
    "sft.data": "the run must keep the conversations that it started with",
    "tasks.order": "the checkpoint contains state for the previous task order",
}
_FIXED_WITH_SKYRL = dict.fromkeys(
    ("skyrl.url", "skyrl.backend", "skyrl.backend_config"), "the checkpoint is on the previous server"
)
_WEIGHTS = (".safetensors", ".bin", ".gguf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """The conditions under which episodes ran: settings, nested as in the recipe, and digests of files that they name.

    Conditions(settings={"name": "hello", …}, tasks="6f1c…", tools="09aa…", servers="77b0…", model="c14e…",
               code="e3b0…")
    """

    settings: dict[str, Any]
    tasks: str
    tools: str
    servers: str
    model: str
    code: str

    @classmethod
    def of(
        cls, config: RunConfig, tasks: Sequence[Task], tools: Iterable[Tool], code: Code | None = None
    ) -> Conditions:
        """Compute the conditions. Reads the whole model folder, which takes seconds for a large model.

        `code` is the code of the reward functions that score the episodes.
        """
        files = [
            config.servers.file,
            config.servers.cassette if config.servers.cassette_mode in {"replay", "mixed"} else None,
        ]
        return cls(
            settings=config.model_dump(mode="json"),
            tasks=_digest(*map(repr, tasks)),
            tools=_digest(canonical_json([asdict(tool) for tool in tools])),
            servers=_digest(*(path.read_bytes() for path in files if path is not None)),
            model=_model_digest(config.model.path, config.model.adapter),
            code=(Code.read(config.own_functions) | (code or Code((), {}))).digest,
        )

    def write(self, path: Path) -> None:
        write_file(path, (json.dumps(asdict(self), indent=1) + "\n").encode())

    @classmethod
    def read(cls, path: Path) -> Conditions | None:
        """Read the conditions from a file; None if the file does not exist."""
        with storage_faults(f"reading {path}"):
            if not path.exists():
                return None
            text = path.read_bytes()
        try:
            return _CONDITIONS.validate_json(text)
        except ValidationError as error:
            raise OtherStateError(
                f"{path} was not written by this version of mcprl: {error.errors()[0]['msg']}",
                fix="resume with the version of mcprl that started the run",
            ) from error

    def differences(self, now: Conditions) -> list[str]:
        """Return the differences from `now` that make episodes of these conditions useless."""
        changed = [name for name in changed_settings(self.settings, now.settings) if _touches_episodes(name, now)]
        digests = (field.name for field in fields(self) if field.name != "settings")
        return changed + [f"the {name}" for name in digests if getattr(self, name) != getattr(now, name)]


_CONDITIONS = TypeAdapter(Conditions)


def changed_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the settings that differ, with both values. Files and folders are left out.

    >>> changed_settings({"learner": {"warmup_steps": 0}}, {"learner": {"warmup_steps": 5}})
    {'learner.warmup_steps': (0, 5)}
    """
    old, new = dict(_leaves(before)), dict(_leaves(now))
    names = [*old, *(name for name in new if name not in old)]
    pairs = {name: (old.get(name), new.get(name)) for name in names if name not in _LOCATIONS}
    return {name: (was, is_now) for name, (was, is_now) in pairs.items() if was != is_now}


def refuse_fixed_settings(before: Mapping[str, Any], now: RunConfig, *, steps_done: int) -> None:
    """Raise OtherStateError if a checkpoint saved with the settings `before` cannot be resumed with `now`."""
    try:
        was = RunConfig.model_validate(before)
    except ValidationError as error:
        problem = error.errors()[0]
        why = "no longer exists" if problem["type"] == "extra_forbidden" else "is no longer valid"
        raise OtherStateError(
            f"another version of mcprl started the run: setting {'.'.join(map(str, problem['loc']))} {why}",
            fix="resume with the version of mcprl that started the run",
        ) from error
    changed = changed_settings(before, now.model_dump(mode="json"))
    fixed = _FIXED | (_FIXED_WITH_SKYRL if now.engine == "skyrl" else {})
    reasons = {name: fixed[_setting(name, fixed)] for name in changed if _setting(name, fixed) in fixed}
    if "skyrl" not in (was.engine, now.engine):
        reasons.pop("engine", None)  # vLLM and transformers sample for the same learner
    if was.algorithm.has_critic != now.algorithm.has_critic:
        reasons["algorithm.advantages"] = "the checkpoint was saved " + (
            "with a value head" if was.algorithm.has_critic else "without a value head"
        )
    if _reference(was) != _reference(now):
        why = f"the reference policy saved in the checkpoint is {_reference(was) or 'none'}"
        reasons |= {name: why for name in changed if name.startswith("algorithm.kl.")}
    if now.training.steps < steps_done:
        reasons["training.steps"] = f"{steps_done} steps are already done"
    if reasons:
        listed = (f"{name} from {changed[name][0]} to {changed[name][1]} ({why})" for name, why in reasons.items())
        raise OtherStateError(
            f"a resumed run cannot change {'; '.join(listed)}",
            fix=f"restore the previous value of {', '.join(reasons)}, or start a new run",
        )


def _setting(name: str, known: Mapping[str, str]) -> str:
    """Return the setting that a leaf belongs to: skyrl.backend_config for skyrl.backend_config.max_lora_adapters."""
    return next((setting for setting in known if name == setting or name.startswith(f"{setting}.")), name)


def _reference(config: RunConfig) -> str | None:
    """Return the reference policy that a checkpoint contains in addition to the policy."""
    kl = config.algorithm.kl
    return kl.reference if kl.needs_reference and kl.reference != "base" else None


def _touches_episodes(name: str, now: Conditions) -> bool:
    if name == "training.steps":  # the learning rate schedule depends on it
        return now.settings["learner"]["schedule"] != "constant"
    return not name.startswith(_WITHOUT_EFFECT_ON_EPISODES)


def _leaves(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping) and value:
            yield from _leaves(cast("Mapping[str, Any]", value), f"{name}.")
        else:
            yield name, value


def _digest(*parts: str | bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part if isinstance(part, bytes) else part.encode())
        digest.update(b"\0")
    return digest.hexdigest()


def _model_digest(location: str, adapter: Path | None) -> str:
    """Return a digest of the model and of the adapter that training starts from."""
    model = _digest_of_model(location)
    return model if adapter is None else _digest(model, _digest_of_model(str(adapter)))


def _digest_of_model(location: str) -> str:
    """Return a digest of a model folder's files or, for a Hugging Face name, the revision in the cache."""
    folder = Path(location)
    if not folder.is_dir():
        from huggingface_hub import try_to_load_from_cache

        config = try_to_load_from_cache(location, "config.json")
        return Path(config).parent.name if isinstance(config, str) else location
    parts: list[str | bytes] = []
    with storage_faults(f"reading {folder}"):
        for path in sorted(path for path in folder.iterdir() if path.is_file()):
            # CRC for gigabytes of weights: SHA-256 takes three times as long, and this must only detect accidents.
            parts += [path.name, str(_checksum(path)) if path.suffix in _WEIGHTS else path.read_bytes()]
    return _digest(*parts)


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            checksum = zlib.crc32(block, checksum)
    return checksum


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """The point from which a run resumes. Without a checkpoint, it starts from the first step.

    ResumePoint(config=…, checkpoint=Checkpoint(step=12, …), state=RunState(step=12, …), damaged=(), journaled=9,
             changed={"learner.learning_rate": (0.001, 1e-05)}, journal_fits=False, rolled_back=(13, 14), problems=())

    `changed` holds the settings that differ from the checkpoint's, with both values. `rolled_back` holds the steps of
    newer checkpoints that will be discarded.
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
        """The number of steps done."""
        return 0 if self.checkpoint is None else self.checkpoint.step


def find_resume_point(folder: RunFolder, overrides: Sequence[str] = (), from_step: int | None = None) -> ResumePoint:
    """Inspect the folder of a run and verify its checkpoints. Changes nothing.

    `from_step` selects an older checkpoint to restart from.
    """
    config = load_recipe(folder.config_file, list(overrides))
    if config.sft is not None:
        config = config.for_sft()
    checkpoints = Checkpoints(folder.checkpoints)
    checkpoint, damaged = checkpoints.newest() if from_step is None else (_chosen(checkpoints, from_step), [])
    # An unfinished checkpoint loses nothing, because its episodes are still in the journal.
    broken = [found for found in damaged if not found.path.name.startswith(".")]
    if checkpoint is None and broken:
        raise NoCheckpointError(
            f"all checkpoints in {folder.checkpoints} are damaged: {broken[0].path.name}: {broken[0].why}",
            fix="start a new run, or delete the checkpoints folder to restart this run from its first step",
        )
    step = 0 if checkpoint is None else checkpoint.step
    # Without a summary, the run stopped after its last checkpoint and only has to be finished.
    if step >= config.training.steps and (folder.path / "summary.json").exists():
        raise NoRunError(
            f"{folder.path} has finished all of its {step} steps",
            fix=f"add steps, for example --set {'training' if config.sft is None else 'sft'}.steps={step + 100}, or "
            "choose another run",
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
    return ResumePoint(
        config=config,
        checkpoint=checkpoint,
        state=state,
        damaged=tuple(damaged),
        journaled=journaled,
        changed={} if before is None else changed_settings(before.settings, now),
        # The journaled episodes after an older checkpoint were sampled from weights that this run will not have.
        journal_fits=not newer
        and played_under is not None
        and not played_under.differences(replace(played_under, settings=now)),
        rolled_back=newer,
        problems=tuple(journal.problems),
    )


def compare_conditions(folder: RunFolder, resume_point: ResumePoint, conditions: Conditions) -> list[str]:
    """Prepare the folder for resuming under these conditions: remove everything that does not match them.

    Returns the changes, other than settings, that caused journaled episodes to be discarded.
    """
    if resume_point.state is not None and resume_point.state.model != conditions.model:
        raise OtherStateError(
            f"the model in {resume_point.config.model.path} differs from the model that the run started with",
            fix="restore the files in model.path, or start a new run",
        )
    Checkpoints(folder.checkpoints).remove_after(resume_point.step)
    before = Conditions.read(folder.conditions)
    changed = [] if before is None else before.differences(conditions)
    if changed or not resume_point.journal_fits:
        folder.clear(folder.journal)
    conditions.write(folder.conditions)
    folder.clear(folder.weights)  # the learner writes them again from the checkpoint
    folder.rewrite_config(resume_point.config)
    return changed if resume_point.journal_fits and resume_point.journaled else []


def _chosen(checkpoints: Checkpoints, step: int) -> Checkpoint:
    there = [checkpoint.step for checkpoint in checkpoints.all()]
    if step not in there:
        raise NoCheckpointError(
            f"there is no checkpoint of step {step}; the run has checkpoints of steps: "
            f"{', '.join(map(str, there)) or 'none'}",
            fix="use one of these steps; training.keep_checkpoints sets how many are kept",
        )
    found = checkpoints.verify(step)
    if isinstance(found, Damaged):
        raise NoCheckpointError(
            f"the checkpoint of step {step} is damaged: {found.why}", fix="choose another checkpoint"
        )
    return found
