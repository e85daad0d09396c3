"""Runs inside the sandbox: confines itself, waits for one program, runs it, reports the result, and exits.

It imports only a little of the standard library, because it is started for every program. It reads two messages from
its standard input (its limits, then the program) and writes two to a result pipe ("ready", then the report). The
program can write to that pipe too, so it can forge its own report, but nothing else.
"""

from __future__ import annotations

import _ast
import marshal
import os
import resource
import sys

TYPE_CHECKING = False  # importing typing would take half as long as all other imports
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

MAX_DEPTH = 64
"""The maximum nesting in a report, far below the limits of JSON libraries."""

_HEADER_BYTES = 4
_SOURCE_CHARS = 160
_MESSAGE_CHARS = 2000
_ONLY_AST = 0x400  # ast.PyCF_ONLY_AST, without the 2 ms of importing ast
_SET_DEATH_SIGNAL = 1
_SET_NO_NEW_PRIVILEGES = 38
_SECCOMP_FILTER_ALL_THREADS = (1, 1)
_SECCOMP_NUMBER = {"x86_64": 317, "aarch64": 277}
_TOO_LARGE = '{"limit": "result"}'
_SPARE = bytearray(1 << 20)  # freed when memory runs out, so that the worker can report that
_ESCAPES = {code: f"\\u{code:04x}" for code in range(32)} | {ord('"'): '\\"', ord("\\"): "\\\\", ord("\n"): "\\n"}


def main(result_pipe: int) -> None:
    setup = _receive()
    _confine(setup)
    sys.path.extend(setup["packages"])
    preset = {name: __import__(module) for name, module in setup["preload"].items()}
    _send(result_pipe, b"ready")
    program = _receive()
    report = _run(program["steps"], preset | program["names"], setup["result_bytes"])
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None:
            stream.flush()
    message = report.encode(errors="replace")
    _send(result_pipe, message if len(message) <= setup["result_bytes"] else _TOO_LARGE.encode())
    # Skips the program's threads and exit handlers, because they might never end.
    os._exit(0)


def _receive() -> dict[str, Any]:
    size = int.from_bytes(_read_exactly(_HEADER_BYTES), "big")
    return marshal.loads(_read_exactly(size))


def _read_exactly(size: int) -> bytes:
    parts: list[bytes] = []
    while size:
        part = os.read(0, min(size, 1 << 20))
        if not part:
            os._exit(0)  # the server has ended
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _send(pipe: int, message: bytes) -> None:
    rest = memoryview(len(message).to_bytes(_HEADER_BYTES, "big") + message)
    while rest:
        rest = rest[os.write(pipe, rest) :]


def _confine(setup: dict[str, Any]) -> None:
    """Set the limits, then the user, then the filter: each step needs privileges that the next one removes."""
    for name, bound in setup["limits"].items():
        kind = getattr(resource, name)
        # At the limit of CPU time the code gets SIGXCPU, which names the reason, and SIGKILL a second later.
        resource.setrlimit(kind, (bound, bound + 1 if name == "RLIMIT_CPU" else bound))
    if setup["user"] is not None:
        os.setgroups([])
        os.setresgid(*[setup["user"]] * 3)
        os.setresuid(*[setup["user"]] * 3)
    if setup["filter"] is not None:
        _install_filter(setup["filter"])
    elif sys.platform == "linux":
        # Without a sandbox, this at least ends the process with its parent.
        _call_libc("prctl", _SET_DEATH_SIGNAL, 9, 0, 0, 0)


def _install_filter(instructions: bytes) -> None:
    from array import array

    code = array("B", instructions)
    address, _ = code.buffer_info()
    # struct sock_fprog: number of instructions, padding, address.
    length = (len(instructions) // 8).to_bytes(2, sys.byteorder)
    program = length + bytes(6) + address.to_bytes(8, sys.byteorder)
    if _call_libc("prctl", _SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
        raise OSError("the kernel does not support PR_SET_NO_NEW_PRIVS")
    if _call_libc("syscall", _SECCOMP_NUMBER[os.uname().machine], *_SECCOMP_FILTER_ALL_THREADS, program) != 0:
        raise OSError("the kernel does not accept the seccomp filter")


def _call_libc(function: str, *arguments: int | bytes) -> int:
    """Call a function of the C library as ctypes does, but without importing all of ctypes."""
    import _ctypes

    libc = _ctypes.dlopen(None, os.RTLD_NOW)  # pyright: ignore[reportArgumentType] - None: this very process
    return _ctypes.call_function(_ctypes.dlsym(libc, function), arguments)


class _Attempt:
    """Converts any exception of the program to a report. None of them is the worker's fault."""

    report: str | None = None

    def __enter__(self) -> _Attempt:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        _SPARE.clear()
        if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
            return True
        self.report = _json({"error": _described(error, trace)}, None)
        return True


def _run(steps: list[dict[str, str]], names: dict[str, Any], bound: int) -> str:
    """Run the steps in order, each on the value of the previous one. Return the report as JSON."""
    value: Any = None
    for index, step in enumerate(steps):
        module = type(sys)("__main__")
        sys.modules["__main__"] = module
        if index:
            names = {**names, "data": value}
        module.__dict__.update(names, exit=sys.exit, quit=sys.exit)
        with _Attempt() as attempt:
            value = _value_of(step["code"], f"<{step['name']}>", module.__dict__)
            if value is None and index < len(steps) - 1:
                value = module.__dict__.get("data")
        if attempt.report is not None:
            return attempt.report
    with _Attempt() as attempt:
        # Check the length of a text before encoding it, because encoding a huge text takes long.
        return _TOO_LARGE if isinstance(value, str) and len(value) > bound else report_of_value(value)
    return attempt.report or "{}"


def _value_of(code: str, file: str, namespace: dict[str, Any]) -> Any:
    """Return the value of the last expression, or of the variable `result` if that value is None or missing."""
    tree: Any = compile(code, file, "exec", _ONLY_AST, dont_inherit=True)
    value = None
    if tree.body and isinstance(tree.body[-1], _ast.Expr):
        last = tree.body.pop()
        exec(compile(tree, file, "exec", dont_inherit=True), namespace)
        value = eval(compile(_ast.Expression(last.value), file, "eval", dont_inherit=True), namespace)
    else:
        exec(compile(tree, file, "exec", dont_inherit=True), namespace)
    return namespace.get("result") if value is None else value


def _described(error: BaseException, trace: TracebackType | None) -> dict[str, Any]:
    """Return what the policy needs to fix its code: the exception and its line."""
    file, line = "", 0
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if name.startswith("<") and not name.startswith("<frozen"):
            file, line = name.strip("<>"), trace.tb_lineno
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and error.filename and error.filename.startswith("<"):
        file, line, message = error.filename.strip("<>"), error.lineno or 0, str(error.msg)
    else:
        message = str(error)
    return {"type": type(error).__name__, "message": message[:_MESSAGE_CHARS], "step": file, "line": line}


def report_of_value(value: Any) -> str:
    """Return the report of a program that ended normally: its value as JSON, and its text if that differs."""
    if value is None:
        return "{}"
    if isinstance(value, (bool, int, float, dict, list, tuple, set, frozenset)):
        return _json({"value": value}, None)
    return _json({"value": value, "shown": str(value)}, None)


def _json(value: Any, within: frozenset[int] | None) -> str:
    """Convert any value to JSON. A value that JSON cannot express becomes the closest JSON value, or its text."""
    if value is None or value is True or value is False:
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return f'"{value.translate(_ESCAPES)}"'
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(text := float.__repr__(value), text)
    within = within or frozenset()
    if id(value) in within:
        raise ValueError("the result contains itself")
    if len(within) == MAX_DEPTH:
        raise ValueError(f"the result is nested more than {MAX_DEPTH - 1} levels deep")
    within |= {id(value)}
    if _is(value, dict):
        return "{" + ", ".join(f"{_key(key)}: {_json(entry, within)}" for key, entry in value.items()) + "}"
    if _is(value, (list, tuple)):
        return "[" + ", ".join([_json(entry, within) for entry in value]) + "]"
    return _json(_nearest(value), within)


def _is(value: Any, kinds: type | tuple[type, ...]) -> bool:
    """Call `isinstance`, but hide it from the type checker, which would narrow to a container of unknown types."""
    return isinstance(value, kinds)


def _key(key: Any) -> str:
    return _json(key if isinstance(key, str) else _nearest(key) if hasattr(key, "isoformat") else str(key), None)


def _nearest(value: Any) -> Any:
    """Convert sets, dates, numpy numbers and pandas tables to their JSON form."""
    if _is(value, (set, frozenset)):
        return sorted(value, key=repr)
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if type(value).__module__.partition(".")[0] in ("numpy", "pandas"):
        if hasattr(value, "columns") and hasattr(value, "to_dict"):
            return value.to_dict("records")
        for method in ("to_dict", "tolist", "item"):
            if hasattr(value, method):
                return getattr(value, method)()
    if type(value).__name__ in ("dict_keys", "dict_values", "dict_items", "range", "deque"):
        return list(value)
    return str(value)


if __name__ == "__main__":
    main(int(sys.argv[1]))
