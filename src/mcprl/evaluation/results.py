"""What an evaluation leaves behind as data: `results.json`, with a version of its schema, written and read back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import TypeAdapter, ValidationError

from mcprl.durable import write_file
from mcprl.errors import ConfigFileError
from mcprl.evaluation.figures import Figures, TaskResult
from mcprl.evaluation.outcomes import EpisodeOutcome

__all__ = ["FILE_NAME", "SCHEMA", "Evaluation", "ServerCost", "read_evaluation", "to_json", "write_evaluation"]

FILE_NAME: Final = "results.json"
SCHEMA: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCost:
    """What a tool server was used: ServerCost(calls=120, usd=0.12, restarts=0). A price is known where one is set."""

    calls: int
    usd: float
    restarts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """An evaluation, whole: what was played, with what, what came out of each episode, and the figures of it all.

    `lost` counts the attempts that the infrastructure failed, by code; all were played again, none is in a figure.
    `config` has every setting that was in force.
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
    tasks: tuple[TaskResult, ...]
    episodes: tuple[EpisodeOutcome, ...]
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def title(self) -> str:
        """What was evaluated, in a few words: the model and its adapter."""
        model = Path(self.model).name
        return model if self.adapter is None else f"{model} with {_adapter_name(Path(self.adapter))}"

    @property
    def usd(self) -> float:
        return sum(server.usd for server in self.servers.values())


def _adapter_name(path: Path) -> str:
    """`outputs/hello-cpu/adapter` is known by its run."""
    return f"{path.parent.name}/{path.name}" if path.name == "adapter" and path.parent.name else path.name


_EVALUATION: Final = TypeAdapter(Evaluation)


def to_json(evaluation: Evaluation) -> dict[str, Any]:
    """The evaluation as JSON values."""
    return _EVALUATION.dump_python(evaluation, mode="json")


def write_evaluation(folder: Path, evaluation: Evaluation, extra: Mapping[str, Any]) -> None:
    """Write `results.json`; `extra` are entries besides those of the evaluation, such as a comparison."""
    document = {**to_json(evaluation), **extra}
    # ASCII: a policy can write half of a surrogate pair, which is no UTF-8.
    write_file(folder / FILE_NAME, (json.dumps(document, indent=1, allow_nan=False) + "\n").encode())


def read_evaluation(folder: Path) -> Evaluation:
    """The evaluation in a folder, or in a `results.json` named itself. Raises ConfigFileError where there is none."""
    path = folder / FILE_NAME if folder.is_dir() else folder
    fix = "give the folder of an evaluation, such as outputs/eval-hello-cpu"
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
            f"{path} holds no evaluation of schema {SCHEMA}: {place}: {first['msg']}", fix=fix
        ) from error
    except (ValueError, AttributeError) as error:
        raise ConfigFileError(f"{path} holds no evaluation: {error}", fix=fix) from error
