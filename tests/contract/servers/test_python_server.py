"""The Python server as the tool runtime sees it: processes, both transports, episodes, whose fault a failure is."""
# R14, R15, R17

from __future__ import annotations

import asyncio
import json
import re
import shutil
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from served_specs import served_spec

from mcprl.errors import Fault
from mcprl.protocol import EPISODE_SCOPE, SCOPE
from mcprl.records import ToolCall
from mcprl.tools import Toolbox
from mcprl_market.python.server import make_server

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing: run scripts/setup"),
]

ARGUMENTS = {
    "execute_python": ({"code"}, {"description"}),
    "process_mcp_data": ({"data", "processing_code"}, {"description"}),
    "analyze_financial_data": ({"data", "analysis_type"}, {"custom_code"}),
    "create_data_pipeline": ({"pipeline_steps", "input_data"}, {"description"}),
    "get_execution_context": ({"context_key"}, set()),
    "store_execution_result": ({"context_key", "data"}, {"description"}),
}
BARS = [{"date": "2024-04-24", "close": 169.02}, {"date": "2024-04-25", "close": 169.89}]


@pytest.fixture
def spec(request):
    return served_spec("python", request.param, env={})


async def call(lease, tool, **arguments):
    return await lease.call(ToolCall(name=tool, arguments=arguments))


@pytest.mark.parametrize(("world", "version"), [(None, "1"), (7, "1+market-7")])
async def test_the_tools_are_those_of_the_contract(world, version):
    async with Client(make_server(world=world)) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert client.server_info.version == version
    assert set(tools) == set(ARGUMENTS)
    for name, (required, optional) in ARGUMENTS.items():
        schema = tools[name].input_schema
        assert set(schema["required"]) == required
        assert set(schema["properties"]) == required | optional
        assert tools[name].meta[SCOPE] == EPISODE_SCOPE
        assert tools[name].annotations.read_only_hint is (name != "store_execution_result")
        assert len(tools[name].description) < 250


@pytest.mark.parametrize("spec", ["stdio", "http"], indirect=True)
async def test_a_whole_episode_over_a_real_transport(spec, tmp_path):
    async with Toolbox([spec], log_dir=tmp_path) as toolbox, toolbox.lease(None) as lease:
        seen = await call(lease, "execute_python", code="import math\nprint('hi')\nmath.sqrt(16)", description="test")
        assert (seen.text, seen.fault) == ("hi\nResult: 4.0", None)
        seen = await call(lease, "process_mcp_data", data=json.dumps(BARS), processing_code="data[-1]['close']")
        assert seen.text == "Result: 169.89"
        seen = await call(lease, "process_mcp_data", data=BARS, processing_code="len(pd.DataFrame(data))")
        assert seen.text == "Result: 2"
        seen = await call(lease, "analyze_financial_data", data=json.dumps(BARS), analysis_type="trend")
        assert '"change": 0.87' in seen.text
        seen = await call(
            lease, "analyze_financial_data", data=BARS, analysis_type="custom", custom_code="result = len(data)"
        )
        assert seen.text == "Result: 2"
        steps = ["pd.DataFrame(data)", {"name": "total", "code": "round(float(data['close'].sum()), 2)"}]
        for form in (steps, json.dumps(steps)):
            seen = await call(lease, "create_data_pipeline", pipeline_steps=form, input_data=BARS)
            assert seen.text == "Result: 338.91"
        seen = await call(lease, "store_execution_result", context_key="bars", data=json.dumps(BARS))
        assert (seen.text, seen.fault) == ("Stored 'bars'.", None)
        seen = await call(lease, "get_execution_context", context_key="bars")
        assert json.loads(seen.text) == BARS
        seen = await call(lease, "execute_python", code="context['bars'][0]['close']")
        assert seen.text == "Result: 169.02"


@pytest.mark.parametrize("spec", ["stdio", "http"], indirect=True)
async def test_what_the_policy_did_wrong_is_the_policys_fault_and_says_so(spec, tmp_path):
    wrong = [
        (("execute_python", {"code": "x = 1\ny = x / 0"}), "ZeroDivisionError: division by zero\nin line 2: y = x / 0"),
        (("execute_python", {"code": "print('so far')\nnothing"}), "Printed before that:\nso far"),
        (("execute_python", {"code": "import matplotlib"}), "Only the standard library, numpy and pandas"),
        (("execute_python", {"code": "print('x' * 2**21)"}), "exceeded the output limit of 1 MB"),
        (("get_execution_context", {"context_key": "gone"}), "Nothing is stored under 'gone'. Stored: none."),
        (("analyze_financial_data", {"data": [], "analysis_type": "summary"}), "ValueError: data must be a list"),
        (("analyze_financial_data", {"data": [1], "analysis_type": "custom"}), "custom needs custom_code"),
        (("analyze_financial_data", {"data": [1], "analysis_type": "magic"}), "summary"),
        (("create_data_pipeline", {"pipeline_steps": [{"do": 1}], "input_data": 1}), "Step 1 has no code"),
        (("create_data_pipeline", {"pipeline_steps": ["1", "data +"], "input_data": 1}), "of step 2 (step 2)"),
    ]
    # Over HTTP the SDK turns such a request away before the tool sees it; the policy reads why either way.
    too_much = "Shorten them" if spec.url else "No more than 4 MB"
    wrong.append((("store_execution_result", {"context_key": "k", "data": "x" * (5 << 20)}), too_much))
    async with Toolbox([spec], log_dir=tmp_path) as toolbox, toolbox.lease(None) as lease:
        for (tool, arguments), message in wrong:
            seen = await call(lease, tool, **arguments)
            assert seen.fault is Fault.POLICY, (tool, seen)
            assert message in seen.text


@pytest.mark.parametrize("spec", ["stdio", "http"], indirect=True)
async def test_data_that_could_not_be_sent_back_does_no_harm(spec, tmp_path):
    async with Toolbox([spec], log_dir=tmp_path) as toolbox, toolbox.lease(None) as lease:
        surrogate = r'["\ud800"]'
        await call(lease, "store_execution_result", context_key="k", data=surrogate)
        assert (await call(lease, "get_execution_context", context_key="k")).text == '["?"]'
        assert (await call(lease, "execute_python", code="context['k']")).text == 'Result: ["?"]'
        steps = r'[{"name": "a", "code": "1"}, {"name": "\ud800", "code": "1 / 0 # \ud800"}]'
        seen = await call(lease, "create_data_pipeline", pipeline_steps=steps, input_data=surrogate)
        assert seen.fault is Fault.POLICY
        assert "of step 2 (?): 1 / 0 # ?" in seen.text
        for levels in (100, 400):
            deep = "[" * levels + "]" * levels
            seen = await call(lease, "store_execution_result", context_key="d", data=deep)
            assert seen.fault is Fault.POLICY
            assert "The data is nested more than 64 levels deep." in seen.text
            seen = await call(lease, "process_mcp_data", data=deep, processing_code="data")
            assert seen.fault is Fault.POLICY


@pytest.mark.parametrize("spec", ["stdio"], indirect=True)
async def test_what_one_episode_stores_no_other_sees(spec, tmp_path):
    async with Toolbox([spec], log_dir=tmp_path) as toolbox, toolbox.lease(None) as one, toolbox.lease(None) as other:
        await call(one, "store_execution_result", context_key="mine", data=1)
        assert (await call(one, "execute_python", code="context")).text == 'Result: {"mine": 1}'
        assert (await call(other, "execute_python", code="context")).text == "Result: {}"
        assert (await call(other, "get_execution_context", context_key="mine")).fault is Fault.POLICY


async def test_code_changes_its_copy_of_the_context_only():
    async with Client(make_server(world=None)) as client:
        await client.call_tool("store_execution_result", {"context_key": "k", "data": {"a": 1}})
        await client.call_tool("execute_python", {"code": "context['k']['a'] = 2\ncontext['l'] = 3"})
        kept = await client.call_tool("get_execution_context", {"context_key": "k"})
        assert kept.structured_content == {"context_key": "k", "data": {"a": 1}, "description": ""}


async def test_a_sandbox_that_fails_is_no_fault_of_the_policy():
    async with Client(make_server(world=None)) as client:
        running = asyncio.create_task(client.call_tool("execute_python", {"code": "import time\ntime.sleep(60)"}))
        async with asyncio.timeout(60):
            while (worker := busy_worker()) is None:  # noqa: ASYNC110 - a process sets no event here
                await asyncio.sleep(0.02)
        worker.kill()
        with pytest.raises(MCPError, match="E-SAND-010"):
            await running
        again = await client.call_tool("execute_python", {"code": "1 + 1"})
        assert again.structured_content == {"stdout": "", "result": 2}


def busy_worker() -> psutil.Process | None:
    """The worker whose program sleeps: all others wait for their input."""
    for outer in psutil.Process().children():
        for process in outer.children(recursive=True):
            if process.name() == "python" and "nanosleep" in Path(f"/proc/{process.pid}/wchan").read_text():
                return outer
    return None


def recorded_calls(root: Path):
    """Real calls of execute_python, and whether the server of that time ran them."""
    for name in ("recorded-train.json", "recorded-validation.json"):
        for row in json.loads((root.parent / "shared" / "data" / name).read_text()):
            messages = row["prompt"]
            for message, answer in pairwise(messages):
                for text in re.findall(r"<tool_call>(.*?)</tool_call>", message["content"], re.DOTALL):
                    try:
                        asked = json.loads(text)
                    except ValueError:
                        continue
                    if asked["name"] == "execute_python":
                        yield asked["arguments"]["code"], "Executed Successfully" in answer["content"]


async def test_recorded_programs_that_once_ran_still_run(root, record_property):
    if not (root.parent / "shared" / "data").exists():
        pytest.skip("recorded conversations are missing: put them in ../shared/data")
    codes = [code for code, ran in recorded_calls(root) if ran][::4]
    async with Client(make_server(world=None)) as client:
        results = await asyncio.gather(*[client.call_tool("execute_python", {"code": code}) for code in codes])
    failed = [result.content[0].text for result in results if result.is_error]
    record_property("recorded_programs", len(codes))
    assert len(codes) > 15
    assert failed == []
