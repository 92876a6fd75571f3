"""What a file of LLaMA-Factory says about images,
and about the parts of a vision-language model that are trained.

Keys and defaults: llamafactory 0.9.5 hparams/model_args.py ``ProcessorArguments``,
hparams/finetuning_args.py, model/model_utils/visual.py and data/mm_plugin.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from planner.catalog.models import entry_named_in
from planner.configs.said_by_file import IMAGES_UNSAID, Reading
from planner.configs.shared.key_tables import names_in
from planner.configs.shared.keys import Keys, is_left_open
from planner.configs.yaml_or_json import Document
from planner.domain.vision import FrozenPart

_MAX_PIXELS = 768 * 768
_LONGEST_SIDE = 4096
_PLACE = "llamafactory 0.9.5 hparams/model_args.py: image_max_pixels"
_TEXT_TOO = frozenset(
    {"qwen3_5", "qwen3_5_nothink", "qwen3_6", "mistral_small", "ministral3", "gemma4", "gemma4n", "llama4"}
)
"""Templates of models that see, some of them, and are mostly trained on text, which is assumed."""
_OF_IMAGES = re.compile(r"mllm|llava|image|vision|visual|rlhf_v|multimodal", re.IGNORECASE)
"""Names of data that have images, whatever the template."""
_LLAVA_NEXT = frozenset(
    {"llava_next", "llava_next_llama3", "llava_next_mistral", "llava_next_qwen", "llava_next_yi"}
)
_OF_ONE_TOWER = frozenset({"qwen2_vl", "qwen3_vl", "qwen3_vl_nothink", "llava", "pixtral", "gemma3"})
READ_TEMPLATES = _TEXT_TOO | _LLAVA_NEXT | _OF_ONE_TOWER
"""Templates of models whose towers are modelled.  InternVL's is not among them: LLaMA-Factory calls the image
processor itself, so that a file of the checkpoint, which nobody read, says whether it cuts.
"""
VISION_TEMPLATES = frozenset(names_in("llama-factory.toml", "templates_that_see"))
"""Templates with a plugin for images or sound: llamafactory 0.9.5 data/template.py,
``mm_plugin=get_mm_plugin``.
"""
_FREEZES: tuple[tuple[str, FrozenPart, bool], ...] = (
    ("freeze_vision_tower", "vision_tower", True),
    ("freeze_multi_modal_projector", "projector", True),
    ("freeze_language_model", "language_model", False),
)
"""Key, part of the model, and whether it is frozen where the file says nothing."""
_CUTS = "an image cut into several is not modelled"


def sees_images(template: str | None, data: Iterable[str]) -> bool:
    """Whether images are assumed in the data of these names; of some templates only where a name says so."""
    return template in READ_TEMPLATES - _TEXT_TOO or (
        template in _TEXT_TOO and any(map(_OF_IMAGES.search, data))
    )


# Parts of a configuration that sees or hears.
_SENSES = ("vision_config", "audio_config", "thinker_config")


def without_template(document: Document) -> Document:
    """``document`` without a template that is left open, where the model is known to see nothing: then it
    decides no more than the words around an answer.
    """
    table = document.table
    if not is_left_open(table.get("template")):
        return document
    entry = entry_named_in(str(table.get("model_name_or_path")))
    if entry is None or not entry.config.keys().isdisjoint(_SENSES):
        return document
    return replace(document, table={name: value for name, value in table.items() if name != "template"})


def reads_text_alone(keys: Keys) -> bool:
    """Whether the model of a template for images has no tower: the small ones of Gemma 3."""
    model = str(keys.get("model_name_or_path") or "").lower()
    return keys.text("template") == "gemma3" and ("-1b" in model or "-270m" in model)


def read_vision(keys: Keys, reading: Reading, template: str | None) -> None:
    """Images and frozen parts; nothing where the template is for text.

    The data say how many images a sample has and how large they are: one is assumed, as large as
    LLaMA-Factory leaves any; none of Qwen3.5 and Mistral, unless the name of the data says images.

    Raises:
        NotModelledError: keys whose effect nobody wrote down.
    """
    template = None if reads_text_alone(keys) else template
    if template not in READ_TEMPLATES and not keys.flag("visual_inputs"):
        keys.refuse_switched_on(
            {"freeze_language_model": "a frozen language model is modelled for models that see only"}
        )
        return
    keys.refuse_switched_on({"image_do_pan_and_scan": _CUTS, "crop_to_patches": _CUTS})
    if template not in READ_TEMPLATES:
        reading.say("images_per_sample", 1, keys.where("visual_inputs"), IMAGES_UNSAID)
    elif sees_images(template, keys.names("dataset")):
        key = "dataset" if template in _TEXT_TOO else "template"
        reading.say("images_per_sample", 1, keys.where(key), IMAGES_UNSAID)
    if template == "gemma3":
        # data/collator.py: a white image, so that every rank runs the tower.
        text = "a batch without images gets one, of 256 tokens beyond cutoff_len: not counted"
        reading.remark(keys.where("template"), text)
    _read_largest(keys, reading)
    _read_frozen(keys, reading)


def _read_largest(keys: Keys, reading: Reading) -> None:
    """How large images are left (data/mm_plugin.py _preprocess_image): ``image_resolution`` was the longer
    side up to 0.9.1, of which only squares are counted, and pixels in 0.9.2.
    """
    older = keys.count("image_resolution")
    if older is not None and older <= _LONGEST_SIDE:
        reading.default("image_size", f"{older}x{older}", f"{_PLACE}, once a side")
    else:
        reading.limit_images(older or keys.count("image_max_pixels") or _MAX_PIXELS, _PLACE)


def _read_frozen(keys: Keys, reading: Reading) -> None:
    """The parts that get neither gradients nor adapters; up to 0.9.1 a key trained the projector alone."""
    if keys.flag("train_mm_proj_only"):
        if reading.value("method") != "full":
            raise keys.not_modelled(
                "train_mm_proj_only", "adapters on a projector are not modelled; finetuning_type full is"
            )
        reading.say("freeze", ("vision_tower", "language_model"), keys.where("train_mm_proj_only"))
        return
    frozen: list[FrozenPart] = []
    places = []
    for key, part, default in _FREEZES:
        said = keys.flag(key)
        places += [] if said is None else [keys.where(key)]
        if default if said is None else said:
            frozen.append(part)
    if reading.value("method") != "full" and "projector" not in frozen:
        _spare_projector(keys, reading, frozen)
    if not frozen:
        return
    if places:
        reading.say("freeze", tuple(frozen), places[0])
    else:
        reading.default(
            "freeze",
            tuple(frozen),
            "llamafactory 0.9.5 hparams/finetuning_args.py: freeze_vision_tower and the next",
        )


def _spare_projector(keys: Keys, reading: Reading, frozen: list[FrozenPart]) -> None:
    """A projector that is free gets no adapters where the tower is frozen.

    LLaMA-Factory looks for linear layers outside of projectors, and then takes each module whose name holds
    one of theirs (model/model_utils/misc.py find_all_linear_modules, visual.py patch_target_modules).
    """
    names = keys.names("lora_target")
    if "vision_tower" not in frozen or not all(name == "all" or name.endswith("_proj") for name in names):
        raise keys.not_modelled(
            "freeze_multi_modal_projector", "adapters on a projector are not modelled; true is"
        )
    frozen.append("projector")
    reading.remark(
        keys.where("freeze_multi_modal_projector"), "has no effect: the projector gets no adapters"
    )
