"""Runs the checks of `mcprl doctor` one after the other, and keeps what they open for later checks.

A check is a small async function that looks at one thing and yields findings. It stores what it opens (the
configuration, the tools, the chat, trajectories) for later checks. If something that a check needs is missing, the
check is skipped and the others still run, so that one problem does not hide the next.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from mcprl.config import RunConfig
from mcprl.errors import McprlError
from mcprl.progress import Watcher
from mcprl.records import Message
from mcprl.tasks import TaskFile
from mcprl.tools import Catalog, ServerSpec, Toolbox
from mcprl.verdicts import Severity

if TYPE_CHECKING:
    from mcprl.chat import Chat
    from mcprl.checks.doctor.play_checks import PlayedSample

__all__ = [
    "Check",
    "Examination",
    "Finding",
    "Opened",
    "examine",
    "fine",
    "hub_folder",
    "needed_gpus",
    "passed",
    "skipped",
    "warning",
    "wrong",
    "wrong_by",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of a check. `severity` is None if the check was skipped; `fix` is empty if there is no problem.

    Finding(check="server directory", severity=Severity.OK, measured="2 tools; find_person answered in 4 ms")
    Finding(check="tasks and tools", severity=Severity.BAD, code="E-TOOL-003",
            measured="d03 offers 'tavily_filter', which no server lists (did you mean 'tavily_search'?)",
            fix="correct the task, or add a server that offers it")
    """

    check: str
    severity: Severity | None
    measured: str
    fix: str = ""
    code: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the finding as JSON. The severity is ok, warn, bad or skipped."""
        return {**asdict(self), "severity": "skipped" if self.severity is None else self.severity.value}


def fine(check: str, measured: str) -> Finding:
    return Finding(check=check, severity=Severity.OK, measured=measured)


def warning(check: str, measured: str, fix: str) -> Finding:
    return Finding(check=check, severity=Severity.WARN, measured=measured, fix=fix)


def wrong(check: str, measured: str, fix: str, code: str = "") -> Finding:
    return Finding(check=check, severity=Severity.BAD, measured=measured, fix=fix, code=code)


def wrong_by(check: str, error: McprlError) -> Finding:
    """Make a finding from an error, with its text, fix and code."""
    return Finding(check=check, severity=Severity.BAD, measured=error.what, fix=error.fix, code=error.code)


def skipped(check: str, why: str) -> Finding:
    return Finding(check=check, severity=None, measured=f"skipped: {why}")


def needed_gpus(config: RunConfig) -> int:
    """Return the number of GPUs that a recipe needs on this machine: 0 for SkyRL, whose server has its own GPUs."""
    if config.engine == "skyrl":
        return 0
    learner, placed = config.learner, config.placement
    named = max((*placed.sampler.devices, *placed.learner.devices), default=-1) + 1
    needs_one = learner.tuning == "lora_4bit" or bool(placed.learner.colocated)
    sampling = placed.sampler.tensor_parallel if placed.sampler.tensor_parallel > 1 else 0
    return max(named, sampling, learner.processes if learner.processes > 1 else int(needs_one))


def hub_folder(name: str) -> Path | None:
    """Return the folder of a hub model's newest snapshot in the local cache, or None if there is none."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    snapshots = cache / f"models--{name.replace('/', '--')}" / "snapshots"
    found = [path for path in snapshots.glob("*") if (path / "config.json").exists()]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


T = TypeVar("T")


class Opened(Generic[T]):
    """A value that an earlier check stores for later checks: Opened[RunConfig]("a recipe that loads")"""

    def __init__(self, words: str) -> None:
        self.words = words
        self._value: T | None = None

    @property
    def there(self) -> bool:
        return self._value is not None

    @property
    def value(self) -> T:
        if self._value is None:
            raise RuntimeError(f"no earlier check has found {self.words}")
        return self._value

    def put(self, value: T) -> None:
        self._value = value


@dataclass(slots=True, kw_only=True)
class Examination:
    """A recipe under examination. `folder` is for logs and weights; the caller deletes it.

    `stack` closes everything at the end. `servers_stack` closes the servers that were started one by one, before a
    stage starts them together: two copies of a server may want the same port. `memory_bytes` is the measured memory of
    the parts of a run, and `state_bytes` the size of a checkpoint. Both are known only after a model was loaded.
    """

    recipe: Path
    folder: Path
    teller: Watcher
    overrides: Sequence[str] = ()
    fast: bool = False
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    servers_stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    config: Opened[RunConfig] = field(default_factory=lambda: Opened("a recipe that loads"))
    tasks: Opened[TaskFile] = field(default_factory=lambda: Opened("tasks that can be read"))
    preamble: Opened[tuple[Message, ...]] = field(default_factory=lambda: Opened("a preamble that can be read"))
    specs: Opened[tuple[ServerSpec, ...]] = field(
        default_factory=lambda: Opened("an mcpServers file that can be read, and its keys")
    )
    toolboxes: Opened[dict[str, Toolbox]] = field(default_factory=lambda: Opened("servers that start"))
    catalog: Opened[Catalog] = field(default_factory=lambda: Opened("servers that all start and list their tools"))
    model: Opened[str] = field(default_factory=lambda: Opened("a complete model on this machine"))
    chat: Opened[Chat] = field(default_factory=lambda: Opened("a chat template that works"))
    sample: Opened[PlayedSample] = field(default_factory=lambda: Opened("episodes that were played"))
    memory_bytes: dict[str, int] = field(default_factory=dict[str, int])
    state_bytes: int | None = None
    learner_tokens_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check: Check(name="keys", run=check_keys, needs=lambda e: (e.config,))

    `after` names findings. If one of them is bad, this check is skipped, because it would find the same problem again.
    `loads_model` means that it loads a model or its libraries, so --fast skips it.
    """

    name: str
    run: Callable[[Examination], AsyncIterator[Finding]]
    needs: Callable[[Examination], tuple[Opened[Any], ...]] = lambda _: ()
    after: Collection[str] = ()
    loads_model: bool = False


async def examine(
    examination: Examination, checks: Iterable[Check], tell: Callable[[Finding], None] = lambda _: None
) -> tuple[Finding, ...]:
    """Run the checks in order, then close everything. `tell` is called with each finding immediately."""
    found: list[Finding] = []

    def add(finding: Finding) -> None:
        found.append(finding)
        tell(finding)

    async with examination.stack, examination.servers_stack:
        for check in checks:
            faults = [other.check for other in found if other.severity is Severity.BAD and other.check in check.after]
            missing = [need.words for need in check.needs(examination) if not need.there]
            missing += [f"{name!r} to be fixed first" for name in faults]
            if check.loads_model and examination.fast:
                add(skipped(check.name, "--fast loads no model"))
            elif missing:
                add(skipped(check.name, f"needs {missing[0]}"))
            else:
                examination.teller.stage(f"checking: {check.name}")
                try:
                    async for finding in check.run(examination):
                        add(finding)
                except McprlError as error:
                    add(wrong_by(check.name, error))
    return tuple(found)


def passed(findings: Iterable[Finding]) -> bool:
    """Return True if there are no errors, so that a run could start."""
    return all(finding.severity is not Severity.BAD for finding in findings)
