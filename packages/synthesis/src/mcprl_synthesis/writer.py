"""A model behind an OpenAI-compatible endpoint rephrases questions and proposes argument values.

Its output is not trusted. A question is accepted only if it keeps all values, adds none, does not reveal the answer,
and does not let trivial policies pass. A proposed value is verified like any other. Its responses are recorded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, cast

from mcprl.conversations import text_of
from mcprl.episodes.endpoint import ChatEndpoint
from mcprl.episodes.endpoint_runner import read_reply
from mcprl.episodes.rewards import meets, numbers_in
from mcprl.goals import Contains
from mcprl.tools import Cassette, Tool
from mcprl_synthesis.reading import safe, words
from mcprl_synthesis.verify import Draft, Verifier, gathered

__all__ = ["Writer", "reword"]

_JOURNAL: Final = "mcprl-synthesis writer"
_WAITS_S: Final = (1.0, 4.0)
_LONGEST_WAIT_S: Final = 60.0
_LONGER: Final = 2.5
_PROPOSED: Final = 20
_REPHRASE: Final = (
    "Rephrase the user's request in one to three plain sentences, as a person would ask it. Keep every name, value and "
    "number exactly as written, keep which tool each value is for, and keep the order of the steps. Add nothing. Reply "
    "with the new request only."
)
_PROPOSE: Final = (
    "The user shows the name of a tool and one of its arguments, as a JSON schema. Reply with one JSON list of up to "
    f"{_PROPOSED} values that such a tool is likely to know, and nothing else."
)


class Writer:
    """Asks the model. Its responses are recorded in the cassette, so no request is sent twice."""

    def __init__(self, client: ChatEndpoint, model: str, cassette: Cassette) -> None:
        self._client = client
        self._model = model
        self._cassette = cassette

    async def _ask(self, instructions: str, text: str) -> str:
        key = {"instructions": instructions, "text": text}
        if (found := self._cassette.find(_JOURNAL, "", self._model, key)) is not None:
            return found.text
        messages = [{"role": "system", "content": instructions}, {"role": "user", "content": text}]
        body = {"model": self._model, "messages": messages, "temperature": 0.7, "max_tokens": 500}
        response = await self._client.ask(body, waits_s=_WAITS_S, longest_wait_s=_LONGEST_WAIT_S)
        if not response.is_success:
            raise self._client.refusal(response)
        written = text_of(read_reply(response).choices[0].message).strip()
        self._cassette.record(_JOURNAL, "", self._model, key, written)
        return written

    async def rephrase(self, question: str) -> str:
        return await self._ask(_REPHRASE, question)

    async def propose(self, tool: Tool, name: str, schema: Any) -> list[str]:
        """Return proposed values for an argument; [] if the reply is not a list."""
        written = await self._ask(_PROPOSE, json.dumps([words(tool.name), name, schema]))
        try:
            values: Any = json.loads(re.sub(r"^```\w*|```$", "", written).strip())
        except ValueError:
            return []
        listed = cast("list[Any]", values) if isinstance(values, list) else []
        return [str(value) for value in listed if safe(value)][:_PROPOSED]


async def reword(drafts: Sequence[Draft], verifier: Verifier, writer: Writer) -> list[Draft]:
    """Return the tasks, each with the model's wording of its question if that is accepted. Count the reasons if not."""
    written = await gathered(writer.rephrase(str(draft.task.prompt[0]["content"])) for draft in drafts)
    made: list[Draft] = []
    for draft, asked in zip(drafts, written, strict=True):
        task = replace(draft.task, prompt=({"role": "user", "content": asked},))
        changed = replace(draft, task=task)
        why = why_refused(draft, asked) or await verifier.recheck(changed)
        verifier.wordings[why or "accepted"] += 1
        made.append(draft if why else changed)
    return made


def why_refused(draft: Draft, asked: str) -> str | None:
    """Return why a new wording is not the same question, or None."""
    old, plan = str(draft.task.prompt[0]["content"]), draft.plan
    if not asked.isprintable() or len(asked) > _LONGER * len(old):
        return "it is too long, or has several lines"
    given = [str(value) for step in plan.steps for _, value in step.given]
    if not all(re.search(rf"(?<!\w){re.escape(value)}(?!\w)", asked) for value in given if value in old):
        return "a value is missing"
    if set(numbers_in(asked)) != set(numbers_in(old)):
        return "its numbers differ"
    if draft.outcome.check is not None and meets(draft.outcome.check, asked):
        return "it contains the answer"
    if any(meets(Contains(text=link), asked) for link in draft.outcome.links):
        return "it contains a value that a call must find"
    return None
