"""Two steps of a small vision-language model with the Trainer:
``vision_step.py CONFIG METHOD FROZEN CHECKPOINTING [ATTENTION] [text [DEEPSPEED_FILE]]``.
"""

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path

import peft
import torch
from transformers import AutoConfig, AutoModelForImageTextToText, Trainer, TrainingArguments

from measure.trace.cuda.recurrent import recurrent_kernels

SEQ, ROWS, COLUMNS, IMAGES = 1024, 24, 36, 2
SEEING = ("visual", "vision_tower", "vision_model", "multi_modal_projector", "embed_vision", "image_newline")
SEEING += ("vision_encoder", "vision_projection", "projector")
FILLED = ("gemma4", "gemma4_unified")
SIZED = ("internvl", "llama4", "llava_next", "mistral3", "pixtral")
path, method, frozen, checkpointing, *more = sys.argv[1:]
attention = more.pop(0) if more[:1] in (["eager"], ["sdpa"]) else "sdpa"
sees, deepspeed = "text" not in more, dict(zip(("deepspeed",), more[1:], strict=False))
config = AutoConfig.for_model(**json.loads(Path(path).read_text(encoding="utf-8")))
config._attn_implementation = attention
if config.model_type == "qwen3_5":
    config.text_config.use_cache = False  # as TRL and LLaMA-Factory do
arguments = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=1,
    max_steps=2,
    bf16=True,
    gradient_checkpointing=checkpointing == "true",
    gradient_checkpointing_kwargs={"use_reentrant": False},
    report_to=[],
    remove_unused_columns=False,
    save_strategy="no",
    logging_strategy="no",
    optim="adamw_torch",
    **deepspeed,
)
model = AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16)
if method == "lora":
    names = (
        "q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj"
        "|in_proj_qkv|in_proj_z|in_proj_b|in_proj_a|out_proj"
    )
    language = rf".*language_model.*\.({names})"
    targets = language if frozen == "true" else "all-linear"
    refused = ".*router" if config.model_type == "llama4" else None
    lora = peft.LoraConfig(r=16, lora_dropout=0.0, target_modules=targets, exclude_modules=refused)
    model = peft.get_peft_model(model, lora)
    if checkpointing == "true":
        model.enable_input_require_grads()
elif frozen == "true":
    for name, tensor in model.named_parameters():
        if any(part in name for part in SEEING):
            tensor.requires_grad_(False)
    del tensor


def batch(_: list[int]) -> dict[str, torch.Tensor]:
    """One sample with two images, or of text alone."""
    vision = config.vision_config
    if not sees:
        ids = torch.full((1, SEQ), 5)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}
    if config.model_type in SIZED or vision.model_type in SIZED:
        return sized_batch()
    if config.model_type in FILLED:
        return filled_batch()
    square = config.model_type in ("llava", "gemma3", "paligemma")
    merge = 1 if square else vision.spatial_merge_size
    tokens = (vision.image_size // vision.patch_size) ** 2 if square else ROWS * COLUMNS // merge**2
    tokens = config.mm_tokens_per_image if config.model_type == "gemma3" else tokens
    ids = torch.full((1, SEQ), 5)
    kinds = torch.zeros((1, SEQ), dtype=torch.int32)
    for number in range(IMAGES):
        start = 2 + number * tokens
        ids[0, start : start + tokens] = (
            config.image_token_index if config.model_type == "llava" else config.image_token_id
        )
        kinds[0, start : start + tokens] = 1
    made = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}
    if config.model_type in ("gemma3", "paligemma"):
        made["token_type_ids"] = kinds if config.model_type == "gemma3" else 1 - kinds
    if square:
        return {**made, "pixel_values": torch.zeros(IMAGES, 3, vision.image_size, vision.image_size)}
    grid = torch.tensor([[1, ROWS, COLUMNS]] * IMAGES)
    numbers = [3 * getattr(vision, "temporal_patch_size", 1) * vision.patch_size**2]
    if config.model_type == "paddleocr_vl":
        numbers = [3, vision.patch_size, vision.patch_size]
    pixels = torch.zeros(IMAGES * ROWS * COLUMNS, *numbers)
    return {**made, "mm_token_type_ids": kinds, "pixel_values": pixels, "image_grid_thw": grid}


def filled_batch() -> dict[str, torch.Tensor]:
    """One sample with two square images of 256 tokens in 280 places, each of nine patches but where these are
    joined before.
    """
    side, room, width = 16, 280, config.vision_config.patch_size**2 * 27
    if config.model_type == "gemma4":
        side, room, width = 3 * side, 9 * room, width // 9
    places = torch.full((room, 2), -1)
    places[: side**2] = torch.cartesian_prod(torch.arange(side), torch.arange(side))
    ids, kinds = torch.full((1, SEQ), 5), torch.zeros((1, SEQ), dtype=torch.int32)
    for start in (2, 300):
        ids[0, start : start + 256] = config.image_token_id
        kinds[0, start : start + 256] = 1
    return {
        "input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone(),
        "mm_token_type_ids": kinds, "pixel_values": torch.zeros(IMAGES, room, width),
        "image_position_ids": places.repeat(IMAGES, 1, 1),
    }  # fmt: skip


def sized_batch() -> dict[str, torch.Tensor]:
    """One sample with two images of as many tiles, tokens, rows and columns of pixels as ``TILES`` says."""
    n_tiles, n_tokens, height, width = (int(number) for number in os.environ["TILES"].split(","))
    side = config.vision_config.image_size
    side = side if isinstance(side, int) else side[0]
    ids = torch.full((1, SEQ), 5)
    ids[0, 2 : 2 + IMAGES * n_tokens] = config.image_token_id
    made = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}
    if config.model_type == "internvl":
        return {**made, "pixel_values": torch.zeros(IMAGES * n_tiles, 3, side, side)}
    if config.model_type == "llama4":  # whose processor computes in bf16
        pixels = torch.zeros(IMAGES * n_tiles, 3, side, side, dtype=torch.bfloat16)
        return {**made, "pixel_values": pixels}
    sizes = torch.tensor([[height, width]] * IMAGES)
    if config.vision_config.model_type == "pixtral":
        return {**made, "pixel_values": torch.zeros(IMAGES, 3, height, width), "image_sizes": sizes}
    return {**made, "pixel_values": torch.zeros(IMAGES, n_tiles, 3, side, side), "image_sizes": sizes}


def told_places() -> None:
    """Say which pooled places are filled: numbers decide it, which the dry run does not have."""
    from transformers.models.gemma4.modeling_gemma4 import Gemma4VisionPooler

    pool = Gemma4VisionPooler._avg_pool_by_positions

    def with_places(
        self: Gemma4VisionPooler, x: torch.Tensor, places: torch.Tensor, length: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return pool(self, x, places, length)[0], (places.view(IMAGES, length, -1) >= 0).all(-1)

    Gemma4VisionPooler._avg_pool_by_positions = with_places


if config.model_type == "gemma4":
    told_places()
# The dry run replaces no packages that are missing, and without these the code falls back to plain torch.
with recurrent_kernels(108) if config.model_type == "qwen3_5" else nullcontext():
    Trainer(model=model, args=arguments, train_dataset=list(range(8)), data_collator=batch).train()
