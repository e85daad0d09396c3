"""A turn as vLLM is asked for it, and what it answered: read as a sampled turn, refused where it is something else."""

from __future__ import annotations

from typing import Any

from mcprl.errors import InadmissibleTokenError, MissingLogprobError, SamplerLostError
from mcprl.records import FinishReason
from mcprl.samplers.sampler import Completion, SampleRequest

__all__ = ["GENERATE_PATH", "generate_body", "read_completion"]

GENERATE_PATH = "/inference/v1/generate"

_UNNAMED_VERSION = "default"  # what vLLM calls the weights that it was started with


def generate_body(request: SampleRequest, name: str) -> dict[str, Any]:
    """The request for a turn, to be sampled by the weights of that name."""
    params: dict[str, Any] = {
        "temperature": request.temperature,
        "max_tokens": request.max_tokens,
        "seed": request.seed,
        "stop": list(request.stop),
        "include_stop_str_in_output": True,
        "stop_token_ids": list(request.stop_token_ids),
        "logprobs": 0,  # of the sampled token only
        "skip_special_tokens": False,
    }
    if request.grammar is not None:
        params["structured_outputs"] = {"structural_tag": request.grammar}
    return {"model": name, "token_ids": list(request.prompt_ids), "sampling_params": params}


def read_completion(answer: Any, request: SampleRequest, version: int | None) -> Completion:
    """The turn in an answer. Its tokens are of `version`, or, where that is None, of those that vLLM says."""
    choice = answer["choices"][0]
    if answer["usage"]["prompt_tokens"] != len(request.prompt_ids):
        raise SamplerLostError(
            f"vLLM read {answer['usage']['prompt_tokens']} prompt tokens of {len(request.prompt_ids)}",
            fix="set model.context_tokens to what the model can take",
        )
    if choice["logprobs"] is None:
        raise MissingLogprobError("vLLM returned no logprobs", fix="use vLLM 0.32 or later")
    entries = choice["logprobs"]["content"]
    ids = tuple(choice["token_ids"])
    if tuple(entry["token_id"] for entry in entries) != ids:
        raise MissingLogprobError("vLLM's logprobs belong to other tokens than it returned", fix="use vLLM 0.32")
    finish = choice["finish_reason"]
    if finish not in ("stop", "length"):
        raise SamplerLostError(f"vLLM broke a turn off ({finish})", fix="read its log")
    stopped_by_text = isinstance(choice["stop_reason"], str)
    if (
        request.grammar is not None
        and finish == "stop"
        and not stopped_by_text
        and ids[-1] not in request.stop_token_ids
    ):
        # Then the grammar admitted that token too wherever a turn might end, and no replay of it would be the same.
        raise InadmissibleTokenError(
            f"vLLM ended a turn with token {ids[-1]}, which is none of the stops that it was given",
            fix="give the model one end-of-text: in its tokenizer, its generation_config.json and model.renderer",
        )
    return Completion(
        token_ids=ids,
        logprobs=tuple(float(entry["logprob"]) for entry in entries),
        finish=FinishReason(finish),
        weights_versions=_versions_said(choice) if version is None else (version,) * len(ids),
    )


def _versions_said(choice: Any) -> tuple[int, ...]:
    """vLLM says spans, such as tokens 0 to 5 by "default" and 5 to 9 by "1"."""
    versions: list[int] = []
    for span in choice["weight_versions"]:
        number = 0 if span["version"] == _UNNAMED_VERSION else int(span["version"])
        if span["start"] == len(versions):
            versions += [number] * (span["end"] - span["start"])
    if len(versions) != len(choice["token_ids"]):
        raise SamplerLostError(
            f"vLLM does not say by which weights each token was sampled: {choice['weight_versions']}",
            fix="use vLLM 0.32",
        )
    return tuple(versions)
