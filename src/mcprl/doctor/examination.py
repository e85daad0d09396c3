"""The examination of a recipe: what is open of it, and the checks, run one after the other.

A check is a small async function that looks at one thing and yields findings. What it opens on the way (the
configuration, the tools, the chat, trajectories) it puts where later checks find it; a check whose needs are not there
is shown as skipped, and all others run: one fault does not hide the next.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from mcprl.config import RunConfig
from mcprl.doctor.findings import Finding, skipped, wrong_by
from mcprl.errors import McprlError
from mcprl.records import Message
from mcprl.tasks import TaskFile
from mcprl.tools import Catalog, ServerSpec, Toolbox
from mcprl.training.watching import Watcher
from mcprl.verdicts import Severity

if TYPE_CHECKING:
    from mcprl.chat import Chat
    from mcprl.doctor.play_checks import PlayedSample

__all__ = ["Check", "Examination", "Opened", "examine", "passed"]

T = TypeVar("T")


class Opened(Generic[T]):
    """Something that later checks need, there once an earlier one has put it there.

    config = Opened[RunConfig]("a recipe that loads")
    config.there    # False
    config.put(load_recipe(path))
    config.value.name
    """

    def __init__(self, words: str) -> None:
        self.words = words
        self._value: T | None = None

    @property
    def there(self) -> bool:
        return self._value is not None

    @property
    def value(self) -> T:
        if self._value is None:
            raise RuntimeError(f"the examination has not come to {self.words} yet")
        return self._value

    def put(self, value: T) -> None:
        self._value = value


@dataclass(slots=True, kw_only=True)
class Examination:
    """A recipe under examination. `folder` takes logs and weights, and is thrown away by whoever made it.

    What is opened is ended with `stack`, at the end; the servers that were opened one by one with `servers_stack`,
    before a stage starts them together: two of one server may want the same port. `memory_bytes` is what parts of a run
    were seen to hold, `state_bytes` what a checkpoint will take: both are known only after a model was loaded.
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
    model: Opened[str] = field(default_factory=lambda: Opened("a whole model on this machine"))
    chat: Opened[Chat] = field(default_factory=lambda: Opened("a chat template that can be used"))
    sample: Opened[PlayedSample] = field(default_factory=lambda: Opened("episodes that were played"))
    memory_bytes: dict[str, int] = field(default_factory=dict[str, int])
    state_bytes: int | None = None
    learner_tokens_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing to look at: Check(name="keys", run=check_keys, needs=lambda e: (e.config,))

    `after` names findings that must not be bad: it would only meet the same fault again. `dear`: it loads a model or
    its libraries, so --fast leaves it out.
    """

    name: str
    run: Callable[[Examination], AsyncIterator[Finding]]
    needs: Callable[[Examination], tuple[Opened[Any], ...]] = lambda _: ()
    after: tuple[str, ...] = ()
    dear: bool = False


async def examine(
    examination: Examination, checks: Iterable[Check], tell: Callable[[Finding], None] = lambda _: None
) -> tuple[Finding, ...]:
    """Run the checks in their order; `tell` hears of each finding as it is made. Nothing is left open afterwards."""
    found: list[Finding] = []

    def add(finding: Finding) -> None:
        found.append(finding)
        tell(finding)

    async with examination.stack, examination.servers_stack:
        for check in checks:
            missing = [need.words for need in check.needs(examination) if not need.there]
            missing += [
                f"{other.check!r} mended first"
                for other in found
                if other.severity is Severity.BAD and other.check in check.after
            ]
            if check.dear and examination.fast:
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
    """Whether a run could be started: nothing was found wrong."""
    return all(finding.severity is not Severity.BAD for finding in findings)
