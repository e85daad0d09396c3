"""All errors that mcprl raises. Each has a kind of fault, a code, a description of what happened, and a fix.

The class tree has one branch for each kind of fault, because the kind decides what the run does next:

    McprlError
    ├── ConfigurationError   the user must fix a file or an option; the run stops or does not start
    │   ├── ConfigFileError          E-CONF-001   a configuration file cannot be read
    │   ├── UnknownKeyError          E-CONF-002   a key that is not the name of a setting
    │   ├── BadValueError            E-CONF-003   a setting with an invalid value
    │   ├── MissingExtraError        E-CONF-004   a part of mcprl that is not installed
    │   ├── UserCodeError            E-CODE-001   a function of your own, used in a recipe, does not work
    │   ├── TaskFileError            E-TASK-001   a task file, or one task in it, cannot be read
    │   ├── OtherWorldError          E-TASK-002   a task needs a world that the servers do not provide
    │   ├── NoReachableToolError     E-TASK-003   synthesis knows no values with which a tool can be called
    │   ├── NoConsentError           E-TASK-004   synthesis needs your consent to call tools
    │   ├── ServerFileError          E-TOOL-001   an mcpServers file cannot be read
    │   ├── DuplicateToolError       E-TOOL-002   two servers offer a tool of the same name
    │   ├── UnknownToolError         E-TOOL-003   a task refers to a tool that no server offers
    │   ├── EmptyCatalogError        E-TOOL-004   the servers offer no tools
    │   ├── BadToolSchemaError       E-TOOL-005   a server describes a tool's arguments with an invalid schema
    │   ├── ToolsChangedError        E-TOOL-006   a server's tools no longer match the pinned ones
    │   ├── MissingKeyError          E-TOOL-007   a server needs a key that is not set
    │   ├── BudgetExceededError      E-TOOL-008   the next call would exceed a server's budget
    │   ├── CassetteError            E-TOOL-009   a cassette cannot be read or written
    │   ├── ToolLimitError           E-LIMIT-001  a server lists or describes more than mcprl reads
    │   ├── SandboxMissingError      E-SAND-001   the machine lacks what the sandbox for code or a server needs
    │   ├── UnbridgeableError        E-CHAT-001   the chat template cannot extend a conversation without changing it
    │   ├── UnheldSchemaError        E-CHAT-002   a grammar cannot express a tool's schema
    │   ├── NoCallSyntaxError        E-CHAT-003   the call format of the model's family is not known
    │   ├── GrammarError             E-CHAT-004   the grammar of the offered tools does not compile
    │   ├── MissingLogprobError      E-SAMP-001   the sampler returned tokens without their logprobs
    │   ├── InadmissibleTokenError   E-SAMP-002   the sampler returned a token that the grammar does not allow
    │   ├── AlignmentError           E-LEARN-001  the learner scored tokens other than those sampled
    │   ├── ParityError              E-LEARN-002  sampler and learner disagree about the same tokens
    │   ├── NonFiniteError           E-LEARN-003  several updates in a row had NaN or Inf values
    │   ├── UnsharableError          E-LEARN-004  the model's attention does not let trajectories share a prefix
    │   ├── UnfitEngineError         E-ENG-001    the engine cannot do what the run needs
    │   ├── NoRunError               E-RUN-001    the folder does not contain a run, or the run cannot be continued
    │   ├── RunInUseError            E-RUN-002    another process has the run open
    │   ├── NoCheckpointError        E-RUN-003    none of the run's checkpoints can be used
    │   ├── OtherStateError          E-RUN-004    a checkpoint was saved with other settings
    │   └── NoRoomError              E-RUN-005    the disk has no room for the run's checkpoints
    └── InfrastructureError  a server, network or process failed; a lost episode is not scored but run again
        ├── ToolServerError          a tool server failed; `delivered` says if the call may have reached the tool
        │   ├── ServerStartError     E-TOOL-010   a tool server did not start
        │   ├── ServerLostError      E-TOOL-011   a tool server ended or disconnected during a call
        │   ├── CallDeadlineError    E-TOOL-012   a tool call took longer than its deadline
        │   ├── ServerFaultError     E-TOOL-013   a tool server answered a call with an internal error
        │   ├── ServerBusyError      E-TOOL-014   a tool server asked mcprl to repeat a call later
        │   └── BreakerOpenError     E-TOOL-015   a tool server kept failing and is not called for a while
        ├── SandboxLostError         E-SAND-010   the sandbox failed, and the code in it is not to blame
        ├── SamplerStartError        E-SAMP-010   the sampler did not start
        ├── SamplerLostError         E-SAMP-011   the sampler disappeared or answered with an error
        ├── EpisodeDeadlineError     E-EPIS-010   an episode took longer than its deadline
        ├── GroupIncompleteError     E-EPIS-011   every attempt at an episode was lost
        ├── JudgeError               E-EPIS-012   the judge gave no grade
        ├── RewardFunctionError      E-EPIS-013   a reward function with on_error: lose_episode failed
        ├── UserModelError           E-EPIS-014   the model that plays the user gave no reply
        ├── AgentError               the agent's program failed, and the policy is not to blame
        │   ├── AgentFailedError     E-AGENT-010  the agent ended with an error
        │   ├── AgentSilentError     E-AGENT-011  the agent ended without calling the model
        │   ├── AgentHungError       E-AGENT-012  the agent did nothing until the deadline
        │   └── AgentRequestError    E-AGENT-013  the agent sent a request that the model cannot process
        ├── LearnerLostError         E-LEARN-010  a process of the learner ended or disconnected
        ├── EngineStartError         E-ENG-010    the engine's server did not become ready
        ├── EngineLostError          E-ENG-011    the engine's server disappeared or failed a request
        ├── WorkersStartError        E-WORK-010   the workers that run episodes did not start
        ├── WorkerLostError          E-WORK-011   a worker was lost together with its episodes
        ├── StorageError             E-RUN-010    the run's folder could not be written or read
        └── ResourceLimitError       E-RUN-011    the system refused a thread, a process or memory

A mistake by the policy (a call to an unknown tool, bad arguments, text that does not parse) is not an exception: it
becomes an observation that the policy reads, and the episode is scored. `Fault.POLICY` marks that observation.
"""

from __future__ import annotations

import copyreg
import difflib
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, ClassVar

__all__ = [
    "AgentError",
    "AgentFailedError",
    "AgentHungError",
    "AgentRequestError",
    "AgentSilentError",
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
    "NoConsentError",
    "NoReachableToolError",
    "NoRoomError",
    "NoRunError",
    "NonFiniteError",
    "OtherStateError",
    "OtherWorldError",
    "ParityError",
    "ResourceLimitError",
    "RewardFunctionError",
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
    "UserCodeError",
    "UserModelError",
    "WorkerLostError",
    "WorkersStartError",
    "did_you_mean",
]


class Fault(StrEnum):
    """What is to blame for a failure: the infrastructure, the policy, or the configuration."""

    INFRASTRUCTURE = "infrastructure"
    POLICY = "policy"
    CONFIGURATION = "configuration"


class McprlError(Exception):
    """Base class of all mcprl errors. `str(error)` is the full message: the code, what happened, and the fix."""

    code: ClassVar[str]
    fault: ClassVar[Fault]

    def __init_subclass__(cls, code: str | None = None) -> None:
        if code is not None:
            cls.code = code

    def __init__(self, what: str, *, fix: str) -> None:
        # Imported only when needed: compiling its patterns would double the time of `mcprl --help`.
        from mcprl.secrets import SECRETS

        # An error may quote what a server wrote, or a command with a key in it.
        self.what = SECRETS.redact(what)
        self.fix = SECRETS.redact(fix)
        super().__init__(self.what)

    def __str__(self) -> str:
        return f"{self.code} {self.what}. Fix: {self.fix}."

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickle all attributes. The default would call the class with `what` alone.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # pyright: ignore


class ConfigurationError(McprlError):
    """Something the user wrote, chose or installed is wrong."""

    fault = Fault.CONFIGURATION


class InfrastructureError(McprlError):
    """A server, the network or a process failed. The policy is not to blame.

    If the error ended an episode, `turns` has the calls of each turn, as (tool, arguments). The last is incomplete.
    """

    fault = Fault.INFRASTRUCTURE
    turns: tuple[tuple[tuple[str, Mapping[str, Any]], ...], ...] = ()


def did_you_mean(written: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown name, such as ` (did you mean 'steps'?)`. Empty if no known name is similar."""
    close = difflib.get_close_matches(written, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


class ConfigFileError(ConfigurationError, code="E-CONF-001"):
    """A configuration file is missing, is not YAML, or does not contain a mapping of settings.

    Causes: the path has a typo, or is relative to another folder; the YAML has a tab, a missing space after a colon, or
    an unclosed quote; a key appears twice.
    Fix: correct the file at the line given in the message; `mcprl train RECIPE --dry-run` checks it without starting
    anything.
    Example: recipes/mine.yaml:12: duplicate key 'steps'. Fix: remove one of the two.
    """


class UnknownKeyError(ConfigurationError, code="E-CONF-002"):
    """A key is not the name of a setting, usually because of a typo.

    Causes: a typo in a recipe or after `--set`; a key in the wrong section; a recipe for another version of mcprl.
    Fix: use the suggested name; `mcprl config explain` lists every setting.
    Example: --set training.step=3: unknown key 'training.step' (did you mean 'steps'?). Fix: rename it to 'steps'.
    """


class BadValueError(ConfigurationError, code="E-CONF-003"):
    """A setting has a value of the wrong type or outside its bounds.

    Causes: a number outside its bounds; a string instead of a number; a missing required setting; two settings that
    exclude each other.
    Fix: use a value of the type and within the bounds that `mcprl config explain FIELD` shows.
    Example: recipes/mine.yaml:9: 'training.steps' is 0, should be at least 1. Fix: correct the value.
    """


class MissingExtraError(ConfigurationError, code="E-CONF-004"):
    """The configuration uses a part of mcprl whose libraries are not installed.

    Causes: the recipe uses an engine, sharding or tracker that is not in the base installation; the command runs in an
    environment other than the one mcprl was installed into; a package that adds a command cannot be imported.
    Fix: install the extra named in the message in the environment that runs mcprl, or choose the alternative in the
    message; reinstall or remove a broken package.
    Example: learner.sharding is zero3, which needs DeepSpeed. Fix: install mcprl[deepspeed], or set learner.sharding to
    fsdp2.
    """


class UserCodeError(ConfigurationError, code="E-CODE-001"):
    """Your own function or class, named in the recipe as `file.py:name`, cannot be used.

    Causes: the file or the name in it does not exist; importing the file fails; the function raises an exception, or
    does not return what the documentation requires.
    Fix: correct the code at the file and line in the message.
    Example: /home/ana/losses.py:7: NameError: name 'torhc' is not defined, in /home/ana/losses.py:sapo. Fix: fix the
    code at this line.
    """


class TaskFileError(ConfigurationError, code="E-TASK-001"):
    """A task file, or one task in it, cannot be read.

    Causes: the path has a typo; a line that is not JSON; a field that is missing or has the wrong type; a duplicate id.
    Fix: correct the entries named in the message, at most five at a time; `mcprl tasks schema` prints what a task may
    contain.
    Example: tasks.jsonl:4: not JSON (there is text after the value). Fix: write one JSON object per line.
    """


class OtherWorldError(ConfigurationError, code="E-TASK-002"):
    """A task was made for an offline world that the servers do not provide, so its expected answers would be wrong.

    Causes: the tasks were generated for one offline world, but the server was started with another; the tasks expect an
    offline world, but the server is live.
    Fix: start the server with the tasks' world, or generate tasks for the server's world with `mcprl tasks generate`.
    Example: the answers to task d03 are correct for the world market-7, but server 'fmp' provides the world market-1.
    Fix: start the server with --world 7, or use tasks generated for its world.
    """


class NoReachableToolError(ConfigurationError, code="E-TASK-003"):
    """`mcprl tasks synthesize` found no argument values that a tool accepts, or no task that it could verify.

    Causes: no read-only tool can be called without arguments; no result contains a value that another tool takes as an
    argument; the servers do not declare which tools are read-only.
    Fix: list argument values, or the read-only tools, in a file: `mcprl tasks synthesize --hints hints.yaml`.
    Example: no tool of directory can be called with known values: find_person needs name, list_people needs city. Fix:
    write values for them into a file, such as `values: {city: [...]}`, and pass it with --hints.
    """


class NoConsentError(ConfigurationError, code="E-TASK-004"):
    """`mcprl tasks synthesize` needs to call tools, but you have not allowed these calls.

    Causes: you did not answer y; the command could not ask, because its input is not a terminal; --allow-writes names
    an unknown server.
    Fix: review the tools that the command lists, then answer y or pass --yes; correct the name after --allow-writes.
    Example: calling 21 tools up to 260 times each needs your consent. Fix: answer y, or pass --yes.
    """


class ServerFileError(ConfigurationError, code="E-TOOL-001"):
    """An mcpServers file cannot be read, or one of its entries is neither a command nor a URL.

    Causes: the path has a typo; the file is not JSON; an entry has neither `command` nor `url`; servers.settings has an
    entry for a server that is not in the file.
    Fix: correct the file where the message says; `mcprl tools list` starts its servers and shows their tools.
    Example: servers.json is not valid JSON: Expecting ',' delimiter: line 7 column 5. Fix: correct the file at this
    place.
    """


class DuplicateToolError(ConfigurationError, code="E-TOOL-002"):
    """Two servers offer a tool with the same name, so mcprl would not know which one to call.

    Causes: two servers of the same kind; two servers that use the same tool name, such as `search`.
    Fix: disable one of the servers in the mcpServers file, or add the tool to servers.settings.NAME.deny of one of
    them.
    Example: servers 'fmp' and 'polygon' both offer a tool named 'get_quote'. Fix: disable a server in the mcpServers
    file, or exclude its tool with servers.settings.NAME.deny.
    """


class UnknownToolError(ConfigurationError, code="E-TOOL-003"):
    """A task refers to a tool that no server offers. It could never be solved, so the run does not start.

    Causes: a typo in the task; the server that offers the tool is disabled, or missing from the mcpServers file; the
    server has renamed the tool; servers.settings.NAME.allow or deny excludes the tool.
    Fix: correct the task, or add the server that offers the tool; `mcprl tools list` shows the available tools.
    Example: no server offers the tool 'tavily_filter', which task d03 needs (did you mean 'tavily_search'?). Fix:
    correct the task, or add a server that offers it.
    """


class EmptyCatalogError(ConfigurationError, code="E-TOOL-004"):
    """The servers offer no tools at all, so there would be nothing to learn.

    Causes: every server in the mcpServers file is disabled; allow and deny exclude every tool; a server lists its tools
    only after a login.
    Fix: enable a server that lists tools, or loosen servers.settings.NAME.allow and deny; `mcprl tools list` shows the
    remaining tools.
    Example: the servers offer no tools. Fix: in the mcpServers file, enable a server that offers tools.
    """


class BadToolSchemaError(ConfigurationError, code="E-TOOL-005"):
    """A server describes a tool's arguments with an invalid JSON schema.

    Causes: schemas written by hand; a `$ref` without a target; a keyword with a value of the wrong type.
    Fix: fix the schema in the server, exclude the tool with servers.settings.NAME.deny, or disable the server.
    Example: server 'fmp' describes the arguments of tool 'get_quote' with an invalid schema: 'strng' is not a type.
    Fix: correct the schema in the server, or exclude the tool with servers.settings.fmp.deny.
    """


class ToolsChangedError(ConfigurationError, code="E-TOOL-006"):
    """A server's tools, or their descriptions or schemas, changed during the run, which would mislead the policy.

    Causes: the server was updated; someone changed a description, which the policy reads as an instruction.
    Fix: review the changes shown in the message and keep the server from changing while a run is open, then start or
    resume the run.
    Example: server 'fmp' changed its tools during the run: changed 'fmp_get_quote'. Fix: review the changes, then start
    or resume the run; keep the server from changing while the run is open.
    """


class MissingKeyError(ConfigurationError, code="E-TOOL-007"):
    """A server or a model endpoint needs a key that is neither in the environment nor in the .env file.

    Causes: the key was set in another shell; the .env file is in another folder or cannot be read; the name of the
    variable has a typo.
    Fix: set the variable in the environment or as a line NAME=value in the .env file, or disable the server.
    Example: servers.json needs keys that are not set: FMP_API_KEY for server 'fmp'. Fix: set each key in the
    environment or as a line NAME=value in .env, or disable the server.
    """


class BudgetExceededError(ConfigurationError, code="E-TOOL-008"):
    """The next call would exceed the budget for a server, so it is not made and the run stops.

    Causes: the run is longer than planned; the policy has learned to make more calls; failed calls were retried.
    Fix: raise servers.settings.NAME.budget, shorten the run, or cache repeated calls with
    servers.settings.NAME.cache_s; then run `mcprl resume`.
    Example: the next call would exceed the budget of server 'fmp': the run has used 250 of 250 calls. Fix: raise
    servers.settings.fmp.budget.calls, or shorten the run.
    """


class CassetteError(ConfigurationError, code="E-TOOL-009"):
    """A cassette (a file of recorded calls) cannot be read or written, or does not contain recorded calls.

    Causes: the path has a typo; the cassette was never recorded; another version of mcprl recorded it; the folder is
    missing or not writable.
    Fix: use an existing cassette, or record one with servers.cassette_mode=record.
    Example: cassette market.cassette does not exist. Fix: record one with servers.cassette_mode=record, or import one
    with `mcprl tasks import`.
    """


class ToolLimitError(ConfigurationError, code="E-LIMIT-001"):
    """A server lists more tools than mcprl accepts, or describes a tool with a schema that is too large.

    Causes: an `enum` with tens of thousands of values; references that multiply when they are expanded; a server that
    offers thousands of tools; a hostile server.
    Fix: exclude the tool with servers.settings.NAME.deny, or list the tools that the tasks need in
    servers.settings.NAME.allow; if only the grammar is too large, set sampling.constrain to off.
    Example: server 'fmp' describes the arguments of tool 'get_quote' with a schema that has an enum of more than 10000
    values. Fix: exclude the tool with servers.settings.fmp.deny, or ask its author for a smaller schema.
    """


class SandboxMissingError(ConfigurationError, code="E-SAND-001"):
    """The machine lacks what a sandbox needs: bubblewrap, namespaces, seccomp, or a supported processor.

    Causes: bubblewrap is not installed; a container or kernel forbids user namespaces; the system is not Linux.
    Fix: install bubblewrap and allow it to create namespaces, as the message explains. To run trusted code without a
    sandbox, use allow_unsafe; for a trusted server, remove `sandbox` from its settings.
    Example: bubblewrap is not installed (no bwrap on PATH), but the Python sandbox needs it. Fix: apt-get install
    bubblewrap, or start the server with allow_unsafe if you trust the code.
    """


class NoRunError(ConfigurationError, code="E-RUN-001"):
    """A folder does not contain a run, or its run cannot be continued.

    Causes: the path has a typo; the folder contains all runs, not a single run; the run has finished its steps.
    Fix: pass a run that `mcprl runs list` shows; to continue a finished run, add steps with `--set training.steps=N`.
    Example: outputs/hello is not the folder of a run: it has no config.yaml. Fix: pass the folder of a run.
    """


class RunInUseError(ConfigurationError, code="E-RUN-002"):
    """Another process has the run open, and two processes writing at once would corrupt its folder.

    Causes: the run is still being trained in another terminal or job; it was resumed twice; a process that was
    suspended still holds its lock.
    Fix: wait for that process to end, or end it; this releases the lock.
    Example: outputs/hello-cpu is in use by process 4711. Fix: wait for that process to end, or end it.
    """


class NoCheckpointError(ConfigurationError, code="E-RUN-003"):
    """None of a run's checkpoints is intact, or the requested one is missing or damaged.

    Causes: `--from` names a step without a checkpoint, or one whose checkpoint was removed later; a faulty disk damaged
    the files.
    Fix: use one of the steps listed in the message, or omit `--from`; training.keep_checkpoints sets how many are kept.
    Example: there is no checkpoint of step 7; the run has checkpoints of steps: 4, 8. Fix: use one of these steps;
    training.keep_checkpoints sets how many are kept.
    """


class OtherStateError(ConfigurationError, code="E-RUN-004"):
    """A checkpoint was saved with settings that differ from those of the run that loads it.

    Causes: the model, the sharding or, with ZeRO-3, the number of processes has changed; a checkpoint from another
    version of mcprl.
    Fix: resume with the settings named in the message, or start a new run.
    Example: the state in outputs/a/checkpoints/step-00008 was saved by 2 processes with zero3, but is being loaded by
    one process. Fix: resume with learner.processes=2 and learner.sharding=zero3.
    """


class NoRoomError(ConfigurationError, code="E-RUN-005"):
    """The disk has no room for the checkpoints that the run would keep.

    Causes: the disk is full; all weights are trained, so each checkpoint is as large as the model and its optimizer
    state; many checkpoints are kept.
    Fix: free up space, set training.outputs to a larger disk, or lower training.keep_checkpoints.
    Example: a checkpoint takes 12.4 GB; 4 are kept at most, and one more while it is written (62.0 GB); 31.0 GB are
    free. Fix: free up space, set training.outputs to a larger disk, or lower training.keep_checkpoints.
    """


class ToolServerError(InfrastructureError):
    """A tool server failed a call. `delivered` is False only if the call provably never reached its tool.

    `retry_after_s` is how long the server or its gateway asked mcprl to wait.
    """

    def __init__(self, what: str, *, fix: str, delivered: bool = True, retry_after_s: float | None = None) -> None:
        super().__init__(what, fix=fix)
        self.delivered = delivered
        self.retry_after_s = retry_after_s


class ServerStartError(ToolServerError, code="E-TOOL-010"):
    """A tool server did not start or did not complete the handshake in time. No call was delivered.

    Causes: its program is not installed; its port is already in use; the server rejects the key; starting takes longer
    than 120 seconds.
    Fix: read the end of its log, logs/NAME.log in the run's folder, or run its command by hand; `mcprl tools list`
    starts only the servers.
    Example: server 'fmp' did not start: command 'npx' not found. Fix: install it, or correct 'command' in the
    mcpServers file.
    """

    def __init__(self, what: str, *, fix: str) -> None:
        super().__init__(what, fix=fix, delivered=False)


class ServerLostError(ToolServerError, code="E-TOOL-011"):
    """A tool server ended, or its connection broke, during a call.

    Causes: the server crashed or was killed for using too much memory; the network failed; the server was restarted.
    Fix: read its log, logs/NAME.log in the run's folder; the episode is run again, so an occasional loss does no harm.
    Example: server 'fmp' went away during a call to 'get_quote' (its process ended with exit code 137). Fix: see its
    log outputs/a/logs/fmp.log.
    """


class CallDeadlineError(ToolServerError, code="E-TOOL-012"):
    """A tool call took longer than its deadline.

    Causes: a slow upstream; a tool that hangs; more concurrent calls than the server can handle.
    Fix: raise servers.settings.NAME.call_deadline_s, lower episodes.max_concurrent, or set
    servers.settings.NAME.replicas.
    Example: server 'fmp' did not finish a call to 'get_quote' within 30 s. Fix: raise
    servers.settings.fmp.call_deadline_s, or look for the cause in outputs/a/logs/fmp.log.
    """


class ServerFaultError(ToolServerError, code="E-TOOL-013"):
    """A tool server is alive but answered a call with a protocol error or a malformed result.

    Causes: a bug in the server; a failure of the service behind the server; a rule in servers.settings.NAME.errors that
    classifies a result as an infrastructure fault.
    Fix: read the server's log and fix the server; the call is not to blame, because it matches the tool's schema.
    Example: server 'fmp' answered a call to 'get_quote' with an error: upstream unavailable. Fix: remove the cause of
    this error, or change the rule in servers.settings.fmp.errors that matched it.
    """


class ServerBusyError(ToolServerError, code="E-TOOL-014"):
    """A tool server, or its gateway, asked mcprl to repeat a call later: HTTP 429, or 503 with Retry-After.

    Causes: more calls per second than the API plan allows; other users of the same key; many concurrent episodes.
    Fix: set servers.settings.NAME.rate to what the server allows, or servers.settings.NAME.cache_s to cache repeated
    calls.
    Example: server 'fmp' asked mcprl to repeat the call later (HTTP 429). Fix: set servers.settings.NAME.rate to what
    the server allows.
    """


class BreakerOpenError(ToolServerError, code="E-TOOL-015"):
    """A tool server kept failing, so its circuit breaker opened, and a call reached its deadline while waiting.

    Causes: the server is down, or every call fails; servers.settings.NAME.call_deadline_s is shorter than the 5 s after
    which the server is tried again.
    Fix: read the server's log and fix the first failure.
    Example: server 'fmp' failed 5 calls in a row, and its circuit breaker stayed open until the call's deadline. Fix:
    read the server's log; mcprl tries the server again 5 s after each failure.
    """


class SandboxLostError(InfrastructureError, code="E-SAND-010"):
    """The sandbox did not start or was killed, through no fault of the code in it.

    Causes: the machine ran out of memory; bubblewrap was removed or forbidden during the run, or was killed.
    Fix: check that the machine has free memory and that `bwrap --ro-bind / / true` works.
    Example: a worker of the Python sandbox ended before it was ready. Fix: check that the machine has free memory and
    that bubblewrap still works: run `bwrap --ro-bind / / true`.
    """


class SamplerStartError(InfrastructureError, code="E-SAMP-010"):
    """The sampler did not start, or did not become ready in time.

    Causes: too little memory for the model and its cache; an incomplete model folder; a version of vLLM that does not
    support the architecture; a slow disk.
    Fix: read its log, logs/vllm.log in the run's folder; lower episodes.max_concurrent or model.context_tokens.
    Example: vLLM was not healthy after 1800 s. Fix: read its log at outputs/a/logs/vllm.log.
    """


class SamplerLostError(InfrastructureError, code="E-SAMP-011"):
    """The sampler ended, could not be reached, or answered with an error.

    Causes: the sampler ran out of memory; a turn took longer than episodes.deadline_s; its process was killed; the
    endpoint of `mcprl eval --endpoint` failed.
    Fix: read its log, logs/vllm.log in the run's folder; mcprl restarts the sampler and runs the episodes again.
    Example: vLLM did not respond to /inference/v1/generate (ReadError). Fix: read its log at outputs/a/logs/vllm.log.
    """


class EpisodeDeadlineError(InfrastructureError, code="E-EPIS-010"):
    """An episode took longer than its deadline.

    Causes: a tool server responds slowly; the sampler has more concurrent episodes than it can handle; the deadline is
    too short for the number of turns.
    Fix: find out what is slow with `mcprl tools stats RUN`, lower episodes.max_concurrent, or raise
    episodes.deadline_s.
    Example: episode 3 of task d03 took longer than 600 s, of which it spent 540 s waiting for the sampler or a tool
    server. Fix: find out whether a tool server or the sampler is slow, or raise episodes.deadline_s.
    """


class GroupIncompleteError(InfrastructureError, code="E-EPIS-011"):
    """Every attempt at an episode was lost to an infrastructure failure, so the run stopped.

    Causes: a server or the sampler failed in every attempt, usually for the same reason.
    Fix: fix the cause of the last failure, which the message names, then run `mcprl resume`.
    Example: episode 3 of task d03 was lost 5 times, most recently to E-TOOL-011 server 'fmp' ended during a call. Fix:
    remove the cause, then resume the run.
    """


class JudgeError(InfrastructureError, code="E-EPIS-012"):
    """The judge could not be reached, was too slow, failed, or returned no grade.

    Causes: the endpoint is down or busy; its model does not follow the required format, or takes longer than 60 s.
    Fix: check that rewards.judge.url responds and that its model follows instructions; use a faster judge.
    Example: the judge gave no grade within 60 s. Fix: use a faster judge, or lower its load.
    """


class RewardFunctionError(InfrastructureError, code="E-EPIS-013"):
    """A reward function failed or missed its deadline, and the recipe sets `on_error: lose_episode`.

    Causes: a service that the function uses is down or slow; a bug in the function that only some episodes trigger.
    Fix: correct the code at the file and line in the message, or raise the function's deadline_s.
    Example: /home/ana/rewards.py:9: TimeoutError: no answer, in /home/ana/rewards.py:graded (task meet-ana, 3 turns).
    Fix: correct the code at this line.
    """


class UserModelError(InfrastructureError, code="E-EPIS-014"):
    """The model that plays the user could not be reached, was too slow, failed, or returned no text.

    Causes: the endpoint is down or busy; the model takes longer than 60 s, or its response has no text.
    Fix: check that tasks.user.url responds, and that its model does not spend all its tokens on reasoning.
    Example: the simulated user said nothing within 60 s. Fix: use a faster model, or lower its load.
    """


class AgentError(InfrastructureError):
    """The program set in `episodes.agent` failed. Its episode is run again; if that keeps failing, the run stops."""


class AgentFailedError(AgentError, code="E-AGENT-010"):
    """The agent ended with an error that the model's output does not explain.

    Causes: a bug in the agent; a missing library or file; another process killed the agent.
    Fix: read the agent's log, logs/agent.log in the run's folder, and correct the agent.
    Example: the agent ended with exit code 1 before it called the model: ModuleNotFoundError: No module named 'agents'.
    Fix: read logs/agent.log, and correct the agent.
    """


class AgentSilentError(AgentError, code="E-AGENT-011"):
    """The agent ended without an error, but never called the run's model.

    Causes: the agent uses a base URL of its own; the agent does not read OPENAI_BASE_URL.
    Fix: make the agent use the base URL in OPENAI_BASE_URL and the key in OPENAI_API_KEY.
    Example: the agent ended without calling the model. Fix: make it use the base URL in OPENAI_BASE_URL.
    """


class AgentHungError(AgentError, code="E-AGENT-012"):
    """The agent was idle until the episode's deadline: it neither ended nor called the model or a tool.

    Causes: the agent waits for input or for another service; an endless loop.
    Fix: read the agent's log, logs/agent.log, and make the agent end after its answer, or raise episodes.deadline_s.
    Example: the agent did nothing for 540 s before the episode's deadline. Fix: read logs/agent.log.
    """


class AgentRequestError(AgentError, code="E-AGENT-013"):
    """The agent sent a request that the model cannot process, or printed too much output.

    Causes: the request contains images; the chat template cannot render the conversation; stdout exceeds 1 MiB.
    Fix: correct the agent's request, or write debugging output to stderr.
    Example: the agent's messages cannot be rendered: the first message is from a tool. Fix: correct the messages.
    """


class LearnerLostError(InfrastructureError, code="E-LEARN-010"):
    """A process of the learner ended or could not be reached.

    Causes: a process was killed for using too much memory; a GPU failed; another process of the learner failed first.
    Fix: read the process's log in the run's logs folder; lower learner.tokens_per_pack, or shard the model over more
    processes; then run `mcprl resume`.
    Example: learner process 1 of 2 ended with exit code -9; the end of its log: loading weights. Fix: it was killed,
    probably because memory ran out: lower learner.tokens_per_pack, or see outputs/a/logs/learner-1.log.
    """


class EngineStartError(InfrastructureError, code="E-ENG-010"):
    """The engine's server did not become ready, or cannot be reached.

    Causes: skyrl.python is not the Python of an environment with SkyRL; there is too little memory; the port is in use
    or the key was rejected; the version of SkyRL is not supported.
    Fix: read its log, logs/skyrl.log in the run's folder; correct skyrl.python or skyrl.url.
    Example: SkyRL's server exited with code 1 while starting. Fix: read the complete log at outputs/a/logs/skyrl.log.
    """


class EngineLostError(InfrastructureError, code="E-ENG-011"):
    """The engine's server ended, lost the model, failed a request, or took too long.

    Causes: the server ran out of memory or was restarted; the network failed; a request took longer than 30 minutes.
    Fix: read the server's log, logs/skyrl.log in the run's folder; then run `mcprl resume`.
    Example: the server at http://127.0.0.1:8001 failed during an update: the engine ended. Fix: read the server's log
    (logs/skyrl.log in the run's folder, if mcprl started the server).
    """


class WorkersStartError(InfrastructureError, code="E-WORK-010"):
    """The workers that run episodes could not be started.

    Causes: the cluster is not up, or has too few free cores; a node has another version of Python or mcprl.
    Fix: start the cluster with `ray start --head`, correct RAY_ADDRESS, or lower workers.count; `ray status` shows
    free cores.
    Example: worker 3 did not start within 120 s. Fix: check with `ray status` whether the cluster has a free core, or
    lower workers.count.
    """


class WorkerLostError(InfrastructureError, code="E-WORK-011"):
    """A worker was lost, together with the episodes that it was running.

    Causes: a node failed or was preempted; a worker ran out of memory.
    Fix: check the worker's log and the memory of its node; other workers run its episodes again.
    Example: 3 workers in a row died while running episode 2 of task d03; the last cause: the node went away. Fix: see
    the log of that worker and the memory of its node.
    """


class StorageError(InfrastructureError, code="E-RUN-010"):
    """The folder of a run could not be written or read, because the disk is full, failing or missing.

    Everything saved before is intact: the run can be resumed.

    Causes: the disk or quota is full; the disk is unmounted, read-only or failing; mcprl may not write there.
    Fix: free up space, or give the user who runs mcprl write permission; then run `mcprl resume`.
    Example: writing outputs/a/metrics.jsonl failed: No space left on device. Fix: free up space on this disk, or raise
    the quota; then continue with `mcprl resume`.
    """


class ResourceLimitError(InfrastructureError, code="E-RUN-011"):
    """The operating system refused mcprl a thread, a process or memory.

    Everything saved before is intact: the run can be resumed.

    Causes: a limit on memory, threads or processes (ulimit -v, ulimit -u, a container's limits); other programs on the
    machine.
    Fix: raise the limit, or lower episodes.max_concurrent, workers.count or learner.tokens_per_pack; then run `mcprl
    resume`.
    Example: the operating system could not start another thread. Fix: raise the limits on memory, threads and
    processes (ulimit -v, ulimit -u, the container's), or lower episodes.max_concurrent; then `mcprl resume`.
    """

    FIX = (
        "raise the limits on memory, threads and processes (ulimit -v, ulimit -u, the container's), or lower "
        "episodes.max_concurrent; then `mcprl resume`"
    )


class UnbridgeableError(ConfigurationError, code="E-CHAT-001"):
    """The model's chat template cannot continue a conversation without changing tokens that were already sampled.

    Causes: the template drops or rewrites earlier turns; the template has no place for tool results; model.renderer is
    set to a family other than the model's.
    Fix: set model.renderer to the model's family (qwen3, llama-3, …), to chatml for a ChatML model, or to template.
    Example: renderer QwenRenderer cannot render a tool's result. Fix: set model.renderer to the model's family, to
    chatml for a ChatML model, or to template.
    """


class UnheldSchemaError(ConfigurationError, code="E-CHAT-002"):
    """A grammar cannot express a tool's schema exactly, so it could allow calls that the tool rejects.

    Causes: the schema has keywords that no grammar can express, such as `not` or `uniqueItems`; a name contains
    characters that the model family's call format does not allow.
    Fix: add the tool to sampling.loose_tools (its arguments are still checked when it is called), simplify its schema,
    or set sampling.constrain to off.
    Example: tool 'get_quote' has a schema that a grammar cannot express: uniqueItems. Fix: add get_quote to
    sampling.loose_tools (its arguments are still checked when it is called), or set sampling.constrain to off.
    """


class NoCallSyntaxError(ConfigurationError, code="E-CHAT-003"):
    """The recipe constrains or imitates tool calls, but mcprl does not know the call format of the model's family.

    Causes: mcprl does not support the model's family; the model's family was not recognized.
    Fix: set sampling.constrain to off and algorithm.warm_start.weight to 0, or use a model family named in the message.
    Example: sampling.constrain is on, but mcprl has no grammar for the call format of mistral. Fix: set
    sampling.constrain to off, or train a model of one of these families: chatml, qwen3, llama-3.
    """


class GrammarError(ConfigurationError, code="E-CHAT-004"):
    """The grammar of the offered tools does not compile.

    Causes: a pattern in a tool's schema that the grammar compiler does not support; a schema with endless recursion.
    Fix: fix the tool's schema, exclude the tool with servers.settings.NAME.deny, or set sampling.constrain to off.
    Example: the grammar of the offered tools does not compile: unknown escape in pattern. Fix: fix the tool's schema,
    exclude the tool, or set sampling.constrain to off.
    """


class MissingLogprobError(ConfigurationError, code="E-SAMP-001"):
    """The sampler returned tokens without logprobs, so the policy ratio would be undefined.

    Causes: a sampler version that mcprl does not support; a proxy that drops unknown fields.
    Fix: use the version of vLLM that mcprl pins, without a proxy.
    Example: vLLM returned no logprobs. Fix: use vLLM 0.32 or later.
    """


class InadmissibleTokenError(ConfigurationError, code="E-SAMP-002"):
    """The sampler returned a token that the grammar forbids: its grammar or tokenizer differs from the learner's.

    Causes: the sampler and the learner have different versions of xgrammar; the sampler's tokenizer differs from the
    model's; the model has several end-of-text tokens that are not declared.
    Fix: use the same model folder, tools and xgrammar version for sampler and learner.
    Example: vLLM ended a turn with token 151643, which is not one of the requested stop tokens. Fix: use the
    same end-of-text token in the model's tokenizer, in its generation_config.json and in model.renderer.
    """


class AlignmentError(ConfigurationError, code="E-LEARN-001"):
    """The learner scored different tokens from those that the sampler returned.

    Causes: a bug in mcprl, or in a custom sampler or learner; trajectories sampled under a grammar that the learner was
    not given.
    Fix: report this bug with the trajectories of the step, or give a custom learner the model's grammars.
    Example: only 99.12% of the scored tokens match the sampled tokens. Fix: report this bug in mcprl, with the
    trajectories of the step.
    """


class ParityError(ConfigurationError, code="E-LEARN-002"):
    """Sampler and learner give the same tokens different probabilities before any update.

    Causes: sampler and learner use different precisions; they use different weights or tokenizers under the same name;
    their kernels differ by more than the bound.
    Fix: use the same model and dtype in both, measure with `mcprl parity RECIPE`, and raise learner.max_parity_error
    only for bfloat16.
    Example: before any update, sampler and learner disagree by 0.35 nats per token (max: 3.1) on the same 431
    tokens; learner.max_parity_error is 0.2. Fix: use the same model and dtype in both, or raise
    learner.max_parity_error for bfloat16.
    """


class NonFiniteError(ConfigurationError, code="E-LEARN-003"):
    """Several updates in a row had NaN or Inf in a reward, logprob, loss or gradient. All of them were rolled back.

    Causes: the learning rate is too high; half precision overflows; a reward function returns NaN; the weights are
    damaged.
    Fix: look at the episodes named in the message, lower learner.learning_rate, or set model.dtype to float32; then run
    `mcprl resume` from an earlier checkpoint.
    Example: 3 updates in a row hit NaN or Inf, most recently: the loss is not a finite number in task d03; the
    updates were rolled back. Fix: look at the episodes in the message; lower learner.learning_rate, or set model.dtype
    to float32.
    """


class UnsharableError(ConfigurationError, code="E-LEARN-004"):
    """The model's attention does not let trajectories share a prefix, which learner.share_prefix requires.

    Causes: the model has sliding-window, linear or recurrent layers.
    Fix: set learner.share_prefix to false: the update is the same, but takes more time.
    Example: some/model has layers of sliding_attention; trajectories can share a prefix only if every layer attends to
    all earlier tokens. Fix: set learner.share_prefix to false.
    """


class UnfitEngineError(ConfigurationError, code="E-ENG-001"):
    """The engine or its client cannot do what the run needs.

    Causes: mcprl does not support the installed version of tinker or SkyRL; the server does not allow the LoRA rank or
    number of adapters; the key was rejected; the adapter was not saved by that server.
    Fix: use what the message suggests: another version, a lower learner.lora_rank, the key in TINKER_API_KEY, or
    engine=transformers.
    Example: the server can sample only from weights that it saved itself, not from outputs/a/adapter. Fix: use the
    adapter with another engine: --set engine=transformers.
    """
