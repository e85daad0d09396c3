"""The validated query parameters of a request: which episode, which filter, in which order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from mcprl_dashboard.answers import Refusal

SortColumn = Literal["step", "reward", "turns", "tokens", "duration_s", "task_id"]
Whole = Annotated[int, Field(ge=0, le=2**53)]
_MAX_LIMIT = 500


class Question(BaseModel):
    """Query parameters. Unknown ones are ignored."""

    model_config = ConfigDict(frozen=True)

    @classmethod
    def of(cls, asked: Mapping[str, str]) -> Self:
        """Parse parameters. An empty one counts as missing. Raises Refusal for an invalid value."""
        try:
            return cls.model_validate({name: value for name, value in asked.items() if value})
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            name = str(problem["loc"][0])
            raise Refusal(400, "bad-question", f"{name}: {problem['msg']}", f"correct {name}") from error


class OfStep(Question):
    """OfStep(since=7) is all steps after 7; OfStep(step=7) is that step only."""

    since: Whole | None = None
    step: Whole | None = None


class OfTask(Question):
    """OfTask(task="meet-ana")"""

    task: str


class EpisodeKey(Question):
    """Identifies an episode of a run. EpisodeKey(step=12, task_id="meet-ana", member=3)"""

    step: Whole
    task_id: str = Field(validation_alias=AliasChoices("task", "task_id"))
    member: Whole


class Filter(Question):
    """Selects episodes. Fields that are None or empty are ignored.

    Filter(q="timeout", tool="get_quote", outcome="failed", step_from=100)
    """

    q: Annotated[str, Field(max_length=1000)] = ""
    task: str | None = None
    tool: str | None = None
    stop: str | None = None
    outcome: Literal["solved", "failed"] | None = None
    fault: bool = False
    step_from: Whole | None = None
    step_to: Whole | None = None
    reward_min: FiniteFloat | None = None
    reward_max: FiniteFloat | None = None

    @property
    def needs_turns(self) -> bool:
        """Whether the filter depends on the turns of episodes."""
        return bool(self.q) or self.tool is not None or self.fault

    def condition(self) -> tuple[str, dict[str, Any]]:
        """Return the filter as SQL with named parameters. User text is never part of the SQL."""
        named = {
            "q": ("contains(text, lower($q))", self.q or None),
            "task": ("task_id = $task", self.task),
            "tool": ("list_contains(tools, $tool)", self.tool),
            "stop": ("stop = $stop", self.stop),
            "solved": ("solved = $solved", None if self.outcome is None else self.outcome == "solved"),
            "step_from": ("step >= $step_from", self.step_from),
            "step_to": ("step <= $step_to", self.step_to),
            "reward_min": ("reward >= $reward_min", self.reward_min),
            "reward_max": ("reward <= $reward_max", self.reward_max),
        }
        used = {name: part for name, part in named.items() if part[1] is not None}
        clauses = [clause for clause, _ in used.values()] + (["faults > 0"] if self.fault else [])
        return " AND ".join(clauses) or "true", {name: value for name, (_, value) in used.items()}


class Page(Question):
    """A page of the matching episodes, and their order. Page(sort="reward", order="desc", offset=50, limit=50)"""

    sort: SortColumn = "step"
    order: Literal["asc", "desc"] | None = None
    offset: Whole = 0
    limit: Annotated[Whole, Field(ge=1)] = 50

    def clause(self) -> str:
        """Return the page as SQL. It is safe: sort and order are literals of the types above, the rest are numbers."""
        order = self.order or ("asc" if self.sort == "task_id" else "desc")
        limit = min(_MAX_LIMIT, self.limit)
        ordered = f"ORDER BY {self.sort} {order} NULLS LAST, step DESC, task_id, member"
        return f"{ordered} LIMIT {limit} OFFSET {self.offset}"
