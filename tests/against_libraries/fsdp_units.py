"""FSDP1 whose units are the mixtures of experts of a tiny Mixtral, for real:
what is gathered, given back and reduced, in order.

Run as a process of its own, because it makes a process group, which is a fake one of two:
prints rows of [what, elements] of one step for each case, as JSON.
"""

from __future__ import annotations

import functools
import json
import sys
from typing import Any

import torch
import transformers
from torch.distributed.fsdp import FullyShardedDataParallel, _runtime_utils
from torch.distributed.fsdp._flat_param import FlatParamHandle
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.testing._internal.distributed.fake_pg import FakeStore

CONFIG = {
    "model_type": "mixtral", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 2, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2,
    "vocab_size": 64, "tie_word_embeddings": False,
}  # fmt: skip
LORA = ("q_proj", "v_proj")


BLOCK, LAYER = "MixtralSparseMoeBlock", "MixtralDecoderLayer"


def build(adapters: bool, checkpoints: str, unit: str) -> Any:
    """The model, wrapped as Accelerate does it; with adapters as PEFT's policy does it."""
    config = transformers.AutoConfig.for_model(**CONFIG)
    config.use_cache = False
    model: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    block = next(type(each) for each in model.modules() if type(each).__name__ == unit)
    policy: Any = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={block})
    if adapters:
        import peft
        from peft.utils.other import fsdp_auto_wrap_policy

        model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=list(LORA)))
        model.base_model.model._no_split_modules = [unit]
        policy = fsdp_auto_wrap_policy(model)  # type: ignore[no-untyped-call]
        model.enable_input_require_grads()
    if checkpoints:
        reentrant = {"use_reentrant": checkpoints == "reentrant"}
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=reentrant)
    return FullyShardedDataParallel(
        model.train(), auto_wrap_policy=policy, device_id=torch.device("cpu"), use_orig_params=False
    )


def rows(adapters: bool, checkpoints: str, unit: str) -> list[tuple[str, int]]:
    """What one step does, after a first one that makes the buffers."""
    model = build(adapters, checkpoints, unit)
    ids = torch.zeros(1, 8, dtype=torch.long)
    model(input_ids=ids, labels=ids).loss.backward()
    found: list[tuple[str, int]] = []
    with Recorded(found):
        model(input_ids=ids, labels=ids).loss.backward()
    return found


class Recorded:
    """The collectives of FSDP1 and what it gives back go to ``found``."""

    def __init__(self, found: list[tuple[str, int]]) -> None:
        self._found = found
        self._before: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> None:
        found = self._found
        self._wrap(
            FlatParamHandle, "_all_gather_flat_param", lambda _, out: found.append(("gather", out.numel()))
        )
        self._wrap(
            FlatParamHandle,
            "_free_unsharded_flat_param",
            lambda handle: found.append(("free", handle.flat_param._full_param_padded.numel())),
        )
        self._wrap(
            _runtime_utils,
            "_reduce_grad",
            lambda _, handle: found.append(("reduce", handle.flat_param.grad.numel())),
        )

    def _wrap(self, owner: Any, name: str, note: Any) -> None:
        real = getattr(owner, name)
        self._before.append((owner, name, real))

        def noted(*args: Any, **named: Any) -> Any:
            note(*args)
            return real(*args, **named)

        setattr(owner, name, noted)

    def __exit__(self, *_: object) -> None:
        for owner, name, real in self._before:
            setattr(owner, name, real)


def main() -> None:
    """Each case by its name."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    cases = {
        "full": (False, "", BLOCK),
        "full checkpoints": (False, "plain", BLOCK),
        "lora reentrant": (True, "reentrant", BLOCK),
        "lora of layers": (True, "", LAYER),
        "lora of layers checkpoints": (True, "plain", LAYER),
        "lora of layers reentrant": (True, "reentrant", LAYER),
    }
    sys.stdout.write(json.dumps({name: rows(*case) for name, case in cases.items()}))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
