"""Functions and classes of your own, given in a recipe as `file.py:name`.

The file is imported once per process, and can import other files of its folder. Any failure in it becomes a
UserCodeError with the file and line. `Code` is a snapshot of the files, which can run on another node, and after the
files have been edited.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Literal, TypeVar, overload
from zlib import crc32

from mcprl.errors import McprlError, UserCodeError, did_you_mean
from mcprl.records import Observation, StopReason, Task, ToolCall, Turn

Probe = Callable[[ToolCall], Awaitable[Observation]]
Per = Literal["episode", "turn", "group"]
F = TypeVar("F", bound=Callable[..., Any])


class UserCode:
    """Runs the user's code: an exception of any kind becomes a UserCodeError with the file and line.

    with UserCode("/home/ana/losses.py:sapo"):
        loss_N = sapo(logprob_N, …)
    """

    def __init__(self, reference: str) -> None:
        self._reference = reference

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception | SystemExit) and not isinstance(error, McprlError):
            place = _place_of(error, trace, _file_of(self._reference))
            raise UserCodeError(
                f"{place}: {type(error).__name__}: {error}, in {self._reference}", fix="correct the code at this line"
            ) from error


@overload
def reward(function: F, /) -> F: ...
@overload
def reward(*, per: Per = "episode") -> Callable[[F], F]: ...
def reward(function: Any = None, /, *, per: Per = "episode") -> Any:
    """Mark a reward function, sync or async. Without the mark, a function is called per episode.

    per="episode"   f(episode) -> float            the value of the episode
    per="turn"      f(episode) -> list[float]      one value per turn; the episode's is their mean
    per="group"     f(episodes) -> list[float]     one value per episode of a group: all episodes of a task in a step
    """

    def mark(marked: F) -> F:
        vars(marked)["reward_per"] = per
        return marked

    return mark if function is None else mark(function)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeView:
    """A finished episode, as a reward function sees it.

    EpisodeView(task=Task(id="meet-ana", …), turns=(Turn(…), Turn(…)), answer="It is 23:30.", stop=StopReason.ANSWERED,
                parts={"answer": 1.0, "calls": 0.5, "invalid_call": 0.0, "unanswered": 0.0})

    `answer` is None if the episode ended without one. `parts` are the other parts of the reward.
    """

    task: Task
    turns: tuple[Turn, ...]
    answer: str | None
    stop: StopReason
    parts: Mapping[str, float]
    probing: Probe | None = None

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """Return all calls of the policy, in order."""
        return tuple(call for turn in self.turns for call in turn.calls)

    @property
    def observations(self) -> tuple[Observation, ...]:
        """Return the results of `calls`."""
        return tuple(seen for turn in self.turns for seen in turn.observations)

    async def probe(self, tool: str, **arguments: Any) -> Observation:
        """Call a tool on the episode's servers. The recipe must list the tool under `probes` of the function."""
        assert self.probing is not None
        return await self.probing(ToolCall(name=tool, arguments=arguments))


@dataclass(frozen=True, slots=True)
class Code:
    """A snapshot of the Python files in the folders of some functions, including packages.

    Code(references=("/home/ana/rewards.py:grounded",),
         files={"/home/ana/numbers.py": b"…", "/home/ana/rewards.py": b"…"})
    """

    references: tuple[str, ...]
    files: Mapping[str, bytes]

    @classmethod
    def read(cls, references: Iterable[str]) -> Code:
        references = tuple(dict.fromkeys(references))
        folders = sorted({_file_of(reference).parent for reference in references})
        return cls(references, {str(file): file.read_bytes() for folder in folders for file in _python_files(folder)})

    @property
    def digest(self) -> str:
        """A digest of the files. It does not depend on the location of their folder."""
        digest = hashlib.sha256()
        roots = {_file_of(reference).parent for reference in self.references}
        for name, text in sorted(self.files.items()):
            root = next(parent for parent in Path(name).parents if parent in roots)
            digest.update(f"{Path(name).relative_to(root)}\0".encode() + text + b"\0")
        return digest.hexdigest()

    def __or__(self, other: Code) -> Code:
        return Code(tuple(dict.fromkeys((*self.references, *other.references))), {**self.files, **other.files})

    def use(self) -> None:
        """From now on, let this process import these files from the snapshot instead of from the disk."""
        sys.meta_path.append(_Files(self))


def load_function(reference: str, setting: str) -> Callable[..., Any]:
    """Return the function or class `file.py:name`. Error messages mention `setting`."""
    file, name = _file_of(reference), reference.rpartition(":")[2]
    if not (file.is_file() or _held(file) is not None):
        raise UserCodeError(f"{setting} refers to {file}, which is not a file", fix="correct the path")
    found = getattr(_module(file), name, None)
    if callable(found):
        return found
    defined = [known for known, value in vars(_module(file)).items() if callable(value) and not known.startswith("_")]
    raise UserCodeError(
        f"{setting} refers to {name}, but {file} defines no such function or class{did_you_mean(name, defined)}",
        fix=f"define {name} in that file, or correct {setting}",
    )


@cache
def _module(file: Path) -> ModuleType:
    name, held = f"user_code_{crc32(bytes(file))}_{file.stem}", _held(file)
    spec = importlib.util.spec_from_file_location(name, file, loader=held)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module there
    if held is None and str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    with UserCode(f"{file}:import"):
        spec.loader.exec_module(module)
    return module


class _Text(SourceLoader):
    """Loads a module from in-memory text; tracebacks still name its file."""

    def __init__(self, file: str, text: bytes) -> None:
        self._file = file
        self._text = text

    def get_filename(self, fullname: str) -> str:
        return self._file

    def get_data(self, path: str | bytes) -> bytes:
        if path != self._file:
            raise FileNotFoundError(path)  # there is no bytecode
        return self._text


class _Files(MetaPathFinder):
    """Finds the modules of a `Code`."""

    def __init__(self, code: Code) -> None:
        self._files = code.files
        self._folders = sorted({str(_file_of(reference).parent) for reference in code.references})

    def loader(self, file: Path) -> _Text | None:
        return _Text(str(file), self._files[str(file)]) if str(file) in self._files else None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        name = fullname.rpartition(".")[2]
        for folder in self._folders if path is None else path:
            for file in (Path(folder, name, "__init__.py"), Path(folder, f"{name}.py")):
                if (loader := self.loader(file)) is not None:
                    return importlib.util.spec_from_file_location(fullname, file, loader=loader)
        return None


def _held(file: Path) -> _Text | None:
    finders = (finder for finder in sys.meta_path if isinstance(finder, _Files))
    return next(filter(None, (finder.loader(file) for finder in finders)), None)


def _python_files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.suffix == ".py" and path.is_file():
            yield path
        elif (path / "__init__.py").is_file():
            yield from _python_files(path)


def _file_of(reference: str) -> Path:
    return Path(reference.rpartition(":")[0])


def _place_of(error: Exception | SystemExit, trace: TracebackType | None, file: Path) -> str:
    """Return the innermost line of a traceback that is in the folder of `file`."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{error.filename}:{error.lineno}"
    own = [frame for frame in traceback.extract_tb(trace) if Path(frame.filename).parent == file.parent]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else str(file)
