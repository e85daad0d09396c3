"""Errors that the user mends where a model is spoken to, sampled from and taught."""

from __future__ import annotations

from mcprl.errors.base import ConfigurationError

__all__ = [
    "AlignmentError",
    "GrammarError",
    "InadmissibleTokenError",
    "MissingLogprobError",
    "NoCallSyntaxError",
    "NonFiniteError",
    "ParityError",
    "UnbridgeableError",
    "UnfitEngineError",
    "UnheldSchemaError",
    "UnsharableError",
]


class UnbridgeableError(ConfigurationError):
    """The model's chat template cannot continue a conversation without changing the tokens already sampled.

    Causes: a template that drops or rewrites earlier turns; a template without a place for tool results; model.renderer
    of another family than the model.
    Fix: set model.renderer to the model's family (qwen3, llama-3, …), to chatml for a ChatML model, or to template.
    Example: renderer QwenRenderer cannot show a tool's result. Fix: set model.renderer to the model's family, to chatml
    for a ChatML model, or to template.
    """

    code = "E-CHAT-001"


class UnheldSchemaError(ConfigurationError):
    """A tool's schema asks for what a grammar cannot hold, so a call could be admitted that the tool refuses.

    Causes: a schema with keywords that no grammar can express, such as `not` or `uniqueItems`; a name with characters
    that the family cannot write in a call.
    Fix: add the tool to sampling.loose_tools, whose arguments are then checked when it is called, simplify its schema,
    or set sampling.constrain to off.
    Example: tool 'get_quote' has a schema that a grammar cannot hold: uniqueItems. Fix: add get_quote to
    sampling.loose_tools (its arguments are still checked when it is called), or set sampling.constrain to off.
    """

    code = "E-CHAT-002"


class NoCallSyntaxError(ConfigurationError):
    """Calls are to be held to a grammar, but how the model's family writes them is not known.

    Causes: a model of a family that mcprl has no call syntax for; a model whose family was not recognised.
    Fix: set sampling.constrain to off, or train a model of one of the families that the sentence lists.
    Example: sampling.constrain is on, but no grammar is known for how mistral writes calls. Fix: set sampling.constrain
    to off, or train a model of one of these families: chatml, qwen3, llama-3.
    """

    code = "E-CHAT-003"


class GrammarError(ConfigurationError):
    """The grammar of the tools on offer does not compile.

    Causes: a pattern in a tool's schema that the grammar's compiler does not know; a schema that refers to itself
    without end.
    Fix: mend the tool's schema, leave the tool out with servers.settings.NAME.deny, or set sampling.constrain to off.
    Example: the grammar of the tools on offer does not compile: unknown escape in pattern. Fix: mend the tool's schema,
    leave the tool out, or set sampling.constrain to off.
    """

    code = "E-CHAT-004"


class MissingLogprobError(ConfigurationError):
    """The sampler returned tokens without logprobs: the ratio of policies would be undefined.

    Causes: another version of the sampler than mcprl was made for; a proxy before it that drops fields it does not
    know.
    Fix: use the version of vLLM that mcprl pins, without a proxy in between.
    Example: vLLM returned no logprobs. Fix: use vLLM 0.32 or later.
    """

    code = "E-SAMP-001"


class InadmissibleTokenError(ConfigurationError):
    """The sampler returned a token that the grammar does not admit: the two hold different grammars or tokenizers.

    Causes: another version of xgrammar in the sampler than in the learner; a tokenizer that differs from the model's;
    several end-of-text tokens that are not declared.
    Fix: give sampler and learner the same model folder, tools and xgrammar.
    Example: vLLM ended a turn with token 151643, which is none of the stops that it was given. Fix: give the model one
    end-of-text: in its tokenizer, its generation_config.json and model.renderer.
    """

    code = "E-SAMP-002"


class AlignmentError(ConfigurationError):
    """The learner scored other tokens than those the sampler emitted.

    Causes: a fault in mcprl, or in a sampler or learner of your own; trajectories sampled under a grammar that the
    learner was not given.
    Fix: report it with the trajectories of the step; a learner of your own needs the grammars of the model.
    Example: only 99.12% of the tokens to learn from are the tokens that were sampled. Fix: report this with the
    trajectories of the step: it is a fault in mcprl.
    """

    code = "E-LEARN-001"


class ParityError(ConfigurationError):
    """Sampler and learner give the same tokens different probabilities before any update.

    Causes: different precisions in sampler and learner; different weights or tokenizers under one name; kernels that
    differ more than the bound allows.
    Fix: use the same model and dtype in both, measure with `mcprl parity RECIPE`, and raise learner.max_parity_error
    only for bfloat16.
    Example: before any update, sampler and learner differ by 0.35 nats per token on the same 431 tokens (at most 3.1);
    learner.max_parity_error is 0.2. Fix: use the same model and dtype in both, or raise learner.max_parity_error for
    bfloat16.
    """

    code = "E-LEARN-002"


class NonFiniteError(ConfigurationError):
    """Update after update met a reward, logprob, loss or gradient that is no number. None of them was made.

    Causes: a learning rate that is too high; half precision that overflows; a reward function that returns NaN; damaged
    weights.
    Fix: look at the episodes that are named, lower learner.learning_rate, or use model.dtype float32; then `mcprl
    resume` from an earlier checkpoint.
    Example: 3 updates in a row met something that is no number, the last one: the gradient; the weights are those of
    before them. Fix: look at the episodes named; lower learner.learning_rate, or use model.dtype float32.
    """

    code = "E-LEARN-003"


class UnsharableError(ConfigurationError):
    """The model's attention does not let trajectories share a prefix.

    Causes: a model with sliding-window, linear or recurrent layers.
    Fix: set learner.share_prefix to false: the same update, without the saving.
    Example: some/model has layers of sliding_attention; trajectories can share a prefix only where every layer attends
    to all that came before. Fix: set learner.share_prefix to false.
    """

    code = "E-LEARN-004"


class UnfitEngineError(ConfigurationError):
    """The engine, or the client that speaks to it, cannot do what the run needs.

    Causes: another version of tinker or SkyRL than mcprl was made for; a LoRA rank or number of adapters that the
    server does not allow; a key that it refuses; an adapter that it did not save itself.
    Fix: do what the sentence names: another version, a lower learner.lora_rank, the key in TINKER_API_KEY, or
    engine=torch.
    Example: the server samples from weights that it saved itself, not from outputs/a/adapter. Fix: use the adapter with
    engine torch: --set engine=torch.
    """

    code = "E-ENG-001"
