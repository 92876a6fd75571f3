"""What a recipe of NeMo AutoModel for models that see says beside those for text: frozen parts and images.

Source: nemo-automodel 0.5.0 (36044ad3d) recipes/vlm/finetune.py, whose step is that of
recipes/llm/train_ft.py; components/utils/model_utils.py apply_parameter_freezing; shared/multimodal_fsdp.py.
"""

from __future__ import annotations

from planner.configs.said_by_file import IMAGES_UNSAID, Reading
from planner.configs.shared.keys import Keys
from planner.errors import show

# Qwen2.5-VL has no class of AutoModel's own; components/models/qwen3_vl/model.py calls Transformers' forward
# where no sequence is divided.
SEEING_FAMILIES = ("qwen2_5_vl", "qwen3_vl")
_FROZEN = "freeze_vision_tower"


def read_seeing(keys: Keys, reading: Reading) -> None:
    """Enter a frozen tower, whose weights FSDP2 leaves to its root, and the images.

    Qwen's projector is inside of the tower's module.

    Raises:
        NotModelledError: a tower or projector that learns, a frozen language model, adapters, or checkpoints,
            which are put around layers of towers too.
    """
    freeze = keys.part("freeze_config")
    if freeze is None:
        raise keys.not_modelled("freeze_config", "a tower that learns is not modelled here")
    if freeze.flag(_FROZEN) is False:
        raise freeze.not_modelled(_FROZEN, "a tower that learns is not modelled here")
    if freeze.flag("freeze_language_model"):
        raise freeze.not_modelled("freeze_language_model", "a frozen language model is not modelled here")
    where = freeze.where(_FROZEN)
    reading.say("freeze", ("vision_tower", "projector"), where)
    reading.switch("tower_units", "in_root", where)
    # No code reads the first; the others name modules that these models lack.
    freeze.skip(("freeze_embeddings", "freeze_audio_tower", "freeze_video_embedder"))
    if keys.has("peft"):
        raise keys.not_modelled("peft", "adapters of models that see are not modelled here")
    distributed = keys.part("distributed")
    if distributed is not None and distributed.get("activation_checkpointing"):
        raise distributed.not_modelled(
            "activation_checkpointing", "checkpoints around layers of towers are not modelled here"
        )
    _read_images(keys, reading)


def _read_images(keys: Keys, reading: Reading) -> None:
    """One a sample, as large as the processor leaves it; rows as long as the longest unless collated longer.

    Source: components/datasets/vlm/collate_fns.py qwen2_5_collate_fn, default_collate_fn.
    """
    data, loader, processor = (keys.part(name) for name in ("dataset", "dataloader", "processor"))
    mock = data is not None and "mock" in str(data.get("_target_")).lower()
    if data is None or mock:
        raise (data or keys).not_modelled(
            "_target_" if mock else "dataset", "images that are made up are not modelled"
        )
    reading.say("images_per_sample", 1, data.where("_target_"), IMAGES_UNSAID)
    if processor is not None:
        most = processor.count("max_pixels")
        if most is not None:
            reading.limit_images(most, processor.where("max_pixels"))
        processor.skip_rest()
    is_table = loader is not None and isinstance(loader.get("collate_fn"), dict)
    collate = loader.part("collate_fn") if loader is not None and is_table else None
    if collate is not None:
        for name in ("max_length", "drop_overlong"):
            if collate.get(name):
                raise collate.not_modelled(name, f"rows cut or padded by {show(name)} are not modelled here")
        collate.skip_rest()
