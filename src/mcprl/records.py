"""The records that the parts of mcprl exchange. All are immutable and independent of models, servers and files.

    Task ──▶ Episode ──▶ Trajectory ──▶ Batch ──▶ Update

There is no record for an episode. An episode is a coroutine (`mcprl.episodes.loop`) that returns a `Trajectory` or a
`LostEpisode`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any, Required

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from mcprl.errors import Fault
from mcprl.goals import Goal

__all__ = [
    "Batch",
    "Columns",
    "Difficulty",
    "FinishReason",
    "FollowUp",
    "Group",
    "LostEpisode",
    "Message",
    "Observation",
    "Readings",
    "SimulatedUser",
    "Solution",
    "Source",
    "StopReason",
    "Task",
    "ToolCall",
    "Trajectory",
    "Turn",
    "Update",
    "Weights",
    "turns_by_message",
]


@with_config(ConfigDict(extra="forbid"))
class Message(TypedDict, total=False):
    """A chat message in OpenAI's format. Assistant messages may have `tool_calls`, tool messages a `name`."""

    role: Required[str]
    content: Required[str]
    tool_calls: list[dict[str, Any]]
    name: str


class Difficulty(StrEnum):
    EASY = "easy"
    MEDIUM = "medium"
    HARD = "hard"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A tool call as the policy wrote it. `problem` is the error message for the policy if the call is not valid."""

    name: str
    arguments: Mapping[str, Any]
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """A known solution of a task: one call per turn, then the final answer.

    Solution(calls=(ToolCall(name="find_person", arguments={"name": "Ana"}),), answer="Ana is in Lima.")
    """

    calls: tuple[ToolCall, ...]
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowUp:
    """A further user message, sent after a turn without calls. From then on the policy may also use `tools`.

    FollowUp(messages=({"role": "user", "content": "And what time is it in Lagos then?"},), tools=(), solution=None)

    Descriptions of the new tools are added to the last message, unless `described` says that it has them.
    """

    messages: tuple[Message, ...]
    tools: tuple[str, ...] = ()
    solution: Solution | None = None
    described: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedUser:
    """A user who replies to the policy: a function in Python, or a model (`tasks.user`) that follows `instructions`.

    SimulatedUser(function="/home/ana/users.py:impatient")
    SimulatedUser(instructions="You need the time zone of Ana's office. Do not mention Ana's name at first.")

    The episode ends at the first answer without a reply from the user, or at the answer after `max_messages` replies.
    """

    function: str | None = None
    instructions: str | None = None
    max_messages: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A prompt, the tools the policy may use, the goal that defines success, a difficulty and limits.

    Task(
        id="meet-ana",
        prompt=({"role": "user", "content": "It is 09:30 at Ana's office. What time is that in Asia/Tokyo?"},),
        goal=Goal(answer=Contains(text="23:30"),
                  calls=(ExpectedCall(tool="find_person", arguments={"name": "Ana"}),
                         ExpectedCall(tool="convert_time", arguments={"time": "09:30"}))),
        tools=("find_person", "convert_time"),     # None: all tools of the catalog
        difficulty=Difficulty.MEDIUM,
        max_turns=None,                            # None: the limit of its difficulty
        world=None,                                # or the offline world that the answers come from: "market-7"
        solution=None,                             # or a Solution, to check the task and to imitate
        follow_ups=(),                             # or further user messages; max_turns is then per message
        user=None,                                 # or a SimulatedUser, instead of follow_ups
        setup=(),                                  # or calls made before the first turn, to set up the world
        calls_in_order=False,                      # True: the calls of a turn are made one after another
        must_fit=True,                             # False: a prompt too long for the context fails only its episode
        metadata={},                               # anything else, for reward functions
    )
    """

    id: str
    prompt: tuple[Message, ...]
    goal: Goal
    tools: tuple[str, ...] | None = None
    difficulty: Difficulty = Difficulty.MEDIUM
    max_turns: int | None = None
    world: str | None = None
    solution: Solution | None = None
    follow_ups: tuple[FollowUp, ...] = ()
    user: SimulatedUser | None = None
    setup: tuple[ToolCall, ...] = ()
    calls_in_order: bool = False
    must_fit: bool = True
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def solutions(self) -> tuple[Solution, ...]:
        """The solution for each user message, in order. A follow-up without a solution repeats the last answer."""
        found = [] if self.solution is None else [self.solution]
        for follow_up in self.follow_ups if found else ():
            found.append(follow_up.solution or Solution(calls=(), answer=found[-1].answer))
        return tuple(found)

    @property
    def max_messages(self) -> int:
        """The maximum number of user messages in an episode, including the prompt."""
        return 1 + (len(self.follow_ups) if self.user is None else self.user.max_messages)


class Source(StrEnum):
    """Where the response to a call came from."""

    LIVE = "live"
    CACHE = "cache"
    CASSETTE = "cassette"
    MISSING = "missing"  # the tool is replayed from a cassette, and this call was not recorded
    INJECTED = "injected"
    AGENT = "agent"  # the agent's own code answered the call, or did not make it


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The result of one call, as the policy sees it. `fault` is `Fault.POLICY` if the call was the policy's mistake.

    `worked` is false for faults and for injected failures. Injected failures are not the policy's mistake. An
    infrastructure fault never becomes an observation: it is raised, and the episode is run again. `latency_s` is the
    time from the call to its response, including waits and retries. If an agent answered a call itself, `worked` is
    false, because mcprl cannot know the outcome, but the call does not count as a mistake. If aliases changed the
    arguments, `arguments` are the ones that the tool received.

    Observation(tool="find_person", server="directory", text="Ana: Lima, America/Lima", latency_s=0.003)
    """

    tool: str
    server: str | None
    text: str
    fault: Fault | None = None
    latency_s: float = 0.0
    source: Source = Source.LIVE
    attempts: int = 1
    truncated: bool = False
    arguments: Mapping[str, Any] | None = None

    @property
    def worked(self) -> bool:
        return self.fault is None and self.source not in (Source.INJECTED, Source.AGENT)


class FinishReason(StrEnum):
    """Why the sampler stopped."""

    STOP = "stop"
    LENGTH = "length"


class StopReason(StrEnum):
    """The reason why an episode ended. Every trajectory has exactly one."""

    ANSWERED = "answered"
    CUT_BY_LENGTH = "cut_by_length"
    TURN_LIMIT = "turn_limit"
    CONTEXT_LIMIT = "context_limit"
    DEADLINE = "deadline"
    CAUSED_FAULT = "caused_fault"  # the last turn made a tool server fail in every attempt
    AGENT_ENDED = "agent_ended"  # the agent ended without an answer because of what the policy said


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One action of the policy and its observations. `sampled_ids` are exactly the ids that the sampler returned.

    `weights_version` is the version that sampled the first token. Later tokens may come from newer weights, because
    weights can be replaced while a turn is being sampled. `follow_up` is what the user said after the turn.
    """

    text: str
    sampled_ids: tuple[int, ...]
    finish: FinishReason
    weights_version: int
    calls: tuple[ToolCall, ...] = ()
    observations: tuple[Observation, ...] = ()
    reward: float = 0.0
    follow_up: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """The record of a finished episode: its tokens in the order in which the model saw them, and its turns.

    Seven columns of equal length, one entry per token. Eight tokens of a one-turn episode:

        token_ids        1      4093   198    31     9      77     2      198
        (text)           <s>    user   \\n     Hi     \\n     Hello  <end>  \\n
        sampled          no     no     no     no     no     yes    yes    no
        forced           no     no     no     no     no     no     no     no      (the grammar allowed only this token)
        fixed            no     no     no     no     no     no     no     no      (it allowed several, of the same text)
        logprobs         0      0      0      0      0      -0.69  -0.05  0       (of the distribution sampled from)
        turn_index       -1     -1     -1     -1     -1     0      0      -1      (-1: context)
        weights_version  -1     -1     -1     -1     -1     3      3      -1

    `grammar` is the structural tag that the turns were sampled under, if any; `later_grammars` are those that replaced
    it when the user offered more tools, each with its first turn. A turn can end with any of `stop_token_ids`.
    Together they determine the tokens that were allowed at each position. `Batch.learnable` marks the tokens that carry
    loss. `code` is the digest of the reward functions that scored the episode, if there were any.

    If an agent rewrote its history, the tokens are a tree. The columns still have each token once, in the order in
    which they were first used, and each of `forks` is (place, after): the token at `place` follows the one at `after`
    instead of the one before it in the columns; if `after` is -1, it begins a conversation. Ten tokens of an episode
    with two branches, whose agent replaced its question after an answer:

        token_ids        1      4093   31     77     2      52     18     77     90     2
        (text)           <s>    user   Hi     Hello  <end>  Bye    now    Hello  then   <end>
        sampled          no     no     no     yes    yes    no     no     yes    yes    yes

        forks=((5, 1),)          the token 52 follows the token 4093
        branches                 (0, 1, 2, 3, 4) and (0, 1, 5, 6, 7, 8, 9)

    If the episode ran at an endpoint, there are no token ids: the columns and the `sampled_ids` of the turns are empty,
    and `endpoint_tokens` has the endpoint's own counts, (read, sampled). No `Batch` accepts such a trajectory.
    """

    task_id: str
    step: int
    member: int
    attempt: int
    temperature: float
    token_ids: tuple[int, ...]
    sampled: tuple[bool, ...]
    forced: tuple[bool, ...]
    fixed: tuple[bool, ...]
    logprobs: tuple[float, ...]
    turn_index: tuple[int, ...]
    weights_version: tuple[int, ...]
    turns: tuple[Turn, ...]
    stop: StopReason
    reward: float
    reward_parts: Mapping[str, float]
    answer: str | None = None
    code: str = ""
    duration_s: float = 0.0
    grammar: str | None = None
    later_grammars: tuple[tuple[int, str], ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    endpoint_tokens: tuple[int, int] | None = None
    forks: tuple[tuple[int, int], ...] = ()

    @property
    def branches(self) -> tuple[tuple[int, ...], ...]:
        """The positions of each conversation's tokens, from first to last. Without forks, there is one conversation."""
        starts = [0, *(place for place, _ in self.forks)]
        stops = [*starts[1:], len(self.token_ids)]
        paths: list[tuple[int, ...]] = []  # to the end of each stretch between two forks
        for start, stop, (_, after) in zip(starts, stops, ((0, -1), *self.forks), strict=True):
            earlier = paths[bisect_right(starts, after) - 1] if after >= 0 else ()
            paths.append((*earlier[: bisect_right(earlier, after)], *range(start, stop)))
        continued = {after for _, after in self.forks}
        return tuple(path for path, stop in zip(paths, stops, strict=True) if stop - 1 not in continued)

    def grammar_of(self, turn: int) -> str | None:
        """Return the grammar that a turn was sampled under."""
        return next((grammar for first, grammar in reversed(self.later_grammars) if first <= turn), self.grammar)

    @property
    def token_counts(self) -> tuple[int, int]:
        """How many tokens the policy read (each counted once), and how many it sampled."""
        sampled = sum(self.sampled)
        return self.endpoint_tokens or (len(self.token_ids) - sampled, sampled)

    def __post_init__(self) -> None:
        if self.endpoint_tokens is not None and self.token_ids:
            raise ValueError(
                f"trajectory {self.task_id}/{self.member}: it came from an endpoint, which returned no token ids"
            )
        columns = (self.sampled, self.forced, self.fixed, self.logprobs, self.turn_index, self.weights_version)
        if any(len(column) != len(self.token_ids) for column in columns):
            raise ValueError(f"trajectory {self.task_id}/{self.member}: its columns have different lengths")
        if any(not -1 <= after < place < len(self.token_ids) for place, after in self.forks) or any(
            one >= other for (one, _), (other, _) in pairwise(self.forks)
        ):
            raise ValueError(f"trajectory {self.task_id}/{self.member}: its forks are not in order")
        for sampled, forced, fixed, logprob in zip(self.sampled, self.forced, self.fixed, self.logprobs, strict=True):
            if sampled and not (math.isfinite(logprob) and logprob <= 0.0):
                raise ValueError(f"trajectory {self.task_id}/{self.member}: {logprob} is not a valid logprob")
            if not sampled and (forced or fixed or logprob != 0.0):
                raise ValueError(f"trajectory {self.task_id}/{self.member}: a context token is marked as sampled")


def turns_by_message(turns: Sequence[Turn]) -> list[tuple[Turn, ...]]:
    """Group the turns by the user message that they respond to, in order.

    A group ends with a turn without calls, or at the end of the episode. User messages that were never sent have no
    group.
    """
    groups: list[tuple[Turn, ...]] = []
    begun: list[Turn] = []
    for turn in turns:
        begun.append(turn)
        if not turn.calls:
            groups.append(tuple(begun))
            begun = []
    return [*groups, tuple(begun)] if begun else groups


@dataclass(frozen=True, slots=True, kw_only=True)
class LostEpisode:
    """An attempt lost to an infrastructure fault. It is counted, and the episode is run again. No update uses it."""

    task_id: str
    member: int
    attempt: int
    code: str
    reason: str

    def __str__(self) -> str:
        return f"{self.task_id}/{self.member} ({self.code} {self.reason})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The episodes of one task in one step, in the order of their index, and the attempts that were lost.

    Group(task=task, trajectories=(t0, t1, t2, t3), lost=())     # group_size 4
    """

    task: Task
    trajectories: tuple[Trajectory, ...]
    lost: tuple[LostEpisode, ...] = ()

    def __post_init__(self) -> None:
        if len(self.trajectories) < 2:
            raise ValueError(
                f"group of task {self.task.id} has {len(self.trajectories)} trajectories, but needs at least 2"
            )
        if any(one.member >= other.member for one, other in pairwise(self.trajectories)):
            raise ValueError(f"group of task {self.task.id}: its episodes are duplicated or not sorted")
        if any(t.task_id != self.task.id for t in self.trajectories):
            raise ValueError(f"group of task {self.task.id} contains a trajectory of another task")

    @property
    def has_variance(self) -> bool:
        """Return whether the rewards differ. If not, all advantages are 0 and there is nothing to learn."""
        return any(t.reward != self.trajectories[0].reward for t in self.trajectories)


Columns = tuple[tuple[float, ...], ...]
"""One number per token of each trajectory, in the order of the trajectories."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """What the learner computes about trajectories before the update. A field that the objective does not need is None.

    Columns have one entry per token; it is 0 for tokens that were not sampled. `values[i][t]` is the value head's
    output at the state before token t.

    Readings(logprobs=None, reference_logprobs=((0.0, -0.4, -1.1),), values=None)
    """

    logprobs: Columns | None = None
    reference_logprobs: Columns | None = None
    values: Columns | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Groups with their advantages: the input of one update.

    `learnable[i][t]` and `advantages[i][t]` belong to token t of the i-th trajectory, counted over all groups in order.
    Only learnable tokens carry loss; the advantage of all others is 0. Example: GRPO with two groups of two
    trajectories, and rewards (1, 0) and (0.5, 0.5):

        advantages of the first group: +0.71 and −0.71 on learnable tokens; of the second: 0 (no variance, no signal)

    `readings` belong to the same trajectories. `returns` are the targets of the value head, or None without a value
    head. `demonstrations` are trajectories to imitate: their loss is multiplied by `demonstration_weight`, and they
    have no advantages.
    """

    step: int
    groups: tuple[Group, ...]
    learnable: tuple[tuple[bool, ...], ...]
    advantages: Columns
    returns: Columns | None = None
    readings: Readings = Readings()
    kl_coefficient: float = 0.0
    demonstrations: tuple[Trajectory, ...] = ()
    demonstration_weight: float = 0.0

    def __post_init__(self) -> None:
        trajectories = self.trajectories
        if any(t.endpoint_tokens is not None for t in (*trajectories, *self.demonstrations)):
            raise ValueError("an episode that ran at an endpoint cannot be trained on: it has no token ids")
        lengths = [len(t.token_ids) for t in trajectories]
        if lengths != [len(a) for a in self.advantages] or lengths != [len(mask) for mask in self.learnable]:
            raise ValueError("a batch needs one advantage and one mask for each token of each trajectory")
        read = (self.returns, self.readings.logprobs, self.readings.reference_logprobs, self.readings.values)
        if any(columns is not None and lengths != [len(column) for column in columns] for columns in read):
            raise ValueError("the batch does not have returns and readings for each of its trajectories")
        for trajectory, mask in zip(trajectories, self.learnable, strict=True):
            if any(m and not s for m, s in zip(mask, trajectory.sampled, strict=True)):
                raise ValueError(f"batch {self.step}: a token that was not sampled is marked learnable")

    @property
    def trajectories(self) -> tuple[Trajectory, ...]:
        return tuple(t for group in self.groups for t in group.trajectories)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A version of the policy's weights. Version 0 is the original model; every other version has a folder.

    `adapter` is the folder of a LoRA adapter. `model` is the folder of a full model, if all weights are trained.
    """

    version: int
    adapter: Path | None = None
    model: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """The result of one update.

    If the update was skipped (NaN, too few tokens, too far from the reference), the weights are unchanged,
    `metrics["update_skipped"]` is 1, and `skipped` gives the reason and the episodes that caused it. `ratios` are the
    probability ratios (new over old) of each token when it was last scored; 0 for tokens without loss.

    Update(step=3, weights=Weights(version=4, adapter=Path("…/weights/v4")),
           metrics={"loss": -0.012, "grad_norm": 0.8, "parity_ratio_mean_abs_error": 3.1e-06, …},
           ratios=((0.0, 0.0, 0.98, 1.03), …))
    """

    step: int
    weights: Weights
    metrics: Mapping[str, float]
    ratios: Columns
    skipped: str | None = None
