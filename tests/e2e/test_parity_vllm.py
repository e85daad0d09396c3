"""`mcprl parity` on the real engine: vLLM samples under the grammar of live tools, and the learner agrees with it."""
# R7, R8, R22

import json
import subprocess
import sys
import time

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def finished(root, smollm2, time_server, user_environment) -> tuple[subprocess.CompletedProcess[str], float]:
    command = [sys.executable, "-m", "mcprl", "parity", "recipes/hello-cpu.yaml", "--prompts", "8", "--json"]
    started = time.monotonic()
    done = subprocess.run(
        [*command, "--set", "sampling.constrain=act"],
        cwd=root,
        env=user_environment,
        capture_output=True,
        text=True,
        timeout=1100,
        check=False,
    )
    return done, time.monotonic() - started


def test_sampler_and_learner_are_exact_under_the_grammar_of_live_tools(finished, record_property):
    done, seconds = finished
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    report = json.loads(done.stdout)
    record_property("seconds", round(seconds, 1))
    for name in (
        "tokens",
        "forced_tokens",
        "alignment",
        "logprob_mean_abs_error",
        "logprob_max_abs_error",
        "ratio_mean_abs_error",
        "kl",
        "outside_share",
    ):
        record_property(name, report[name])
    assert report["verdict"]["severity"] == "ok"
    assert report["prompts"] == 8
    assert report["turns"] > 8, "no episode came to a second turn"
    assert report["forced_tokens"] > 0, "the grammar forced nothing"
    assert report["alignment"] == 1.0
    assert report["logprob_max_abs_error"] <= 1e-3
    assert report["logprob_mean_abs_error"] <= 5e-5
