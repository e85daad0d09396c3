"""Every error of mcprl: whose fault it is, a code, what happened, and the fix.

The tree has one branch for each kind of fault, because the kind decides what the run does next:

    McprlError
    ├── ConfigurationError   the user mends a file or a flag; the run stops before, or as soon as, it matters
    │   ├── ConfigFileError          E-CONF-001   a configuration file cannot be read
    │   ├── UnknownKeyError          E-CONF-002   a key that no setting has
    │   ├── BadValueError            E-CONF-003   a setting with a value it cannot take
    │   ├── MissingExtraError        E-CONF-004   a part of mcprl that is not installed
    │   ├── TaskFileError            E-TASK-001   a task file, or one task in it, cannot be read
    │   ├── OtherWorldError          E-TASK-002   a task's answers are true of another world than the servers serve
    │   ├── ServerFileError          E-TOOL-001   an mcpServers file cannot be read
    │   ├── DuplicateToolError       E-TOOL-002   two servers offer a tool of the same name
    │   ├── UnknownToolError         E-TOOL-003   a task names a tool that no server lists
    │   ├── EmptyCatalogError        E-TOOL-004   the servers together offer no tool
    │   ├── BadToolSchemaError       E-TOOL-005   a server describes a tool's arguments with an invalid schema
    │   ├── ToolsChangedError        E-TOOL-006   a server's tools are no longer those that were pinned
    │   ├── MissingKeyError          E-TOOL-007   a server needs a key that is not set
    │   ├── BudgetExceededError      E-TOOL-008   the next call would exceed a server's budget
    │   ├── CassetteError            E-TOOL-009   a cassette cannot be read or written
    │   ├── SandboxMissingError      E-SAND-001   the sandbox that runs a policy's code cannot be built here
    │   ├── UnbridgeableError        E-CHAT-001   the chat template cannot continue a conversation token by token
    │   ├── UnheldSchemaError        E-CHAT-002   a tool's schema asks for what a grammar cannot hold
    │   ├── NoCallSyntaxError        E-CHAT-003   calls cannot be held: how the family writes them is not known
    │   ├── GrammarError             E-CHAT-004   the grammar of the tools on offer does not compile
    │   ├── MissingLogprobError      E-SAMP-001   the sampler returned tokens without their logprobs
    │   ├── InadmissibleTokenError   E-SAMP-002   the sampler returned a token that the grammar does not admit
    │   ├── AlignmentError           E-LEARN-001  the learner scored other tokens than those sampled
    │   ├── ParityError              E-LEARN-002  sampler and learner disagree about the same tokens
    │   ├── NonFiniteError           E-LEARN-003  rewards, losses or gradients were no numbers in update after update
    │   └── UnsharableError          E-LEARN-004  the model's attention does not let trajectories share a prefix
    └── InfrastructureError  the world failed; the episode is run again and leaves no trace in the objective
        ├── ToolServerError          a tool server failed; says whether the call may have reached it
        │   ├── ServerStartError     E-TOOL-010   a tool server did not start
        │   ├── ServerLostError      E-TOOL-011   a tool server went away during a call
        │   ├── CallDeadlineError    E-TOOL-012   a tool call took longer than its deadline
        │   ├── ServerFaultError     E-TOOL-013   a tool server answered a call with a fault of its own
        │   ├── ServerBusyError      E-TOOL-014   a tool server asked to be called later
        │   └── BreakerOpenError     E-TOOL-015   a tool server kept failing and is left alone for a while
        ├── SandboxLostError         E-SAND-010   the sandbox failed, and the code in it is not to blame
        ├── SamplerStartError        E-SAMP-010   the sampler did not start
        ├── SamplerLostError         E-SAMP-011   the sampler went away or answered with an error
        ├── EpisodeDeadlineError     E-EPIS-010   an episode took longer than its deadline
        ├── GroupIncompleteError     E-EPIS-011   a group lost more episodes than it may
        ├── JudgeError               E-EPIS-012   the judge gave no grade
        └── LearnerLostError         E-LEARN-010  a process of the learner went away

A fault of the policy (a call of an unknown tool, bad arguments, text that does not parse) is no exception: it becomes
an observation that the policy reads, and the episode is scored. `Fault.POLICY` marks it there.
"""

from __future__ import annotations

import copyreg
from enum import StrEnum
from typing import Any, ClassVar

from mcprl.redact import SECRETS

__all__ = [
    "AlignmentError",
    "BadToolSchemaError",
    "BadValueError",
    "BreakerOpenError",
    "BudgetExceededError",
    "CallDeadlineError",
    "CassetteError",
    "ConfigFileError",
    "ConfigurationError",
    "DuplicateToolError",
    "EmptyCatalogError",
    "EpisodeDeadlineError",
    "Fault",
    "GrammarError",
    "GroupIncompleteError",
    "InadmissibleTokenError",
    "InfrastructureError",
    "JudgeError",
    "LearnerLostError",
    "McprlError",
    "MissingExtraError",
    "MissingKeyError",
    "MissingLogprobError",
    "NoCallSyntaxError",
    "NonFiniteError",
    "OtherWorldError",
    "ParityError",
    "SamplerLostError",
    "SamplerStartError",
    "SandboxLostError",
    "SandboxMissingError",
    "ServerBusyError",
    "ServerFaultError",
    "ServerFileError",
    "ServerLostError",
    "ServerStartError",
    "TaskFileError",
    "ToolServerError",
    "ToolsChangedError",
    "UnbridgeableError",
    "UnheldSchemaError",
    "UnknownKeyError",
    "UnknownToolError",
    "UnsharableError",
]


class Fault(StrEnum):
    """Whose fault something is."""

    INFRASTRUCTURE = "infrastructure"
    POLICY = "policy"
    CONFIGURATION = "configuration"


class McprlError(Exception):
    """Base of all errors. `str(error)` is the whole sentence for a person: code, what happened, fix."""

    code: ClassVar[str]
    fault: ClassVar[Fault]

    def __init__(self, what: str, *, fix: str) -> None:
        # An error may quote what a server wrote, or a command with a key in it.
        self.what = SECRETS.redact(what)
        self.fix = SECRETS.redact(fix)
        super().__init__(self.what)

    def __str__(self) -> str:
        return f"{self.code} {self.what}. Fix: {self.fix}."

    def __reduce__(self) -> tuple[Any, ...]:
        # For another process: not made anew from `what` alone, but as it is.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # pyright: ignore


class ConfigurationError(McprlError):
    """Something the user wrote, chose or installed is wrong."""

    fault = Fault.CONFIGURATION


class InfrastructureError(McprlError):
    """The world failed: a server, the network, the sampler's process. Nothing the policy did."""

    fault = Fault.INFRASTRUCTURE


class ConfigFileError(ConfigurationError):
    """A configuration file is missing, is not YAML, or does not hold a mapping."""

    code = "E-CONF-001"


class UnknownKeyError(ConfigurationError):
    """A key that no setting has, most often a typing error."""

    code = "E-CONF-002"


class BadValueError(ConfigurationError):
    """A setting has a value of the wrong type or outside its bounds."""

    code = "E-CONF-003"


class MissingExtraError(ConfigurationError):
    """The configuration asks for a part of mcprl whose libraries are not installed."""

    code = "E-CONF-004"


class TaskFileError(ConfigurationError):
    """A task file, or one task in it, cannot be read."""

    code = "E-TASK-001"


class OtherWorldError(ConfigurationError):
    """A task's answers are true of another world than the servers serve."""

    code = "E-TASK-002"


class ServerFileError(ConfigurationError):
    """An mcpServers file cannot be read, or one of its entries is neither a command nor a URL."""

    code = "E-TOOL-001"


class DuplicateToolError(ConfigurationError):
    """Two servers offer a tool of the same name, so a call could not be routed."""

    code = "E-TOOL-002"


class UnknownToolError(ConfigurationError):
    """A task names a tool that no server lists: it could never be solved, so the run does not start."""

    code = "E-TOOL-003"


class EmptyCatalogError(ConfigurationError):
    """The servers together offer no tool: there would be nothing to learn."""

    code = "E-TOOL-004"


class BadToolSchemaError(ConfigurationError):
    """A server describes a tool's arguments with something that is no valid JSON schema."""

    code = "E-TOOL-005"


class ToolsChangedError(ConfigurationError):
    """A server's tools, their descriptions or schemas differ from those pinned: the policy would be misled."""

    code = "E-TOOL-006"


class MissingKeyError(ConfigurationError):
    """A server needs a key that is neither in the environment nor in the file of keys."""

    code = "E-TOOL-007"


class BudgetExceededError(ConfigurationError):
    """The next call would exceed what the run may spend on a server. The call is not made."""

    code = "E-TOOL-008"


class CassetteError(ConfigurationError):
    """A cassette cannot be read or written, or holds something else than recorded calls."""

    code = "E-TOOL-009"


class SandboxMissingError(ConfigurationError):
    """The machine lacks what the sandbox is built of: bubblewrap, namespaces, seccomp, or a known processor."""

    code = "E-SAND-001"


class UnbridgeableError(ConfigurationError):
    """The model's chat template cannot continue a conversation without changing the tokens already sampled."""

    code = "E-CHAT-001"


class UnheldSchemaError(ConfigurationError):
    """A tool's schema asks for what a grammar cannot hold, so a call could be admitted that the tool refuses."""

    code = "E-CHAT-002"


class NoCallSyntaxError(ConfigurationError):
    """Calls are to be held to a grammar, but how the model's family writes them is not known."""

    code = "E-CHAT-003"


class GrammarError(ConfigurationError):
    """The grammar of the tools on offer does not compile."""

    code = "E-CHAT-004"


class MissingLogprobError(ConfigurationError):
    """The sampler returned tokens without logprobs: the ratio of policies would be undefined."""

    code = "E-SAMP-001"


class InadmissibleTokenError(ConfigurationError):
    """The sampler returned a token that the grammar does not admit: the two hold different grammars or tokenizers."""

    code = "E-SAMP-002"


class AlignmentError(ConfigurationError):
    """The learner scored other tokens than those the sampler emitted."""

    code = "E-LEARN-001"


class ParityError(ConfigurationError):
    """Sampler and learner give the same tokens different probabilities before any update."""

    code = "E-LEARN-002"


class NonFiniteError(ConfigurationError):
    """Update after update met a reward, logprob, loss or gradient that is no number. None of them was made."""

    code = "E-LEARN-003"


class UnsharableError(ConfigurationError):
    """The model's attention does not let trajectories share a prefix."""

    code = "E-LEARN-004"


class ToolServerError(InfrastructureError):
    """A tool server failed a call. `delivered` is False only where the call provably never reached its tool.

    `retry_after_s` is how long the server, or whoever stands before it, asked to be left alone.
    """

    def __init__(self, what: str, *, fix: str, delivered: bool = True, retry_after_s: float | None = None) -> None:
        super().__init__(what, fix=fix)
        self.delivered = delivered
        self.retry_after_s = retry_after_s


class ServerStartError(ToolServerError):
    """A tool server did not start or did not answer its handshake in time. Nothing was delivered."""

    code = "E-TOOL-010"

    def __init__(self, what: str, *, fix: str) -> None:
        super().__init__(what, fix=fix, delivered=False)


class ServerLostError(ToolServerError):
    """A tool server went away while a call was in flight."""

    code = "E-TOOL-011"


class CallDeadlineError(ToolServerError):
    """A tool call took longer than its deadline."""

    code = "E-TOOL-012"


class ServerFaultError(ToolServerError):
    """A tool server is alive but answered a call with a protocol error or a malformed result."""

    code = "E-TOOL-013"


class ServerBusyError(ToolServerError):
    """A tool server, or the gateway before it, asked to be called later: HTTP 429, or 503 with Retry-After."""

    code = "E-TOOL-014"


class BreakerOpenError(ToolServerError):
    """A tool server kept failing, is left alone for a while, and the call could wait no longer."""

    code = "E-TOOL-015"


class SandboxLostError(InfrastructureError):
    """The sandbox did not start, or was ended from outside. Says nothing about the code it was to run."""

    code = "E-SAND-010"


class SamplerStartError(InfrastructureError):
    """The sampler's process did not become healthy."""

    code = "E-SAMP-010"


class SamplerLostError(InfrastructureError):
    """The sampler went away, or answered with an error."""

    code = "E-SAMP-011"


class EpisodeDeadlineError(InfrastructureError):
    """An episode took longer than its deadline."""

    code = "E-EPIS-010"


class GroupIncompleteError(InfrastructureError):
    """A group lost more episodes to the infrastructure than it may run again."""

    code = "E-EPIS-011"


class JudgeError(InfrastructureError):
    """The judge could not be reached, was too slow, failed, or answered with something else than a grade;
    `retry_after_s` is how long it asked to be left alone."""

    code = "E-EPIS-012"

    def __init__(self, what: str, *, fix: str, retry_after_s: float | None = None) -> None:
        super().__init__(what, fix=fix)
        self.retry_after_s = retry_after_s


class LearnerLostError(InfrastructureError):
    """A process of the learner went away."""

    code = "E-LEARN-010"
