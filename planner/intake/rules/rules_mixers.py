"""Rules about layers that mix tokens without attention: whose kernels run, and what reads their weights."""

from __future__ import annotations

from collections.abc import Iterator

from planner.domain.mixer_specs import GatedDeltaSpec, Mamba1Spec, Mamba2Spec, MixerSpec
from planner.errors import REFUSED_BY_TOOL
from planner.intake.linears import refused_by_peft
from planner.intake.rules.rule import Case, not_modelled, refuse, warn


def _mixers(case: Case) -> Iterator[MixerSpec]:
    return (group.block.mixer for group in case.model.groups if group.block.mixer is not None)


def _mixes(case: Case) -> bool:
    return any(True for _ in _mixers(case))


def _has_packages(case: Case) -> bool:
    return case.stack.recurrent_kernels == "packages"


def _runs_unread_torch(case: Case) -> bool:
    unread = [Mamba1Spec, Mamba2Spec, *([] if case.stack.solves_chunks else [GatedDeltaSpec])]
    return not _has_packages(case) and any(isinstance(each, tuple(unread)) for each in _mixers(case))


def _fuses_out_proj(case: Case) -> bool:
    return any(
        isinstance(mixer, Mamba2Spec) or (isinstance(mixer, Mamba1Spec) and mixer.fused)
        for mixer in _mixers(case)
    )


def _packs_out_proj(case: Case) -> bool:
    spared = case.model.architecture in (case.stack.whole_out_proj, case.stack.scan_apart)
    return case.numerics.quantization != "none" and not spared and _fuses_out_proj(case)


def _adapts_out_proj(case: Case) -> bool:
    if case.adapter is None or not _fuses_out_proj(case):
        return False
    return any(target.rpartition(".")[2] in ("all-linear", "out_proj") for target in case.adapter.targets)


def _has_streams(case: Case) -> bool:
    return any(group.block.streams > 1 for group in case.model.groups)


MIXER_RULES = (
    refuse(
        # transformers 5.16 and 5.23 models/gemma3n/modeling_gemma3n.py Gemma3nTextAltUp: predict clamps a
        # weight with a float, which torch refuses of whole numbers; correct multiplies by one as it lies.
        "streams-packed",
        "Gemma 3n reads weights of each layer as they are stored, which fails where a quantiser has packed "
        f"them: use lora on a 16-bit base [{REFUSED_BY_TOOL}]",
        lambda case: _has_streams(case) and case.numerics.quantization != "none",
        lambda case: f"{case.model.id} with {case.numerics.quantization}",
    ),
    not_modelled(
        "streams-elsewhere",
        "The streams of Gemma 3n (AltUp) are read in the modules of Transformers 5, not in those of this "
        "stack",
        lambda case: _has_streams(case) and case.stack.model_code != "transformers-5",
        lambda case: case.stack.id,
    ),
    warn(
        "recurrent-kernels",
        "Counted with causal-conv1d, flash-linear-attention and mamba-ssm installed; without them up to "
        "twice the memory and many times the time: --switches recurrent_kernels=torch",
        lambda case: _mixes(case) and _has_packages(case),
    ),
    not_modelled(
        "plain-recurrent-unread",
        "Without mamba-ssm, and without flash-linear-attention before Transformers 5.17, layers without "
        "attention run code in torch that was not read; with them installed, leave the switch out",
        _runs_unread_torch,
        lambda case: f"{case.model.architecture} with recurrent_kernels=torch",
    ),
    not_modelled(
        "recurrent-layers-elsewhere",
        "Layers without attention are read in the modules of Transformers 5, not in those of this stack",
        lambda case: _mixes(case) and case.stack.model_code != "transformers-5",
        lambda case: case.stack.id,
    ),
    refuse(
        # transformers 5.23 models/*/modeling_*.py: outproj_weight=self.out_proj.weight, which is packed then.
        "packed-out-proj",
        "The kernel of Mamba reads the weight of out_proj itself, and fails where a quantiser has packed "
        "it: use a 16-bit base, or a stack that leaves it whole",
        _packs_out_proj,
        lambda case: f"{case.model.architecture} with {case.numerics.quantization} in {case.stack.id}",
    ),
    refuse(
        "adapter-on-out-proj",
        "PEFT refuses adapters on out_proj of this architecture, which all-linear has: name other targets, "
        "as in --lora-targets 'q_proj;k_proj;v_proj;o_proj;in_proj'",
        lambda case: _adapts_out_proj(case) and bool(refused_by_peft(case.model)),
        lambda case: case.model.architecture,
    ),
    warn(
        "adapter-on-out-proj-idle",
        "The kernel of Mamba reads past an adapter of out_proj, so that nothing trains it: it is not counted",
        lambda case: _adapts_out_proj(case) and not refused_by_peft(case.model),
    ),
)
