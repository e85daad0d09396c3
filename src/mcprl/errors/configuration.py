"""Errors that the user mends: in a file, a flag, or what is installed."""

from __future__ import annotations

from mcprl.errors.base import ConfigurationError

__all__ = [
    "AlignmentError",
    "BadToolSchemaError",
    "BadValueError",
    "BudgetExceededError",
    "CassetteError",
    "ConfigFileError",
    "DuplicateToolError",
    "EmptyCatalogError",
    "GrammarError",
    "InadmissibleTokenError",
    "MissingExtraError",
    "MissingKeyError",
    "MissingLogprobError",
    "NoCallSyntaxError",
    "NoCheckpointError",
    "NoRoomError",
    "NoRunError",
    "NonFiniteError",
    "OtherStateError",
    "OtherWorldError",
    "ParityError",
    "RunInUseError",
    "SandboxMissingError",
    "ServerFileError",
    "TaskFileError",
    "ToolsChangedError",
    "UnbridgeableError",
    "UnfitEngineError",
    "UnheldSchemaError",
    "UnknownKeyError",
    "UnknownToolError",
    "UnsharableError",
]


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


class UnfitEngineError(ConfigurationError):
    """The engine, or the client that speaks to it, cannot do what the run needs."""

    code = "E-ENG-001"


class NoRunError(ConfigurationError):
    """A folder is not that of a run, or the run in it cannot be continued as asked."""

    code = "E-RUN-001"


class RunInUseError(ConfigurationError):
    """Another process has the run open: two that write to one folder would spoil it."""

    code = "E-RUN-002"


class NoCheckpointError(ConfigurationError):
    """None of a run's checkpoints is whole, or not the one that was asked for."""

    code = "E-RUN-003"


class OtherStateError(ConfigurationError):
    """A checkpoint was saved under other settings than those it is to be loaded under."""

    code = "E-RUN-004"


class NoRoomError(ConfigurationError):
    """The disk has no room for the checkpoints that the run would keep."""

    code = "E-RUN-005"
