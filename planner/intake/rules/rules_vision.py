"""Rules about models that see, and their images."""

from __future__ import annotations

from planner.domain.recipes.sharding import DDP
from planner.errors import REFUSED_BY_TOOL
from planner.intake.rules.rule import Case, not_modelled, refuse


def _sees(case: Case) -> bool:
    return case.model.vision is not None


def _has_images(case: Case) -> bool:
    return _sees(case) and case.recipe.batch.images is not None


def _image_tokens(case: Case) -> int:
    images = case.recipe.batch.images
    return images.per_sample * images.tokens if images else 0


def _runs_other_code(case: Case) -> bool:
    """Whether other code runs the tower than was read.

    A tower without gradients keeps nothing until backward:
    what Transformers 4 takes more while it runs goes before the loss.
    """
    return case.stack.model_code == "own" or (
        case.stack.model_code == "transformers-4" and "vision_tower" not in case.recipe.frozen
    )


def _by_images(case: Case) -> bool:
    """Whether all layers of the tower call attention image by image."""
    groups = case.model.vision.groups if case.model.vision else ()
    return all(group.block.attention.pieces == "image" for group in groups)


def _room_text(case: Case) -> str:
    images = case.recipe.batch.images
    assert images is not None
    which = f"{images.per_sample} of {images.width}x{images.height} pixels"
    return f"{which} are {_image_tokens(case):,} tokens, seq is {case.recipe.batch.seq_len:,}"


def _is_counted(case: Case) -> bool:
    """Whether only the weights of the tower are known."""
    return case.model.vision is not None and case.model.vision.code == "counted"


def _needs_gradient(case: Case) -> bool:
    """Whether a tower needs a gradient that is only known to run forward."""
    forward = case.model.vision is not None and case.model.vision.code == "forward"
    return forward and not {"vision_tower", "projector"} <= set(case.recipe.frozen)


def _adapts_layers_of_tower(case: Case) -> bool:
    groups = case.model.vision.groups if case.model.vision else ()
    names = {target.rpartition(".")[2] for target in (case.adapter.targets if case.adapter else ())}
    linears = [linear for group in groups for linear in group.block.linears if linear.adaptable]
    return any({linear.name, linear.group, "all-linear"} & names for linear in linears)


def _leaves_tower_unused(case: Case) -> bool:
    """Whether DDP waits for gradients of adapters that reentrant checkpoints cut off.

    Source: torch 2.13 utils/checkpoint.py check_backward_validity (no input requires a gradient),
    nn/parallel/distributed.py (find_unused_parameters).
    """
    recipe, vision = case.recipe, case.model.vision
    cut = recipe.gradient_checkpointing and recipe.checkpoint_reentrant
    waits = recipe.sharding == DDP and case.hardware.world_size > 1
    unhooked = vision is not None and not vision.has_hook and case.stack.model_code == "transformers-5"
    finds = case.stack.finds_unused(has_adapter=True, is_checkpointed=True)
    return waits and bool(cut) and unhooked and not finds and _adapts_layers_of_tower(case)


VISION_RULES = (
    refuse(
        "tower-cut-off",
        "DDP stops in its second step: reentrant checkpoints cut off the adapters of the tower's layers; use "
        f"--no-checkpoint-reentrant, or leave them out with --freeze vision_tower [{REFUSED_BY_TOOL}]",
        lambda case: _has_images(case) and _leaves_tower_unused(case),
        lambda case: f"images of {case.model.id}",
    ),
    not_modelled(
        "vision-forward-alone",
        "Images of this model are modelled where its tower is frozen: use --freeze "
        "'vision_tower;projector', with text alone --images-per-sample 0",
        lambda case: _has_images(case) and _needs_gradient(case),
        lambda case: f"images of {case.model.id}",
    ),
    not_modelled(
        "vision-unread",
        "What this tower computes of images is not modelled; text alone is (--images-per-sample 0), and "
        "measure trace -- python train.py answers with images",
        lambda case: _has_images(case) and _is_counted(case),
        lambda case: f"images of {case.model.id}",
    ),
    refuse(
        "images-without-room",
        "The tokens of the images do not fit into the sequence: use a larger --seq, or fewer or "
        "smaller images",
        lambda case: _has_images(case) and bool(_image_tokens(case) > case.recipe.batch.seq_len),
        _room_text,
    ),
    not_modelled(
        "vision-fsdp1",
        "FSDP1 of a tower that reads images is not modelled; use --sharding fsdp, which is FSDP2, ZeRO or "
        "ddp",
        lambda case: _has_images(case) and case.recipe.sharding.is_fsdp1,
    ),
    not_modelled(
        "vision-code",
        "Vision towers are modelled as Transformers 5 runs them, frozen ones in Transformers 4, too: use "
        "--stack hf-trainer",
        lambda case: _has_images(case) and _runs_other_code(case),
    ),
    not_modelled(
        "vision-eager",
        "Eager attention of a vision tower is modelled where each image is attended to by itself, as in "
        "Qwen2-VL, Qwen3-VL and Qwen3.5: use --attention sdpa or flash2",
        lambda case: _has_images(case) and case.recipe.attention == "eager" and not _by_images(case),
    ),
    not_modelled(
        "vision-checkpointing",
        "Checkpointing of some layers or operators of a vision-language model is not modelled: layers of "
        "its tower count, too",
        lambda case: (
            _sees(case) and (case.recipe.checkpoint_every > 1 or case.recipe.checkpoint_policy != "full")
        ),
    ),
    not_modelled(
        "vision-offloaded-activations",
        "Activations of a vision tower in host RAM are not modelled: use --offload none",
        lambda case: _has_images(case) and case.recipe.offloads_activations,
    ),
    not_modelled(
        "images-flex",
        "FlexAttention over images is not modelled: use sdpa",
        lambda case: _has_images(case) and case.recipe.attention == "flex",
    ),
    not_modelled(
        "vision-train-layers",
        "Training some layers of a vision-language model is not modelled: use --freeze for its parts",
        lambda case: _sees(case) and bool(case.recipe.train_layers),
    ),
)
