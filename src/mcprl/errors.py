"""Every error of mcprl: whose fault it is, a code, what happened, and the fix.

The tree has one branch for each kind of fault, because the kind decides what the run does next:

    McprlError
    ├── ConfigurationError   the user mends a file or a flag; the run stops before, or as soon as, it matters
    │   ├── ConfigFileError          E-CONF-001   a configuration file cannot be read
    │   ├── UnknownKeyError          E-CONF-002   a key that no setting has
    │   ├── BadValueError            E-CONF-003   a setting with a value it cannot take
    │   ├── MissingExtraError        E-CONF-004   a part of mcprl that is not installed
    │   ├── TaskFileError            E-TASK-001   a task file, or one task in it, cannot be read
    │   ├── ServerFileError          E-TOOL-001   an mcpServers file cannot be read
    │   ├── DuplicateToolError       E-TOOL-002   two servers offer a tool of the same name
    │   ├── UnknownToolError         E-TOOL-003   a task names a tool that no server lists
    │   ├── EmptyCatalogError        E-TOOL-004   the servers together offer no tool
    │   ├── BadToolSchemaError       E-TOOL-005   a server describes a tool's arguments with an invalid schema
    │   ├── UnbridgeableError        E-CHAT-001   the chat template cannot continue a conversation token by token
    │   ├── MissingLogprobError      E-SAMP-001   the sampler returned tokens without their logprobs
    │   ├── AlignmentError           E-LEARN-001  the learner scored other tokens than those sampled
    │   ├── ParityError              E-LEARN-002  sampler and learner disagree about the same tokens
    │   └── NonFiniteError           E-LEARN-003  a loss or gradient is not a number
    └── InfrastructureError  the world failed; the episode is run again and leaves no trace in the objective
        ├── ServerStartError         E-TOOL-010   a tool server did not start
        ├── ServerLostError          E-TOOL-011   a tool server went away during a call
        ├── CallDeadlineError        E-TOOL-012   a tool call took longer than its deadline
        ├── ServerFaultError         E-TOOL-013   a tool server answered a call with a fault of its own
        ├── SamplerStartError        E-SAMP-010   the sampler did not start
        ├── SamplerLostError         E-SAMP-011   the sampler went away or answered with an error
        ├── EpisodeDeadlineError     E-EPIS-010   an episode took longer than its deadline
        └── GroupIncompleteError     E-EPIS-011   a group lost more episodes than it may

A fault of the policy (a call of an unknown tool, bad arguments, text that does not parse) is no exception: it becomes
an observation that the policy reads, and the episode is scored. `Fault.POLICY` marks it there.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

__all__ = [
    "AlignmentError",
    "BadToolSchemaError",
    "BadValueError",
    "CallDeadlineError",
    "ConfigFileError",
    "ConfigurationError",
    "DuplicateToolError",
    "EmptyCatalogError",
    "EpisodeDeadlineError",
    "Fault",
    "GroupIncompleteError",
    "InfrastructureError",
    "McprlError",
    "MissingExtraError",
    "MissingLogprobError",
    "NonFiniteError",
    "ParityError",
    "SamplerLostError",
    "SamplerStartError",
    "ServerFaultError",
    "ServerFileError",
    "ServerLostError",
    "ServerStartError",
    "TaskFileError",
    "UnbridgeableError",
    "UnknownKeyError",
    "UnknownToolError",
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
        super().__init__(what)
        self.what = what
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.code} {self.what}. Fix: {self.fix}."


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


class UnbridgeableError(ConfigurationError):
    """The model's chat template cannot continue a conversation without changing the tokens already sampled."""

    code = "E-CHAT-001"


class MissingLogprobError(ConfigurationError):
    """The sampler returned tokens without logprobs: the ratio of policies would be undefined."""

    code = "E-SAMP-001"


class AlignmentError(ConfigurationError):
    """The learner scored other tokens than those the sampler emitted."""

    code = "E-LEARN-001"


class ParityError(ConfigurationError):
    """Sampler and learner give the same tokens different probabilities before any update."""

    code = "E-LEARN-002"


class NonFiniteError(ConfigurationError):
    """A loss or a gradient is infinite or not a number. The optimiser step is not made."""

    code = "E-LEARN-003"


class ServerStartError(InfrastructureError):
    """A tool server did not start or did not answer its handshake in time."""

    code = "E-TOOL-010"


class ServerLostError(InfrastructureError):
    """A tool server went away while a call was in flight."""

    code = "E-TOOL-011"


class CallDeadlineError(InfrastructureError):
    """A tool call took longer than its deadline."""

    code = "E-TOOL-012"


class ServerFaultError(InfrastructureError):
    """A tool server is alive but answered a call with a protocol error or a malformed result."""

    code = "E-TOOL-013"


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
