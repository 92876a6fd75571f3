"""The stack files: complete, well typed, sourced,
and in agreement with the packages that are installed here.
"""

from __future__ import annotations

import ast
import itertools
import re
import shutil
import types
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from planner import configs
from planner.calibration.fit.screen import screen
from planner.catalog.location import data_dir
from planner.catalog.packages import TABLES, package_path, parsed_version
from planner.catalog.stacks import DEFAULT_NAMES, SWITCH_NAMES, load_stack, stack_ids, turning_versions
from planner.configs.launchers.zero import _STAGE_3
from planner.domain.recipes.recipe import STAYS_16_BIT
from planner.domain.stack import Stack
from planner.domain.uncertainty.prior import SettledBy
from planner.errors import InputFileError
from planner.files.structured import read_toml
from planner.records import read_records
from tests.accuracy.published import published_dir
from tests.extras import import_or_skip

IDS = stack_ids()


def hf5() -> Stack:
    """The stack of the packages that the test environment has."""
    return load_stack("hf-trainer@5")


def test_a_stack_is_found_by_each_of_its_names() -> None:
    """Each stack is found by its id, its aliases and in any case."""
    assert len(IDS) > 10
    for stack_id in IDS:
        file = read_toml(data_dir() / "stacks" / f"{stack_id.replace('@', '-')}.toml")
        assert {load_stack(name.upper()).id for name in (stack_id, *file.get("aliases", []))} == {stack_id}


@pytest.mark.parametrize("stack_id", IDS)
def test_a_stack_has_what_it_takes_by_default(stack_id: str) -> None:
    """The first FSDP, a fused head and loss: what a user who says nothing gets is not refused."""
    stack = load_stack(stack_id)
    for defaults in (stack.defaults, stack.quantized_defaults or stack.defaults):
        assert stack.has_fsdp1 or defaults.sharding != "fsdp1"
        assert stack.offers_liger_loss or defaults.loss != "liger"


@pytest.mark.parametrize("stack_id", [name for name in IDS if name.partition("@")[0] == "trl"])
def test_trl_runs_with_packages_of_its_time(stack_id: str) -> None:
    """Since 0.12 it asks for Transformers 4.46 or newer, where 16-bit logits stay beside those in fp32; and
    bitsandbytes had by then let the inputs of 4-bit matrices go.
    """
    stack = load_stack(stack_id)
    assert "compute" in stack.loss_forward
    assert not stack.linear4bit_keeps_input


def test_a_name_stands_for_versions_since_the_last_older_file() -> None:
    """Of the same first number, newer than the older file, and where a fact was another; none of a name that
    says its version, or of software whose package has another name.
    """
    found = turning_versions("trl")
    assert {"1.0.0", "1.5.0", "1.15.0"} <= set(found)
    assert found == tuple(sorted(found, key=lambda each: parsed_version("trl", each), reverse=True))
    assert all(each.startswith("1.") and each != "1.16.0" for each in found)
    assert turning_versions("axolotl")[-1] >= "0.13.0"
    assert turning_versions("trl@0.24") == turning_versions("hf-trainer@5") == turning_versions("swift") == ()


def test_ligers_loss_is_for_the_code_of_transformers() -> None:
    """A trainer's switch for it replaces classes of Transformers; code of another kind does not go there."""
    stack = hf5()
    assert stack.offers_liger_loss
    assert not replace(stack, model_code="own").offers_liger_loss
    assert not replace(stack, liger_loss=False).offers_liger_loss


@pytest.mark.parametrize("stack_id", ["hf-loop", "plain-torch"])
def test_a_loop_over_a_kbit_base_is_prepared_as_peft_prepares_it(stack_id: str) -> None:
    """``prepare_model_for_kbit_training`` upcasts, and turns checkpointing on where nothing is given."""
    stack = load_stack(stack_id)
    assert stack.kbit_upcast == "all"
    assert not stack.defaults.gradient_checkpointing
    assert stack.quantized_defaults is not None
    assert stack.quantized_defaults.gradient_checkpointing


def switches_of_files() -> set[str]:
    """Switches that readers of config files set: the first argument of ``reading.switch``,
    and those of stage 3, which a table pairs with keys.
    """
    calls = (
        node
        for path in (Path(configs.__file__).parent).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "switch"
    )
    names = {call.args[0].value for call in calls if isinstance(call.args[0], ast.Constant)}
    return {name for name in names if isinstance(name, str)} | {name for name, _ in _STAGE_3.values()}


def test_a_switch_with_one_value_in_all_stacks_is_set_elsewhere() -> None:
    """By the reader of a file, by a row of measurements or by versions that a row names; what nothing sets is
    no switch.
    """
    rows = read_records([published_dir() / "*.csv"]).records
    said = switches_of_files() | {pair.partition("=")[0] for row in rows for pair in row.switches}
    of_versions = {(row.stack, row.versions): row for row in rows if row.versions}
    at_versions = (scenario.stack for _, scenario in screen(of_versions.values()).used)
    stacks = [*(load_stack(stack_id) for stack_id in IDS), *at_versions]
    fixed = {name for name in SWITCH_NAMES if len({repr(getattr(each, name)) for each in stacks}) == 1}
    assert fixed - said == set()
    assert len(fixed) < len(SWITCH_NAMES) / 4


@pytest.mark.parametrize("stack_id", IDS)
def test_a_stack_settles_every_field(stack_id: str) -> None:
    """Each default and each switch says what settled it, and where that was read."""
    settled = {name: (settled_by, source) for name, settled_by, source in load_stack(stack_id).settled}
    assert {*SWITCH_NAMES, *(f"defaults.{name}" for name in DEFAULT_NAMES)} <= set(settled)
    assert [
        name
        for name, (settled_by, source) in settled.items()
        if settled_by not in get_args(SettledBy) or not source.strip()
    ] == []


@pytest.mark.parametrize("stack_id", IDS)
def test_a_value_over_quantised_bases_differs(stack_id: str) -> None:
    """What a file states for quantised bases is not a repetition of the general default."""
    file = read_toml(data_dir() / "stacks" / f"{stack_id.replace('@', '-')}.toml")
    stack = load_stack(stack_id)
    assert {f"quantized.{name}" for name in file.get("quantized", {})} <= stack.facts.keys()
    assert stack.quantized_defaults != stack.defaults


def without(entry: tuple[str, str], stack_id: str, folder: Path) -> None:
    """Writes the file of a stack without one entry of one table into ``folder``, whose copy is read next."""
    table, name = entry
    path = folder / "stacks" / f"{stack_id.replace('@', '-')}.toml"
    text = (data_dir() / "stacks" / path.name).read_text(encoding="utf-8")
    start, line = text.index(f"[{table}]\n"), re.compile(rf"^{name} = .*\n", re.M)
    path.write_text(text[:start] + line.sub("", text[start:], count=1), encoding="utf-8")
    load_stack.cache_clear()


def facts_by_version(stack_id: str, steps: list[tuple[str, str]]) -> list[dict[str, object]]:
    """Facts of the stack at its own versions, and with each of these versions of one package."""
    return [load_stack(stack_id, versions).facts for versions in ((), *((step,) for step in steps))]


def steps_of(stack: Stack) -> list[tuple[str, str]]:
    """Each version since which a fact of a package of this stack is another one, and the oldest read."""
    steps: set[tuple[str, str]] = set()
    for package, _ in stack.versions:
        text = package_path(package).read_text(encoding="utf-8")
        since = re.findall(r'since = "([^"]+)"', text)
        steps |= {(package, version) for version in (*since, read_toml(package_path(package))["read"][0][0])}
    return sorted(steps)


@pytest.mark.parametrize("stack_id", IDS)
def test_a_stack_file_repeats_nothing_that_lies_below_it(
    stack_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry changes a fact at some version of some package, or knows what lies below only as assumed."""
    stack, steps = load_stack(stack_id), steps_of(load_stack(stack_id))
    file = read_toml(data_dir() / "stacks" / f"{stack_id.replace('@', '-')}.toml")
    entries = [(table, name) for table in TABLES if table != "usual" for name in file.get(table, {})]
    usual = stack.facts, facts_by_version(stack_id, steps)
    shutil.copytree(data_dir() / "stacks", tmp_path / "stacks")
    repeated = []
    for entry in entries:
        with monkeypatch.context() as patched:
            without(entry, stack_id, tmp_path)
            patched.setattr("planner.catalog.stacks.data_dir", lambda: tmp_path)
            try:
                bare = load_stack(stack_id)
            except InputFileError:  # Nothing below has this name.
                continue
            key = entry[1] if entry[0] == "switches" else ".".join(entry)
            below = next((settled_by for name, settled_by, _ in bare.settled if name == key), "")
            knows_better = below == "assumed" != file[entry[0]][entry[1]]["settled_by"]
            same = bare.facts == usual[0] and facts_by_version(stack_id, steps) == usual[1]
            if same and not knows_better:
                repeated.append(key)
    load_stack.cache_clear()
    assert repeated == []


@pytest.mark.parametrize("stack_id", IDS)
def test_copies_of_logits_are_consistent(stack_id: str) -> None:
    """Cross-entropy in torch saves the log-softmax, so both peaks hold it,
    and only the first can hold the fp32 copy.

    One fused or compiled kernel keeps the logits alone.
    """
    stack = load_stack(stack_id)
    if stack.loss_forward == ("compute",) and stack.loss_backward in (
        ("compute",),
        ("compute", "compute_grad"),
    ):
        return
    if stack.loss_forward == ("compute", "float"):
        # The copy in fp32 becomes the softmax in place, which backward copies (Megatron's, compiled) or not.
        assert stack.loss_backward in (("float", "nll_grad", "compute_grad"), ("compute", "float"))
        return
    assert "log_softmax" in stack.loss_forward
    assert "log_softmax" in stack.loss_backward
    assert "shifted" not in stack.loss_backward
    # Widened logits live on where the model returns them widened, and the loop keeps what it returns.
    assert "float" not in stack.loss_backward or "compute" not in stack.loss_forward
    assert not {"nll_grad", "log_softmax_grad"} & set(stack.loss_forward)


# What the installed packages do themselves.


def live_peaks(torch: types.ModuleType, forward: Any, elements: int) -> tuple[float, float]:
    """Peak of the bytes that tensors made by ``forward()`` and by its backward occupy, per element.

    ``forward`` returns the loss and whatever the caller keeps until then; the latter is dropped before the
    backward, as the Trainer does.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.live: dict[int, int] = {}
            self.tokens = itertools.count()
            self.seen: dict[int, int] = {}
            self.peak = 0

        def drop(self, pointer: int, token: int) -> None:
            self.live.pop(token)
            self.seen.pop(pointer)

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, (tuple, list)) else [out]:
                if not isinstance(tensor, torch.Tensor) or tensor.untyped_storage()._cdata in self.seen:
                    continue
                storage, token = tensor.untyped_storage(), next(self.tokens)
                self.live[token] = storage.nbytes()
                self.seen[storage._cdata] = token
                weakref.finalize(storage, self.drop, storage._cdata, token)
            self.peak = max(self.peak, sum(self.live.values()))
            return out

    with Count() as count:
        loss, *kept = forward()
        first = count.peak
        kept.clear()
        count.peak = 0
        loss.backward()
    return first / elements, count.peak / elements


COPY_BYTES = {
    "compute": 2,
    "float": 4,
    "shifted": 4,
    "log_softmax": 4,
    "nll_grad": 4,
    "log_softmax_grad": 4,
    "compute_grad": 2,
    "model_loss": 4,
}
VOCAB, SEQ = 6000, 32


def head(torch: types.ModuleType, batch: int) -> tuple[Any, Any, Any]:
    """Hidden states, head weight and labels of a tiny language model in bf16."""
    torch.manual_seed(0)
    hidden = torch.randn(batch, SEQ, 4, dtype=torch.bfloat16, requires_grad=True)
    return hidden, torch.randn(VOCAB, 4, dtype=torch.bfloat16), torch.randint(0, VOCAB, (batch, SEQ))


def test_a_compiled_loss_saves_the_16_bit_logits_alone() -> None:
    """What the partitioner of torch.compile keeps of ``cross_entropy(logits.float())``, as
    ``torchtitan-compile`` lists it.
    """
    torch = import_or_skip("torch")
    hidden, weight, labels = head(torch, 1)
    logits = torch.nn.functional.linear(hidden, weight)
    saved: list[Any] = []

    def loss(logits: Any) -> Any:
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())

    compiled = torch.compile(loss, backend="aot_eager_decomp_partition")
    with torch.autograd.graph.saved_tensors_hooks(lambda each: saved.append(each) or each, lambda each: each):
        compiled(logits).backward()
    assert [each.dtype for each in saved if each.numel() == SEQ * VOCAB] == [torch.bfloat16]


@pytest.mark.parametrize("batch", [1, 2])
def test_logits_copies_of_transformers_5(batch: int) -> None:
    """The copies listed for hf-trainer@5 add up to the bytes that the installed loss function really
    holds.
    """
    torch = import_or_skip("torch")
    loss_utils = import_or_skip("transformers.loss.loss_utils")
    hidden, weight, labels = head(torch, batch)

    def forward() -> tuple[Any, Any]:
        logits = torch.nn.functional.linear(hidden, weight)
        return loss_utils.ForCausalLMLoss(logits, labels, VOCAB), logits

    peak_forward, peak_backward = live_peaks(torch, forward, batch * SEQ * VOCAB)
    assert peak_forward == pytest.approx(sum(COPY_BYTES[name] for name in hf5().loss_forward), rel=0.05)
    assert peak_backward == pytest.approx(sum(COPY_BYTES[name] for name in hf5().loss_backward), rel=0.05)


@pytest.mark.parametrize("batch", [1, 2])
def test_logits_copies_of_transformers_4(batch: int) -> None:
    """The order of operations of Transformers up to 4.45 holds 12 bytes per logit, and 8 at batch 1,
    where nothing is copied.
    """
    torch = import_or_skip("torch")
    functional = torch.nn.functional
    hidden, weight, labels = head(torch, batch)

    def forward() -> tuple[Any, Any]:
        logits = functional.linear(hidden, weight)
        logits = logits.float()
        shifted = logits[..., :-1, :].contiguous()
        loss = functional.cross_entropy(shifted.view(-1, VOCAB), labels[..., 1:].contiguous().view(-1))
        return loss, logits

    peak_forward, peak_backward = live_peaks(torch, forward, batch * SEQ * VOCAB)
    stack = load_stack("hf-trainer@4")
    copies = [name for name in stack.loss_forward if name != "shifted" or batch > 1]
    assert peak_forward == pytest.approx(sum(COPY_BYTES[name] for name in copies), rel=0.05)
    assert peak_backward == pytest.approx(sum(COPY_BYTES[name] for name in stack.loss_backward), rel=0.05)


@pytest.mark.parametrize("batch", [1, 2])
def test_logits_copies_of_llama_factory_v1(batch: int) -> None:
    """``compute_log_probs``: the model has taken its own loss, whose graph lives as long as ``outputs``."""
    torch = import_or_skip("torch")
    loss_utils = import_or_skip("transformers.loss.loss_utils")
    hidden, weight, labels = head(torch, batch)

    def forward() -> tuple[Any]:
        returned = torch.nn.functional.linear(hidden, weight)
        outputs = loss_utils.ForCausalLMLoss(returned, labels, VOCAB), returned
        logits = outputs[1].float()
        shift_labels = labels[..., 1:].contiguous().view(-1)
        shift_logits = logits[..., :-1, :].contiguous().view(shift_labels.size(0), -1)
        return (torch.nn.functional.cross_entropy(shift_logits, shift_labels, reduction="none").sum(),)

    peak_forward, peak_backward = live_peaks(torch, forward, batch * SEQ * VOCAB)
    stack = load_stack("llama-factory-v1")
    copies = [name for name in stack.loss_forward if name != "shifted" or batch > 1]
    assert peak_forward == pytest.approx(sum(COPY_BYTES[name] for name in copies), rel=0.05)
    assert peak_backward == pytest.approx(sum(COPY_BYTES[name] for name in stack.loss_backward), rel=0.05)


def kbit_model(torch: types.ModuleType) -> Any:
    """A module that passes for a k-bit model: 16-bit embedding and head around integer weights."""
    model = torch.nn.Module()
    model.embed = torch.nn.Embedding(8, 4, dtype=torch.bfloat16)
    model.packed = torch.nn.Parameter(torch.zeros(4, dtype=torch.uint8), requires_grad=False)
    model.head = torch.nn.Linear(4, 8, bias=False, dtype=torch.float16)
    model.is_loaded_in_4bit = True
    return model


def test_peft_upcasts_every_16_bit_parameter_of_a_kbit_model() -> None:
    """``kbit_upcast = "all"`` of hf-trainer@5 is what PEFT does; integer weights are left alone."""
    torch, peft = import_or_skip("torch"), import_or_skip("peft")
    model = peft.prepare_model_for_kbit_training(kbit_model(torch), use_gradient_checkpointing=False)
    assert hf5().kbit_upcast == "all"
    assert [parameter.dtype for parameter in model.parameters()] == [
        torch.uint8,
        torch.float32,
        torch.float32,
    ]


def test_peft_leaves_a_gptq_model_in_16_bit() -> None:
    """``STAYS_16_BIT``: bases of GPTQ keep their dtypes in the preparation that qwen-finetune asks for."""
    torch, peft = import_or_skip("torch"), import_or_skip("peft")
    model = kbit_model(torch)
    model.quantization_method = "gptq"
    model = peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    assert (load_stack("qwen-finetune").kbit_upcast, "gptq-int4" in STAYS_16_BIT) == ("all", True)
    assert [parameter.dtype for parameter in model.parameters()] == [
        torch.uint8,
        torch.bfloat16,
        torch.float16,
    ]


def test_training_arguments_give_the_optimizer_and_checkpointing(tmp_path: Path) -> None:
    """The optimizer and the checkpointing of hf-trainer@5 are the defaults of ``TrainingArguments``."""
    import_or_skip("accelerate")
    transformers = import_or_skip("transformers", minversion="5.0")
    arguments = transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    assert arguments.optim == hf5().defaults.optimizer
    assert bool(arguments.gradient_checkpointing) is hf5().defaults.gradient_checkpointing


def tiny_llama(torch: types.ModuleType, transformers: Any) -> Any:
    """A two-layer Llama in bf16."""
    config = transformers.LlamaConfig(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=32,
    )
    return transformers.LlamaForCausalLM(config).to(torch.bfloat16)


def test_transformers_5_loads_the_dtype_of_the_checkpoint(tmp_path: Path) -> None:
    """``load_dtype = "checkpoint"``: without a dtype a bf16 checkpoint loads as bf16,
    and attention is the one in the file.
    """
    torch, transformers = import_or_skip("torch"), import_or_skip("transformers", minversion="5.0")
    tiny_llama(torch, transformers).save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert hf5().defaults.load_dtype == "checkpoint"
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.bfloat16}
    assert loaded.config._attn_implementation == hf5().defaults.attention


def test_transformers_5_checkpoints_without_reentry() -> None:
    """``checkpoint_reentrant`` of hf-trainer@5 is what ``gradient_checkpointing_enable`` passes to every
    block.
    """
    torch, transformers = import_or_skip("torch"), import_or_skip("transformers", minversion="5.0")
    model = tiny_llama(torch, transformers)
    model.gradient_checkpointing_enable()
    passed = {block._gradient_checkpointing_func.keywords["use_reentrant"] for block in model.model.layers}
    assert passed == {hf5().defaults.checkpoint_reentrant}


def test_peft_adapters_are_fp32_over_a_bf16_base() -> None:
    """Adapter dtype, rank and dropout of hf-trainer@5 are those of a plain ``LoraConfig`` on a bf16 model."""
    torch, peft = import_or_skip("torch"), import_or_skip("peft")
    transformers = import_or_skip("transformers", minversion="5.0")
    config = peft.LoraConfig(target_modules="all-linear")
    model = peft.get_peft_model(tiny_llama(torch, transformers), config)
    dtypes = {parameter.dtype for name, parameter in model.named_parameters() if "lora_" in name}
    assert hf5().defaults.adapter_dtype == "fp32"
    assert dtypes == {torch.float32}
    assert config.r == hf5().defaults.lora_rank
    assert config.lora_dropout == hf5().defaults.lora_dropout


def test_transformers_5_experts_are_three_dimensional() -> None:
    """``fused_experts`` of hf-trainer@5: expert weights are 3-D parameters,
    and no linear layer holds them.
    """
    torch, transformers = import_or_skip("torch"), import_or_skip("transformers", minversion="5.0")
    config = transformers.Qwen3MoeConfig(
        hidden_size=16, intermediate_size=32, moe_intermediate_size=8, num_experts=4, num_experts_per_tok=2,
        num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8, vocab_size=32,
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.Qwen3MoeForCausalLM(config)
    fused = [name for name, parameter in model.named_parameters() if parameter.dim() == 3]
    linears = [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and ".experts" in name
    ]
    assert hf5().fused_experts is True
    assert len(fused) == 2
    assert linears == []


def test_bitsandbytes_expands_weights_in_large_forward_passes() -> None:
    """Above 1536 tokens the fused 4-bit kernel is not used,
    so that training expands its weights as before.
    """
    source = import_or_skip("bitsandbytes").__path__[0]
    text = (Path(source) / "backends" / "cuda" / "ops.py").read_text(encoding="utf-8")
    if "gemm_4bit" not in text:
        pytest.skip("bitsandbytes before 0.50 always expands")
    assert re.search(r"_custom_max_m = 1536\b", text)
