"""Fixtures for all tests: where the models and the third-party servers are, and what to do where they are not."""

import os
import shutil
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import tracing
from mcprl.config import ServerSettings
from mcprl.tools import ServerSpec

# How long an example takes depends on what else the machine does: no test of a property fails by that.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The gate tries the same examples each time: one commit has one verdict. Everywhere else new ones are looked for.
settings.register_profile("gate", settings.get_profile("patient"), derandomize=True)
settings.load_profile("patient")

ROOT = Path(__file__).resolve().parent.parent

# What JAX compiles for one test of SkyRL's server is compiled for all of them.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".cache" / "jax"))

# About how many seconds the longest files take in the gate, with two processes on two cores.
SECONDS = {
    "e2e/test_skyrl_engine.py": 400,
    "e2e/test_killed_vllm.py": 160,
    "e2e/test_two_processes.py": 250,
    "e2e/test_doctor_run.py": 240,
    "e2e/test_dashboard_pages.py": 200,
    "e2e/test_exact_logprobs.py": 190,
    "e2e/test_whole_weights.py": 170,
    "e2e/test_killed_trainer.py": 160,
    "contract/servers/test_generated_tasks.py": 150,
    "e2e/test_killed_server.py": 150,
    "e2e/test_hello_skyrl.py": 140,  # longer by itself; here JAX has compiled much of it for test_skyrl_engine
    "e2e/test_tracked_run.py": 100,
    "security/test_sandbox_escapes.py": 100,
    "e2e/test_bfcl_smollm.py": 100,
    "unit/doctor/test_planted_faults.py": 60,
}
SECONDS_OF_SLOW = 60  # of any other with a test that is marked so
PYPI_SERVERS = ("time", "git", "sqlite")
NPM_SERVERS = ("everything", "filesystem", "memory")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where processes share the files, the longest first and then those with the most tests, so that both end together.

    A single process keeps pytest's order: what fails quickly should fail first.
    """
    if not hasattr(config, "workerinput"):
        return
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    items[:] = [item for path in sorted(files, key=lambda path: _rank(path, files[path])) for item in files[path]]


def _rank(path: Path, items: list[pytest.Item]) -> tuple[float, int, str]:
    slow = any(item.get_closest_marker("slow") for item in items)
    name = _name(path)
    return -SECONDS.get(name, SECONDS_OF_SLOW if slow else 0), -len(items), name


def _name(path: Path) -> str:
    return path.relative_to(ROOT / "tests").as_posix()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool, bool]:
    with tracing.measured_children(_name(item.path)):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Function) -> Generator[None, None, None]:
    with tracing.few_examples(item.function):
        return (yield)


def _needed(path: Path) -> Path:
    if not path.exists():
        pytest.skip(f"{path.relative_to(ROOT)} is missing: run scripts/setup")
    return path


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def user_environment() -> dict[str, str]:
    """The environment of a user's process, for what is timed: measuring coverage in a child costs time there."""
    return tracing.without_coverage(os.environ)


@pytest.fixture
def untraced():
    """Nothing is traced meanwhile, for what is timed here: measuring coverage costs several times the work itself."""
    with tracing.paused():
        yield


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """A real pretrained model, SmolLM2-135M-Instruct."""
    return _needed(ROOT / ".cache" / "models" / "smollm2-135m")


@pytest.fixture(scope="session")
def tiny_qwen3() -> Path:
    """A random Qwen3 of a few million parameters with Qwen's real vocabulary."""
    return _needed(ROOT / ".cache" / "models" / "tiny-qwen3")


@pytest.fixture(scope="session")
def skyrl_python() -> Path:
    """The Python of the environment with SkyRL's server."""
    return _needed(ROOT / ".venv-skyrl" / "bin" / "python")


@pytest.fixture(scope="session")
def bubblewrap() -> Path:
    """The program that the Python sandbox is built with."""
    found = shutil.which("bwrap")
    if found is None:
        pytest.skip("bubblewrap is missing: run scripts/setup")
    return Path(found)


@pytest.fixture(scope="session")
def third_party_program() -> Callable[[str], Path]:
    """The program of a third-party server, each in an environment of its own, by a name such as "git"."""
    folders = {name: ROOT / f".venv-{name}" / "bin" for name in PYPI_SERVERS}
    folders |= {name: ROOT / ".cache" / "npm" / name / "node_modules" / ".bin" for name in NPM_SERVERS}
    return lambda name: _needed(folders[name] / f"mcp-server-{name}")


@pytest.fixture(scope="session")
def time_server(third_party_program) -> Path:
    """The third-party mcp-server-time."""
    return third_party_program("time")


@pytest.fixture
def time_spec(time_server) -> ServerSpec:
    """A third-party server over its standard streams."""
    return ServerSpec(name="time", command=str(time_server), args=("--local-timezone", "UTC"))


@pytest.fixture
def directory_spec() -> ServerSpec:
    """Our own server over HTTP."""
    start = (sys.executable, "-m", "mcprl", "serve", "directory", "--http", "--port", "{port}")
    return ServerSpec(name="directory", url="http://127.0.0.1:{port}/mcp", settings=ServerSettings(start=start))
