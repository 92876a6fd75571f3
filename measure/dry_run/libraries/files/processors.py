"""Processors of models that see or hear, where the user allowed others to stand in:
the program's own classes, without their files.

Patches have the sizes of the model's configuration.
How many pixels an image may have at most is the default of its class.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from measure.dry_run.guesses import LET_STAND_IN, Guesses, not_here
from measure.dry_run.libraries.files.words import tokenizer_of_words
from measure.dry_run.libraries.importing import Change, OnImport


@dataclass(frozen=True, slots=True)
class _Family:
    """Classes of Transformers, and the tokens of images:
    by name the attribute of the configuration that has the number.  ``image``: those of one in a dialogue.
    ``named``: those that the processor asks of its tokenizer, by the attribute.
    """

    processor: str
    image_processor: str
    tokens: Mapping[str, str]
    image: str = "<|vision_start|><|image_pad|><|vision_end|>"
    named: Mapping[str, str] = field(default_factory=dict)


_QWEN_TOKENS = {
    "<|image_pad|>": "image_token_id",
    "<|video_pad|>": "video_token_id",
    "<|vision_start|>": "vision_start_token_id",
    "<|vision_end|>": "vision_end_token_id",
}
_GEMMA_TOKENS = {
    "<start_of_image>": "boi_token_index",
    "<end_of_image>": "eoi_token_index",
    "<image_soft_token>": "image_token_index",
}
_GEMMA_NAMES = {
    f"{name}_token": token for name, token in zip(("boi", "eoi", "image"), _GEMMA_TOKENS, strict=True)
}
# transformers 5.23 models/auto/processing_auto.py, image_processing_auto.py,
# and what each processor asks its tokenizer.
_FAMILIES = {
    "qwen2_vl": _Family("Qwen2VLProcessor", "Qwen2VLImageProcessor", _QWEN_TOKENS),
    "qwen2_5_vl": _Family("Qwen2_5_VLProcessor", "Qwen2VLImageProcessor", _QWEN_TOKENS),
    **dict.fromkeys(
        ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"),
        _Family("Qwen3VLProcessor", "Qwen2VLImageProcessor", _QWEN_TOKENS),
    ),
    "llava": _Family("LlavaProcessor", "LlavaImageProcessor", {"<image>": "image_token_id"}, "<image>"),
    "gemma3": _Family(
        "Gemma3Processor", "Gemma3ImageProcessor", _GEMMA_TOKENS, "<start_of_image>", _GEMMA_NAMES
    ),
}


# Transformers 5.23 utils/__init__.py FEATURE_EXTRACTOR_NAME and IMAGE_PROCESSOR_NAME, and keywords of the
# functions that read it which name another place.
_FILE = "preprocessor_config.json"
_PLACES = ("subfolder", "image_processor_filename", "feature_extractor_filename")


def install(imports: OnImport, guesses: Guesses, *, allowed: bool) -> None:
    """Change Transformers when the program imports it.
    ``allowed``: whether another processor may stand in.
    """
    imports.add("transformers.models.auto.processing_auto", _processors(guesses, allowed=allowed))
    # By the module, the class that reads the file, and the function that does.
    for module, base, read in (
        ("transformers.feature_extraction_utils", "FeatureExtractionMixin", "get_feature_extractor_dict"),
        ("transformers.image_processing_base", "ImageProcessingMixin", "get_image_processor_dict"),
    ):
        imports.add(module, _preprocessors(guesses, base, read, allowed=allowed))


def image_tokens(name: Any) -> dict[str, int]:
    """Tokens of the model ``name`` that stand for images, with their numbers;
    none for a model that does not see.
    """
    config = _config_of(name)
    family = config and _FAMILIES.get(config.model_type)
    return _numbers(config, family) if family else {}


def _numbers(config: Any, family: _Family) -> dict[str, int]:
    return {token: int(getattr(config, attribute)) for token, attribute in family.tokens.items()}


def _processors(guesses: Guesses, *, allowed: bool) -> Change:
    def change(module: ModuleType) -> None:
        base: Any = module.AutoProcessor
        load = base.from_pretrained.__func__

        def from_pretrained(cls: Any, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
            name = pretrained_model_name_or_path
            if Path(str(name)).is_dir():
                return load(cls, name, *args, **kwargs)
            config: Any = module.AutoConfig.from_pretrained(name)
            family = _FAMILIES.get(config.model_type)
            try:
                found = load(cls, name, *args, **kwargs)
            except (OSError, ValueError) as error:
                if not allowed:
                    guesses.lack_data()
                    what = f"the processor of {name} cannot be loaded here: {LET_STAND_IN}"
                    raise not_here(OSError, what) from error
                if family is None:
                    raise
            else:
                # Where no file of a processor is there, the tokenizer is given instead.
                if family is None or not allowed or type(found).__name__ == family.processor:
                    return found
            guesses.assume("processor of images", f"{family.processor} without its files", str(name))
            return load(cls, _folder(config, family))

        base.from_pretrained = classmethod(from_pretrained)

    return change


def _preprocessors(guesses: Guesses, base: str, read: str, *, allowed: bool) -> Change:
    """Of models that none of the families is: the defaults of the class, at the sizes of the model."""

    def change(module: ModuleType) -> None:
        reader: Any = getattr(module, base)
        load = getattr(reader, read).__func__

        def without_file(cls: Any, name: Any, /, **kwargs: Any) -> Any:
            try:
                return load(cls, name, **kwargs)
            except OSError as error:
                config = None if Path(str(name)).is_dir() else _config_of(name)
                if config is None or config.model_type in _FAMILIES:
                    raise
                if not allowed:
                    guesses.lack_data()
                    what = f"the processor of {name} cannot be loaded here: {LET_STAND_IN}"
                    raise not_here(OSError, what) from error
                guesses.assume("processor of images or sound", "the defaults of its class", str(name))
                # Transformers itself takes what is meant for the search of the file out of ``kwargs``.
                with tempfile.TemporaryDirectory() as folder:
                    Path(folder, _FILE).write_text(json.dumps(_defaults(config)), encoding="utf-8")
                    return load(cls, folder, **{k: v for k, v in kwargs.items() if k not in _PLACES})

        setattr(reader, read, classmethod(without_file))

    return change


def _config_of(name: Any) -> Any:
    try:
        return sys.modules["transformers"].AutoConfig.from_pretrained(name)
    except (OSError, ValueError):
        return None


def _defaults(config: Any) -> dict[str, Any]:
    """Whisper's bands, and the side of images where a model has one."""
    if hasattr(config, "num_mel_bins"):
        return {"feature_size": config.num_mel_bins}
    side = getattr(getattr(config, "vision_config", config), "image_size", None)
    square = {"height": side, "width": side}
    return {"size": square, "crop_size": square} if isinstance(side, int) else {}


def _folder(config: Any, family: _Family) -> str:
    """A temporary folder with the files that Transformers makes a processor of."""
    folder = Path(tempfile.mkdtemp())
    tokenizer = tokenizer_of_words("right", _numbers(config, family), image=family.image)
    for name, token in family.named.items():
        tokenizer.init_kwargs[name] = token
    tokenizer.save_pretrained(folder)
    files = {
        "config.json": {"model_type": config.model_type},
        "preprocessor_config.json": {"image_processor_type": family.image_processor, **_sizes(config)},
        "processor_config.json": {"processor_class": family.processor, **_options(config)},
    }
    for name, fields in files.items():
        (folder / name).write_text(
            json.dumps({**fields, "processor_class": family.processor}), encoding="utf-8"
        )
    return str(folder)


def _sizes(config: Any) -> dict[str, Any]:
    vision = config.vision_config
    if hasattr(vision, "spatial_merge_size"):
        return {"patch_size": vision.patch_size, "merge_size": vision.spatial_merge_size,
                "temporal_patch_size": vision.temporal_patch_size}  # fmt: skip
    square = {"height": vision.image_size, "width": vision.image_size}
    if config.model_type == "gemma3":
        return {"size": square}
    return {"size": {"shortest_edge": vision.image_size}, "crop_size": square}


def _options(config: Any) -> dict[str, Any]:
    if config.model_type == "gemma3":
        return {"image_seq_length": config.mm_tokens_per_image}
    if config.model_type != "llava":
        return {}
    # The tower's first token is no patch.
    kept = {
        "vision_feature_select_strategy": config.vision_feature_select_strategy,
        "num_additional_image_tokens": 1,
    }
    return {"patch_size": config.vision_config.patch_size, **kept}
