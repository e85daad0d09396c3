"""A script that runs SkyRL's server, or the engine behind it, in a Python environment that has SkyRL.

    PYTHON -P serve.py api --dtype float32 --host 127.0.0.1 --port 8000 --base-model … (EngineConfig's options)
    PYTHON -P serve.py engine --dtype float32 --base-model …

It does not import mcprl, which is not installed there. `api` starts `engine` as a child process, and both end together.
The server accepts only requests with the key from the environment variable MCPRL_SKYRL_KEY.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import os
import secrets
import sys
import typing
from types import FrameType
from typing import Any

import typing_extensions

KEY_VARIABLE = "MCPRL_SKYRL_KEY"
"""The environment variable from which the server takes the key that requests must have."""
KEY_HEADER = "x-api-key"
"""The header in which Tinker's SDK sends its key. SkyRL itself ignores it."""

UNFIT_EXIT_CODE = os.EX_CONFIG
"""The exit code of `api` and `engine` if the model's dtype differs from the configured one."""

# If the server closes an idle connection just as a client uses it, the request fails. By default the server closes
# idle connections after 5 s, and steps take longer than that.
_KEEP_ALIVE_S = 24 * 3600
# The function in SkyRL that builds the engine's command from the `uv run` command that it expects as its parent.
_COMMAND_BUILDER = "_build_uv_run_cmd_engine"


def main(argv: list[str]) -> None:
    if sys.version_info < (3, 12):
        # SkyRL uses typing.TypedDict. Below Python 3.12, pydantic supports only that of typing_extensions.
        typing.TypedDict = typing_extensions.TypedDict
    match argv:
        case ["api", *options]:
            _serve(options)
        case ["engine", *options]:
            _compute(options)
        case _:
            raise SystemExit("usage: serve.py api|engine OPTIONS")


def _serve(options: list[str]) -> None:
    own = argparse.ArgumentParser(allow_abbrev=False)
    own.add_argument("--host", required=True)
    own.add_argument("--port", type=int, required=True)
    own.add_argument("--dtype", required=True)
    mine, rest = own.parse_known_args(options)
    api = _of_skyrl("skyrl.tinker.api")
    if not hasattr(api, _COMMAND_BUILDER):
        raise SystemExit(f"skyrl.tinker.api has no {_COMMAND_BUILDER}: install SkyRL 0.3.0")
    api.app.state.engine_config = _engine_config(rest)
    vars(api)[_COMMAND_BUILDER] = functools.partial(_engine_command, mine.dtype)
    uvicorn = importlib.import_module("uvicorn")
    log_config = _of_skyrl("skyrl.utils.log").get_uvicorn_log_config()
    server = uvicorn.Server(
        uvicorn.Config(
            _with_key(api.app, os.environ.pop(KEY_VARIABLE)),
            host=mine.host,
            port=mine.port,
            log_config=log_config,
            access_log=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
        )
    )
    server.handle_exit = functools.partial(_leave, api.app.state)
    server.run()


def _with_key(app: Any, key: str) -> Any:
    """Wrap the application so that clients without the key get status 401. The engine does not get the key."""

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        given = dict(scope.get("headers", ())).get(KEY_HEADER.encode(), b"")
        if scope["type"] == "http" and not secrets.compare_digest(given, key.encode()):
            headers = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": b'{"detail": "the key is missing or wrong"}'})
            return
        await app(scope, receive, send)

    return guarded


def _leave(state: Any, signal_number: int, _frame: FrameType | None) -> None:
    """Exit at once and kill the engine, on a signal or when SkyRL notices that the engine has ended.

    Nothing is lost, because everything is in the database. A graceful shutdown would take minutes, because it waits
    until all clients have their results.
    """
    engine = getattr(state, "background_engine", None)
    if engine is None or engine.returncode is None:
        if engine is not None:
            engine.kill()
        os._exit(128 + signal_number)
    os._exit(UNFIT_EXIT_CODE if engine.returncode == UNFIT_EXIT_CODE else os.EX_SOFTWARE)


def _compute(options: list[str]) -> None:
    own = argparse.ArgumentParser(allow_abbrev=False)
    own.add_argument("--dtype", required=True)
    mine, rest = own.parse_known_args(options)
    config = _engine_config(rest)
    _require_dtype(config.base_model, mine.dtype)
    _of_skyrl("skyrl.tinker.engine").TinkerEngine(config).run()


def _engine_command(dtype: str, _parent_command: list[str], config: Any) -> list[str]:
    arguments: list[str] = _of_skyrl("skyrl.tinker.config").config_to_argv(config)
    return [sys.executable, "-P", os.path.abspath(__file__), "engine", "--dtype", dtype, *arguments]


def _engine_config(options: list[str]) -> Any:
    config = _of_skyrl("skyrl.tinker.config")
    parser = argparse.ArgumentParser(allow_abbrev=False)
    config.add_model(parser, config.EngineConfig)
    return config.EngineConfig.model_validate(vars(parser.parse_args(options)))


def _require_dtype(model: str, wanted: str) -> None:
    """Exit if the model's dtype is not `wanted`. SkyRL computes in the dtype of the model's configuration."""
    transformers = importlib.import_module("transformers")
    try:
        config = transformers.AutoConfig.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise SystemExit(f"the model {model} cannot be read: {error}") from error
    named = str(config.get_text_config().dtype).removeprefix("torch.")
    if named != wanted:
        print(f"the configuration of {model} has dtype {named}, not {wanted}", file=sys.stderr)
        raise SystemExit(UNFIT_EXIT_CODE)


def _of_skyrl(module: str) -> Any:
    """Import a module of SkyRL as Any, because SkyRL is not installed where mcprl is type-checked."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise SystemExit(
            f"{sys.executable} has no {error.name}: install skyrl[jax,tinker]==0.3.0 in its environment"
        ) from error


if __name__ == "__main__":
    main(sys.argv[1:])
