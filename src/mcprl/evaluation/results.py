"""Reads and writes `results.json`, the versioned data of an evaluation, and compares two evaluations."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from statistics import fmean
from typing import Any, Final, Literal

from pydantic import TypeAdapter, ValidationError

from mcprl.episodes.endpoint import EndpointUse
from mcprl.errors import BadValueError, ConfigFileError
from mcprl.evaluation.outcomes import EpisodeOutcome
from mcprl.evaluation.statistics import (
    CONFIDENCE,
    Estimate,
    Figures,
    TaskResult,
    difference_interval,
    mean_interval,
    sign_flip_p,
)
from mcprl.files import write_file

FILE_NAME: Final = "results.json"
SCHEMA: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCost:
    """Usage of a tool server: ServerCost(calls=120, usd=0.12, restarts=0). `usd` is 0 if calls have no price."""

    calls: int
    usd: float
    restarts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """A whole evaluation: what was evaluated, the outcome of each episode, and the figures.

    `lost` counts the attempts lost to infrastructure faults, by error code. All of them were run again, and no figure
    includes them. `config` has every setting. `endpoint` is None if mcprl itself ran the model.
    """

    schema: Literal[1] = SCHEMA
    name: str
    suite: str
    model: str
    adapter: str | None
    started: str
    seconds: float
    mcprl: str
    tasks_in_suite: int
    figures: Figures
    lost: Mapping[str, int] = field(default_factory=dict[str, int])
    servers: Mapping[str, ServerCost] = field(default_factory=dict[str, ServerCost])
    endpoint: EndpointUse | None = None
    tasks: tuple[TaskResult, ...]
    episodes: tuple[EpisodeOutcome, ...]
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def title(self) -> str:
        """Return the names of the model and its adapter."""
        model = Path(self.model).name
        return model if self.adapter is None else f"{model} with {_adapter_name(Path(self.adapter))}"

    @property
    def usd(self) -> float:
        endpoint = 0.0 if self.endpoint is None else self.endpoint.usd or 0.0
        return endpoint + sum(server.usd for server in self.servers.values())


def _adapter_name(path: Path) -> str:
    """Shorten the path of an adapter: `outputs/hello-cpu/adapter` becomes hello-cpu/adapter."""
    return f"{path.parent.name}/{path.name}" if path.name == "adapter" and path.parent.name else path.name


_EVALUATION: Final = TypeAdapter(Evaluation)


def to_json(evaluation: Evaluation) -> dict[str, Any]:
    return _EVALUATION.dump_python(evaluation, mode="json")


def write_evaluation(folder: Path, evaluation: Evaluation, extra: Mapping[str, Any]) -> None:
    """Write `results.json`. `extra` are further entries, such as a comparison."""
    document = {**to_json(evaluation), **extra}
    # ASCII, because a policy can write half of a surrogate pair, which UTF-8 cannot encode.
    write_file(folder / FILE_NAME, (json.dumps(document, indent=1, allow_nan=False) + "\n").encode())


def read_evaluation(folder: Path) -> Evaluation:
    """Read the evaluation in a folder or in a `results.json` file. Raises ConfigFileError if there is none."""
    path = folder / FILE_NAME if folder.is_dir() else folder
    fix = "pass the folder of an evaluation, such as outputs/eval-hello-cpu"
    try:
        document: dict[str, Any] = json.loads(path.read_bytes())
        document = {name: value for name, value in document.items() if name in Evaluation.__dataclass_fields__}
        return _EVALUATION.validate_python(document)
    except OSError as error:
        raise ConfigFileError(f"{path} cannot be read: {error.strerror}", fix=fix) from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise ConfigFileError(
            f"{path} does not contain an evaluation in schema version {SCHEMA}: {place}: {first['msg']}", fix=fix
        ) from error
    except (ValueError, AttributeError) as error:
        raise ConfigFileError(f"{path} does not contain an evaluation: {error}", fix=fix) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskChange:
    """The success of a task before and after: TaskChange(id="meet-ana", category="medium", before=0.25, after=1.0)."""

    id: str
    category: str
    before: float
    after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryChange:
    """The success of a category before and after, and the mean difference of its tasks."""

    tasks: int
    before: float
    after: float
    difference: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A comparison of two evaluations on the tasks that both have.

    `p` is the p-value of the exact paired test of success. `changes` has every task. `left_out` are tasks that only one
    of the two has, or that differ between them. `other_settings` are settings, other than the weights, that differ and
    may explain the difference.

    Comparison(before_name="smollm2-135m", after_name="smollm2-135m with hello-cpu/adapter", tasks=4, before=0.0,
               after=0.5, difference=Estimate(value=0.5, low=-0.1, high=0.8), p=0.25, won=2, lost=0, …)
    """

    before_name: str
    after_name: str
    tasks: int
    before: float
    after: float
    difference: Estimate
    p: float
    reward_difference: Estimate
    won: int
    lost: int
    categories: Mapping[str, CategoryChange]
    changes: tuple[TaskChange, ...]
    left_out: tuple[str, ...] = ()
    other_settings: Mapping[str, tuple[str, str]]

    @property
    def verdict(self) -> str:
        """Return the result of the comparison as one sentence."""
        if not self.p <= 1.0 - CONFIDENCE:
            return "No significant difference."
        return "Significantly better." if self.difference.value > 0 else "Significantly worse."


# Settings that normally differ between two versions of the weights.
_COMPARED: Final = ("name", "model.path", "learner", "training", "algorithm", "tasks.train", "workers")


def compare(before: Evaluation, after: Evaluation) -> Comparison:
    """Compare two evaluations. Raises BadValueError if they have no tasks in common."""
    olds = {task.id: task for task in before.tasks}
    pairs = [(old, new) for new in after.tasks if (old := olds.get(new.id)) and old.fingerprint == new.fingerprint]
    if not pairs:
        raise BadValueError(
            f"{before.name} and {after.name} have no tasks in common", fix="compare evaluations of the same tasks"
        )
    paired = {new.id for _, new in pairs}
    names = dict.fromkeys(task.id for task in (*before.tasks, *after.tasks))
    differences = [_share(new) - _share(old) for old, new in pairs]
    changes = [
        TaskChange(id=new.id, category=new.category, before=float(_share(old)), after=float(_share(new)))
        for old, new in pairs
    ]
    return Comparison(
        before_name=before.title,
        after_name=after.title,
        tasks=len(pairs),
        before=fmean([change.before for change in changes]),
        after=fmean([change.after for change in changes]),
        difference=difference_interval([float(d) for d in differences]),
        p=sign_flip_p(differences),
        reward_difference=mean_interval([new.reward - old.reward for old, new in pairs]),
        won=sum(d > 0 for d in differences),
        lost=sum(d < 0 for d in differences),
        categories=_by_category(after, changes),
        changes=tuple(changes),
        left_out=tuple(name for name in names if name not in paired),
        other_settings=_other_settings(before.config, after.config),
    )


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    return _COMPARISON.dump_python(comparison, mode="json")


_COMPARISON: Final = TypeAdapter(Comparison)


def _share(task: TaskResult) -> Fraction:
    return Fraction(task.solved, task.episodes)


def _by_category(after: Evaluation, changes: Sequence[TaskChange]) -> dict[str, CategoryChange]:
    found: dict[str, CategoryChange] = {}
    for name in after.figures.categories:
        of_category = [change for change in changes if change.category == name]
        if of_category:
            found[name] = CategoryChange(
                tasks=len(of_category),
                before=fmean([change.before for change in of_category]),
                after=fmean([change.after for change in of_category]),
                difference=difference_interval([change.after - change.before for change in of_category]),
            )
    return found


def _other_settings(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    old, new = _leaves(before), _leaves(after)
    names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    return {
        name: (old.get(name, "–"), new.get(name, "–"))
        for name in names
        if not any(f"{name}.".startswith(f"{compared}.") for compared in _COMPARED)
    }


def _leaves(section: Mapping[str, Any], path: str = "") -> dict[str, str]:
    """Return every setting by its dotted name."""
    found: dict[str, str] = {}
    for name, value in section.items():
        here = f"{path}.{name}" if path else name
        found |= _leaves(value, here) if isinstance(value, dict) else {here: str(value)}  # pyright: ignore[reportUnknownArgumentType]
    return found
