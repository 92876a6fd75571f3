"""The folder of a checkpoint without its weights: what ``save_pretrained`` of Transformers writes, with holes
in place of tensors, and the words of a tokenizer in several forms.  Run by :mod:`measure.dry_run.lay_out`, in
a process of its own.
"""

from __future__ import annotations

import base64
import importlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from measure.dry_run.guesses import Guesses
from measure.dry_run.libraries.importing import OnImport

# So were checkpoints divided for years; Transformers 5 divides at 50 GB.
_MOST_BYTES = "5GB"
_NAMES = {
    "float32": "F32",
    "bfloat16": "BF16",
    "float16": "F16",
    "int64": "I64",
    "int32": "I32",
    "uint8": "U8",
    "bool": "BOOL",
}
# Where tools that do not read tokenizer.json find words: those of Llama 3, and those of GPT-2 and Qwen.
_TIKTOKEN, _VOCABULARY, _MERGES = "original/tokenizer.model", "vocab.json", "merges.txt"


def main(folder: Path, model: str) -> None:
    """Write the files of ``model`` into ``folder``."""
    from measure.dry_run.libraries import cuda_builds
    from measure.dry_run.libraries.files.transformers_files import Checkpoints

    imports, guesses = OnImport(), Guesses()
    sys.meta_path.insert(0, imports)
    # Transformers imports torchvision where it is installed.
    cuda_builds.install(imports, guesses)
    checkpoints = Checkpoints(guesses)
    checkpoints.install(imports)
    try:
        torch, transformers = (importlib.import_module(name) for name in ("torch", "transformers"))
    except ImportError as error:
        raise SystemExit(f"{error.name} is needed to name the tensors of {model}; install it") from None
    try:
        config = transformers.AutoConfig.from_pretrained(model)
    except OSError:
        name, why = next(iter(guesses.refusals), (model, "is neither in the Hub's cache nor in the catalog"))
        raise SystemExit(f"{name} {why}") from None
    with torch.device("meta"):
        made: Any = transformers.AutoModelForCausalLM.from_config(config).to(checkpoints.dtype_of(model))
    module: Any = sys.modules["transformers.modeling_utils"]
    module.safe_save_file = write_with_holes
    # Up to 4.43 all tensors of a shape that have no memory are taken for one.
    module.id_tensor_storage = _storage_of
    made.save_pretrained(folder, max_shard_size=_MOST_BYTES)
    # Transformers has it since 4.44.
    of_text = config.get_text_config() if hasattr(config, "get_text_config") else config
    _write_words(folder, int(of_text.vocab_size))


def _storage_of(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - two tensors are tied if it is the same


def write_with_holes(tensors: Mapping[str, Any], path: Any, metadata: Any = None, **_: Any) -> None:
    """A file of safetensors whose header is whole, and whose tensors are holes (safetensors 0.8 format)."""
    header: dict[str, Any] = {"__metadata__": metadata or {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.numel() * tensor.element_size()
        kind = _NAMES[str(tensor.dtype).removeprefix("torch.")]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with Path(path).open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


def _write_words(folder: Path, n_tokens: int) -> None:
    """A tokenizer of words, as for those that stand in for a single one; then lists of the same words."""
    from measure.dry_run.libraries.files.words import N_WORDS, sign, tokenizer_of_words

    tokenizer_of_words("right", n_tokens=n_tokens).save_pretrained(folder)
    pieces = [bytes([number]) for number in range(256)]
    pieces += [f"{space}w{number}".encode() for number in range(N_WORDS) for space in ("", " ")]
    lines = [b"%s %d" % (base64.b64encode(piece), number) for number, piece in enumerate(pieces)]
    (folder / _TIKTOKEN).parent.mkdir()
    (folder / _TIKTOKEN).write_bytes(b"\n".join(lines) + b"\n")
    # Each byte under the sign that stands for it.
    (folder / _VOCABULARY).write_text(
        json.dumps({sign(number): number for number in range(256)}), encoding="utf-8"
    )
    (folder / _MERGES).write_text("#version: 0.2\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
