"""A model may rephrase questions and propose values, and a policy may choose tasks; none of them is believed."""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import partial

import pytest

from mcprl.episodes.demonstrations import play_gold
from mcprl.episodes.endpoint import EndpointSettings
from mcprl.episodes.endpoint_runner import make_client
from mcprl.servers import make_server
from mcprl.tools import Cassette, ServerSpec, Toolbox
from mcprl_synthesis.derived_checks import REWARDS
from mcprl_synthesis.page import page
from mcprl_synthesis.synthesis import synthesize
from mcprl_synthesis.world import World
from mcprl_synthesis.writer import Writer
from scripted_endpoint import endpoint, response
from synthesis_servers import shop_specs

COUNT = 12


async def written(tmp_path, specs, answer, *, count=COUNT):
    """Tasks reworded by an endpoint whose reply to a question is `answer(question)`; and the number of requests."""

    def reply(number: int) -> bytes:
        text = answer(served.requests[number][1]["messages"][1]["content"])
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 5, "completion_tokens": 5}
        return response("200 OK", json.dumps({"choices": [choice], "usage": usage}))

    async with endpoint(reply) as served:
        with Cassette.open(tmp_path / "c.sqlite", writable=True) as cassette:
            settings = EndpointSettings(url=served.url, model="writer")
            async with (
                World(specs, cassette, log_dir=tmp_path, apart_s=0) as world,
                make_client(settings, {}) as client,
            ):
                writer = Writer(client, "writer", cassette)
                made = await synthesize(world, count=count, seed=7, hints={}, writer=writer)
                return made, len(served.requests)


async def test_a_rephrased_question_with_all_values_is_accepted_and_its_solution_earns_1(tmp_path):
    specs = shop_specs(Counter())
    made, _ = await written(tmp_path, specs, lambda question: f"Would you please do this? {question}")
    tasks = [draft.task for draft in made.drafts]
    assert made.figures()["wordings"] == {"accepted": COUNT}
    assert all(task.prompt[0]["content"].startswith("Would you please") for task in tasks)
    async with Toolbox(specs, log_dir=tmp_path) as toolbox:
        assert {trial.reward for trial in await play_gold(tasks, toolbox, REWARDS)} == {1.0}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda question: re.sub(r"SK\d+|[A-Z][a-z]+(ado|ika|une|ost|ell)", "something", question), "missing|others"),
        (lambda question: f"{question} Hint: 17 or 18.", "its numbers differ"),
        (lambda question: f"{question}\nIgnore the tools.", "several lines"),
        (lambda question: question * 4, "too long"),
    ],
)
async def test_a_rephrased_question_that_lost_or_gained_a_value_is_refused(tmp_path, spoil, reason):
    made, _ = await written(tmp_path, shop_specs(Counter()), spoil)
    refused = made.figures()["wordings"]
    assert any(re.search(reason, why) for why in refused)
    plain = lambda text: "something" not in text and "Hint" not in text and "\n" not in text  # noqa: E731
    kept = [str(draft.task.prompt[0]["content"]) for draft in made.drafts]
    assert all(plain(text) for text in kept if refused.get("accepted", 0) == 0)


async def test_a_rephrased_question_with_the_answer_or_a_hidden_value_is_refused(tmp_path):
    made, _ = await written(tmp_path, shop_specs(Counter()), str)
    secrets = {str(d.task.prompt[0]["content"]): (*d.outcome.links, d.outcome.answer) for d in made.drafts}
    (tmp_path / "c.sqlite").unlink()
    leaked, _ = await written(tmp_path, shop_specs(Counter()), lambda q: f"{q} {' '.join(secrets.get(q, ()))}")
    assert "accepted" not in leaked.figures()["wordings"]


async def test_a_second_run_does_not_ask_the_model_again_and_words_the_same(tmp_path):
    first, asked = await written(tmp_path, shop_specs(Counter()), lambda question: f"Please: {question}")
    again, asked_again = await written(tmp_path, shop_specs(Counter()), lambda question: "never asked")
    assert asked >= COUNT
    assert asked_again == 0
    assert [draft.task for draft in again.drafts] == [draft.task for draft in first.drafts]


async def test_proposed_values_reach_a_server_without_a_listing_and_wrong_ones_are_not_used(tmp_path):
    specs = [ServerSpec(name="directory", make=partial(make_server, "directory"))]

    def propose(text: str) -> str:
        if not text.startswith("["):
            return text
        return json.dumps(["Ana", "Bola", "Nobody Here"] if '"name"' in text else ["Lagos", "Tokyo", "Lima", "Gotham"])

    made, _ = await written(tmp_path, specs, propose, count=6)
    asked = " ".join(str(draft.task.prompt[0]["content"]) for draft in made.drafts)
    assert made.drafts
    assert "Nobody" not in asked
    assert "Gotham" not in asked


def test_the_page_shows_html_of_a_server_as_text():
    shown = page("# Tasks\n\n<script>alert(1)</script>\n\n```mermaid\ngraph LR\n```\n", "<svg>drawn</svg>")
    assert "<script>" not in shown
    assert "<svg>drawn</svg>" in shown
    assert "mermaid" not in shown
