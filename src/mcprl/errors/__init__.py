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
    │   ├── ToolLimitError           E-LIMIT-001  a server lists or describes more than is read of a server
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
    │   ├── UnsharableError          E-LEARN-004  the model's attention does not let trajectories share a prefix
    │   ├── UnfitEngineError         E-ENG-001    the engine cannot do what the run needs
    │   ├── NoRunError               E-RUN-001    a folder is not that of a run, or cannot be continued as asked
    │   ├── RunInUseError            E-RUN-002    another process has the run open
    │   ├── NoCheckpointError        E-RUN-003    none of the run's checkpoints can be used
    │   ├── OtherStateError          E-RUN-004    a checkpoint was saved under other settings
    │   └── NoRoomError              E-RUN-005    the disk has no room for the checkpoints of the run
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
        ├── LearnerLostError         E-LEARN-010  a process of the learner went away
        ├── EngineStartError         E-ENG-010    the engine's server did not become ready
        ├── EngineLostError          E-ENG-011    the engine's server went away or failed a request
        ├── WorkersStartError        E-WORK-010   the workers that play episodes did not start
        ├── WorkerLostError          E-WORK-011   a worker went away with its episodes
        ├── StorageError             E-RUN-010    the run's folder could not be written or read
        └── ResourceLimitError       E-RUN-011    the system refused a thread, a process or memory

A fault of the policy (a call of an unknown tool, bad arguments, text that does not parse) is no exception: it becomes
an observation that the policy reads, and the episode is scored. `Fault.POLICY` marks it there.
"""

from __future__ import annotations

from mcprl.errors.base import (
    ConfigurationError,
    Fault,
    InfrastructureError,
    McprlError,
)
from mcprl.errors.configuration import (
    BadToolSchemaError,
    BadValueError,
    BudgetExceededError,
    CassetteError,
    ConfigFileError,
    DuplicateToolError,
    EmptyCatalogError,
    MissingExtraError,
    MissingKeyError,
    NoCheckpointError,
    NoRoomError,
    NoRunError,
    OtherStateError,
    OtherWorldError,
    RunInUseError,
    SandboxMissingError,
    ServerFileError,
    TaskFileError,
    ToolLimitError,
    ToolsChangedError,
    UnknownKeyError,
    UnknownToolError,
)
from mcprl.errors.infrastructure import (
    BreakerOpenError,
    CallDeadlineError,
    EngineLostError,
    EngineStartError,
    EpisodeDeadlineError,
    GroupIncompleteError,
    JudgeError,
    LearnerLostError,
    ResourceLimitError,
    SamplerLostError,
    SamplerStartError,
    SandboxLostError,
    ServerBusyError,
    ServerFaultError,
    ServerLostError,
    ServerStartError,
    StorageError,
    ToolServerError,
    WorkerLostError,
    WorkersStartError,
)
from mcprl.errors.learning import (
    AlignmentError,
    GrammarError,
    InadmissibleTokenError,
    MissingLogprobError,
    NoCallSyntaxError,
    NonFiniteError,
    ParityError,
    UnbridgeableError,
    UnfitEngineError,
    UnheldSchemaError,
    UnsharableError,
)

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
    "EngineLostError",
    "EngineStartError",
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
    "NoCheckpointError",
    "NoRoomError",
    "NoRunError",
    "NonFiniteError",
    "OtherStateError",
    "OtherWorldError",
    "ParityError",
    "ResourceLimitError",
    "RunInUseError",
    "SamplerLostError",
    "SamplerStartError",
    "SandboxLostError",
    "SandboxMissingError",
    "ServerBusyError",
    "ServerFaultError",
    "ServerFileError",
    "ServerLostError",
    "ServerStartError",
    "StorageError",
    "TaskFileError",
    "ToolLimitError",
    "ToolServerError",
    "ToolsChangedError",
    "UnbridgeableError",
    "UnfitEngineError",
    "UnheldSchemaError",
    "UnknownKeyError",
    "UnknownToolError",
    "UnsharableError",
    "WorkerLostError",
    "WorkersStartError",
]
