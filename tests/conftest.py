"""Fixtures for all tests: where the models and the third-party servers are, and what to do where they are not."""

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler.loadscope import LoadScopeScheduling

from mcprl.config import ServerSettings
from mcprl.tools import ServerSpec

# A property is tried on 25 examples here and in the gate, on 300 with --hypothesis-profile=full, before a release.
# How long an example takes depends on what else the machine does, so no example has a deadline.
settings.register_profile("patient", max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("full", settings.get_profile("patient"), max_examples=300)
# The gate tries the same examples each time, so that one commit has one verdict. Elsewhere new ones are tried.
settings.register_profile("gate", settings.get_profile("patient"), derandomize=True)
settings.load_profile("patient")

ROOT = Path(__file__).resolve().parent.parent

# What JAX compiles for one test of SkyRL's server is compiled for all of them.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".cache" / "jax"))

# About how many seconds the longest files take in the gate, with two processes on two cores.
SECONDS = {
    "e2e/test_skyrl_engine.py": 180,
    "e2e/test_wheel.py": 150,
    "e2e/test_examples.py": 120,
    "e2e/test_killed_vllm.py": 110,
    "e2e/test_two_processes.py": 110,
    "e2e/test_exact_logprobs.py": 100,
    "e2e/test_doctor_run.py": 90,
    "e2e/test_ray_workers.py": 75,
    "e2e/test_dashboard_pages.py": 75,
    "e2e/test_killed_trainer.py": 60,
    "e2e/test_whole_weights.py": 60,
    "security/test_sandbox_escapes.py": 60,
    "contract/tools/test_pool.py": 60,
    "e2e/test_scaffolded_project.py": 60,
    "e2e/test_imported_project.py": 60,
    "contract/tools/test_connection.py": 55,
    "unit/tracking/test_tracker_libraries.py": 55,
    "security/test_sandbox_episodes.py": 50,
    "e2e/test_skyrl_gym.py": 50,
    "contract/servers/test_generated_tasks.py": 50,
    "e2e/test_other_trainers.py": 50,
    "unit/cli/test_tools_commands.py": 45,
    "contract/servers/test_slack_live.py": 45,
    "e2e/test_python_api.py": 45,
    "unit/episodes/test_reward_functions.py": 45,
    "unit/checks/doctor/test_planted_faults.py": 45,
    "e2e/test_shutdown_run.py": 40,
    "unit/chat/test_real_world_schemas.py": 35,
    "unit/synthesis/test_synthesize.py": 35,
    "unit/learning/test_toy_task.py": 35,
    "unit/training/test_resumed_settings.py": 30,
    "unit/episodes/test_faults_of_the_policy.py": 30,
    "unit/agents/test_agent_faults.py": 30,
    "contract/servers/test_bfcl_server.py": 30,
    "contract/servers/test_market_data_live.py": 30,
    "contract/servers/test_python_server.py": 30,
    "unit/cli/test_parity_command.py": 25,
    "contract/servers/test_tavily_live.py": 25,
    "contract/servers/test_play.py": 25,
    "contract/tools/test_toolbox.py": 25,
    "contract/tools/test_http_eras.py": 25,
    "unit/samplers/test_vllm_whole_weights.py": 25,
    "e2e/test_same_whatever_the_concurrency.py": 20,
    "e2e/test_eval_run.py": 20,
    "e2e/test_tracked_run.py": 20,
}
# Files whose tests share one vLLM (tests/e2e/shared_vllm.py): one process runs them all.
SHARED_VLLM = tuple(
    f"e2e/test_{name}.py"
    for name in (
        "doctor_run",
        "endpoint_vllm",
        "exact_logprobs",
        "judge_vllm",
        "killed_server",
        "shared_vllm",
        "vllm_long_prompts",
    )
)
PYPI_SERVERS = ("time", "git", "sqlite")
NPM_SERVERS = ("everything", "filesystem", "memory")


class SharedEngines(LoadScopeScheduling):
    """Each file in one process, and the files that share an engine in the same one."""

    def _split_scope(self, nodeid: str) -> str:
        return _scope(nodeid.partition("::")[0].removeprefix("tests/"))


def _scope(name: str) -> str:
    return "vllm" if name in SHARED_VLLM else name


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> SharedEngines:
    return SharedEngines(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where processes share the files, the longest first and then those with the most tests, so that both end together.

    A single process keeps pytest's order: what fails quickly should fail first.
    """
    if not hasattr(config, "workerinput"):
        return
    scopes: dict[str, list[pytest.Item]] = {}
    for item in items:
        scopes.setdefault(_scope(_name(item)), []).append(item)
    ranked = sorted(scopes.values(), key=lambda own: (-sum(SECONDS.get(n, 0) for n in {*map(_name, own)}), -len(own)))
    items[:] = [item for own in ranked for item in own]


def _name(item: pytest.Item) -> str:
    return item.path.relative_to(ROOT / "tests").as_posix()


# What a test starts. Libraries look at the machine with some small programs of it; those do not count.
_STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"})
_OF_LIBRARIES = frozenset({"uname", "file", "fc-list"})
_started: list[str] = []


def _note_start(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _STARTS:
        program = str(arguments[0]) if arguments else event
        if program not in _OF_LIBRARIES:
            _started.append(program)


sys.addaudithook(_note_start)


@pytest.fixture(autouse=True)
def _starts_no_process(request: pytest.FixtureRequest) -> Iterator[None]:
    """`make test` leaves out what is marked `process`, so nothing else may start one."""
    yield
    started, _started[:] = list(_started), []
    if started and request.node.get_closest_marker("process") is None:
        pytest.fail(f"starts {started[0]}: mark it with pytest.mark.process, so that `make test` leaves it out")


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> Generator[None]:
    """The time of every fixture that takes a second goes into the report, for the gate's list of the slowest."""
    started = time.monotonic()
    try:
        return (yield)
    finally:
        taken = time.monotonic() - started
        if taken >= 1:
            request._pyfuncitem.user_properties.append((f"fixture {fixturedef.argname}", round(taken, 1)))


def _needed(path: Path) -> Path:
    if not path.exists():
        pytest.skip(f"{path.relative_to(ROOT)} is missing: run scripts/setup")
    return path


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture
def untraced() -> Iterator[None]:
    """Nothing is traced meanwhile, for what is timed here: measuring coverage costs several times the work itself."""
    tracer, tracer_of_threads = sys.gettrace(), threading.gettrace()
    sys.settrace(None)
    threading.settrace(None)
    yield
    sys.settrace(tracer)
    threading.settrace(tracer_of_threads)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """A real pretrained model, SmolLM2-135M-Instruct."""
    return _needed(ROOT / ".cache" / "models" / "smollm2-135m")


@pytest.fixture(scope="session")
def tiny_qwen3() -> Path:
    """A random Qwen3 of a few million parameters with Qwen's real vocabulary."""
    return _needed(ROOT / ".cache" / "models" / "tiny-qwen3")


@pytest.fixture(scope="session")
def chat(tiny_qwen3: Path) -> Any:
    """The tiny model's chat, loaded once."""
    from mcprl.chat import load_chat

    return load_chat(str(tiny_qwen3), "chatml")


@pytest.fixture(scope="session")
def encode(chat: Any) -> Callable[[str], list[int]]:
    """Text to ids as the model would emit them, special tokens included."""
    return lambda text: chat.tokenizer.encode(text, add_special_tokens=False)


@pytest.fixture(scope="session")
def taught_qwen3() -> Path:
    """A Qwen3 so small that it loads at once, with a vocabulary of its own, which knows how calls are written."""
    return _needed(ROOT / ".cache" / "models" / "taught-qwen3")


@pytest.fixture(scope="session")
def small_qwen3(taught_qwen3: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with random weights, so that it may say anything."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("small-qwen3")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(taught_qwen3)).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(taught_qwen3 / name, folder)
    return folder


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
