"""Statements of programs whose effect on what trains is known, and their like whose effect is not."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from planner.api.checks import check_job, command_job
from planner.api.files import CheckOptions
from planner.configs.launchers.fsdp_keys import Beside
from planner.errors import NotModelledError, UsageError
from planner.intake.given.config_file import read_config_file
from planner.intake.given.request import from_flags
from tests.files import answer_to
from tests.planner.configs.programs.test_program import TRAINER, TRL, job, program, read, refusal

BEFORE = "trainer = T"
FREEZES = "for p in model.parameters():\n    p.requires_grad = False\n"
RAISES = (
    "for name, module in trainer.model.named_modules():\n"
    "    if 'norm' in name:\n        module = module.to(torch.float32)\n"
)
ASKS = "if trainer.is_world_process_zero():\n    model.print_trainable_parameters()\ntrainer.train()"
RESUMES = """if newest():
    trainer.train(resume_from_checkpoint=True)
else:
    trainer.train()
model.half()"""
NEW_ROWS = """if added > 0:
    rows_of = model.get_input_embeddings().weight.data
    rows_of[-added:] = rows_of[:-added].mean(dim=0)
trainer = T"""
ANSWERS = """for each in ("a", "b"):
    given = tokenizer(each, return_tensors="pt").to(model.device)
    answer = model.generate(**given)
    print(tokenizer.decode(answer[0][given.shape:]))
"""
LINEAR = """mine = ["q_proj", "gate_proj"]
def linear(model):
    found = set()
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            parts = name.split(".")
            found.add(parts[0] if len(parts) == 1 else parts[-1])
    return list(found)
"""
KEEPS = "for each in model.modules():\n    kept.append(each)\n    for one in kept:\n        one.half()\n"
OWN_TRAINER = "class Own(Trainer):\n    def log(self, *args):\n        pass\n"
PICKS = """def kind():
    asks = getattr(torch.cuda, "is_bf16_supported", None)
    if callable(asks) and asks():
        return torch.bfloat16
    return torch.float16
"""
NAMES_PADDING = """tokenizer = AutoTokenizer.from_pretrained(name)
if tokenizer.pad_token is None:
    tokenizer.pad_token = "<pad>"
    model.config.pad_token_id = tokenizer.pad_token_id
"""
NEW_TOKEN = """if tokenizer.pad_token is None:
    tokenizer.add_special_tokens(more)
    model.resize_token_embeddings(len(tokenizer))
"""
PACKED = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
ASKS_FIRST = """def asked(model, text):
    given = tokenizer(text, return_tensors="pt").to(model.device)
    return tokenizer.decode(model.generate(**given)[0])
class Game:
    pass
game = Game()
for seed in (1, 2):
    game = Game()
    answer = asked(model, seed)
    print(answer.strip(), score(answer, game))
"""
TURNS = "def turned(part):\n    part.half()\nfor each in model.modules():\n    turned(each)\n"
HANDS_BACK = (
    "def same(part):\n    return part\nfor each in model.modules():\n    x = same(each)\n    x.half()\n"
)
NOTES = "if accelerator.is_main_process:\n    wandb.init(config=args)\n"
WITHOUT = "\n".join(line for line in TRAINER.splitlines() if "LoraConfig(" not in line)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("model = get_peft", f"{FREEZES}model = get_peft"),
        ("trainer.train()", f"{RAISES}trainer.train()"),
        ("trainer.train()", ASKS),
        ("trainer.train()", RESUMES),
        (BEFORE, f"if torch.cuda.device_count() > 1:\n    model.is_parallelizable = True\n{BEFORE}"),
        (BEFORE, NEW_ROWS),
        (BEFORE, f"import transformers\ntransformers.pipeline('text', model=model)('a')\n{BEFORE}"),
        ("bf16=True", "bf16=model.dtype == torch.bfloat16"),
        (BEFORE, f"if hasattr(model, 'config'):\n    model.config.use_cache = False\n{BEFORE}"),
        (BEFORE, f"if model.config.pad_token_id is None:\n    model.config.pad_token_id = 0\n{BEFORE}"),
        (BEFORE, f"n = sum(p.numel() for p in model.parameters() if p.requires_grad)\n{BEFORE}"),
        (BEFORE, f"torch.backends.cuda.enable_flash_sdp(True)\n{BEFORE}"),
        (BEFORE, f"if not hasattr(model, 'warnings_issued'):\n    model.warnings_issued = {{}}\n{BEFORE}"),
        (BEFORE, NAMES_PADDING + BEFORE),
        (BEFORE, NEW_TOKEN + BEFORE),
        (BEFORE, f"import wandb\n{NOTES}{BEFORE}"),
        (BEFORE, ANSWERS + BEFORE),
        (BEFORE, ASKS_FIRST + BEFORE),
        ("quantization_config=packed", f"quantization_config={PACKED}"),
        ("dtype=torch.bfloat16", "offload_folder='f', device_map=f'cuda:{rank()}', dtype=torch.bfloat16"),
        ("Trainer(model", "Own(model"),
        ("per_device_train_batch_size=4", "per_device_train_batch_size=[1, 2, 4, 8][2:3][-1]"),
        ("dtype=torch.bfloat16", "dtype=kind()"),
        ("args = TrainingArguments(",
         "kept = {'optim': 'sgd'}\ndel kept['optim']\nargs = TrainingArguments(**kept, output_dir="),
    ],
)  # fmt: skip
def test_what_leaves_the_job_as_it_is_is_passed(before: str, after: str, tmp_path: Path) -> None:
    """Frozen weights under adapters, norms that are in fp32 already, questions, values of rows."""
    assert before in TRAINER
    changed = (OWN_TRAINER + PICKS).join(TRAINER.replace(before, after).split("from trl import PPOTrainer\n"))
    changed = changed.replace("import torch\n", "import torch\nfrom trl import PPOTrainer\n", 1)
    assert job(program(tmp_path, changed)) == job(program(tmp_path, TRAINER))


@pytest.mark.parametrize(
    ("text", "before", "after", "said"),
    [
        (TRAINER, BEFORE, f"{FREEZES}{BEFORE}", "what this loop does"),
        (WITHOUT, BEFORE, f"{FREEZES}{BEFORE}", "of its weights"),
        (TRAINER.replace("model = prepare_model_for_kbit_training(model)\n", ""), "trainer.train()",
         f"{RAISES}trainer.train()", "norms that the program moves"),
        (TRAINER, "trainer.train()", f"{RAISES.replace('float32', 'float16')}trainer.train()", "this loop"),
        (TRAINER, BEFORE, f"def f():\n    model.half()\nif newest():\n    f()\n{BEFORE}", "whether"),
        (TRAINER, BEFORE, f"if newest():\n    model.config = None\n{BEFORE}", "whether this is done"),
        (TRAINER, BEFORE, f"pipeline('text-generation', model='gpt2')\n{BEFORE}", "what this changes"),
        (TRAINER, BEFORE, f"model = Accelerator().prepare(model)\n{BEFORE}", "what this does"),
        (TRL, "train_dataset=data,", "train_dataset=data, teacher=other,", "teacher of SFTTrainer"),
        (TRAINER, BEFORE, f"[p.requires_grad_(False) for p in model.parameters()]\n{BEFORE}",
         "what this does"),
        (TRAINER, BEFORE, f"for each in (model,):\n    each.half()\n{BEFORE}", "what this loop does"),
        (TRAINER, BEFORE, f"model.half() if newest() else None\n{BEFORE}", "what this does"),
        (TRAINER, BEFORE, f"(kept := model).half()\n{BEFORE}", "what this changes"),
        (TRAINER, BEFORE, f"try:\n    model.half()\nexcept* OSError:\n    pass\n{BEFORE}",
         "what this changes"),
        (TRAINER, BEFORE, f"del model.base_model.layers[4:]\n{BEFORE}", "what this changes"),
        (TRAINER, BEFORE, f"del args.bf16\n{BEFORE}", "what this changes"),
        (TRAINER, BEFORE, f"torch.backends.cuda.enable_flash_sdp(False)\n{BEFORE}", "what this changes"),
        (TRAINER, BEFORE, f"torch.use_deterministic_algorithms(True)\n{BEFORE}", "what this changes"),
        (TRAINER, BEFORE, f"enable_full_determinism(42)\n{BEFORE}", "what this changes"),
        (TRAINER, BEFORE, f"exec(open('more.py').read())\n{BEFORE}", "what this changes"),
        (TRL, "train_dataset=data,", "train_dataset=data, quantization_config=packed,", "when it is loaded"),
        (TRAINER, BEFORE, KEEPS + BEFORE, "what this loop does"),
        (TRAINER, BEFORE, TURNS + BEFORE, "what this loop does"),
        (TRAINER, BEFORE, HANDS_BACK + BEFORE, "what this loop does"),
        (TRAINER, '["q_proj", "v_proj"]', "linear(model)", "lora_target_modules.*--lora-targets"),
        (TRAINER, '["q_proj", "v_proj"]', "[each for each in mine if each in linear(model)]", "targets"),
        (TRAINER, BEFORE, f"{NOTES}    model.config.hidden_size = 8\n{BEFORE}", "whether this is done"),
        (TRAINER, BEFORE, f"{NOTES.replace('wandb', 'fast')}{BEFORE}", "whether this is done"),
        (TRAINER, "trainer = Trainer(", f"{OWN_TRAINER.replace('log', 'compute_loss')}trainer = Own(",
         "what Own changes in Trainer"),
    ],
)  # fmt: skip
def test_what_may_change_the_job_is_refused(
    text: str, before: str, after: str, said: str, tmp_path: Path
) -> None:
    """The like of what is known, with another effect."""
    assert before in text
    assert re.search(said, refusal(tmp_path, LINEAR + text.replace(before, after)))


def test_a_model_of_transformers_has_its_methods(tmp_path: Path) -> None:
    """What programs ask about is there, and is done."""
    asks = "if hasattr(model, 'gradient_checkpointing_enable'):\n    model.gradient_checkpointing_enable()\n"
    alone = TRAINER.replace(BEFORE, f"model.gradient_checkpointing_enable()\n{BEFORE}")
    assert job(program(tmp_path, TRAINER.replace(BEFORE, asks + BEFORE))) == job(program(tmp_path, alone))
    with pytest.raises(NotModelledError, match="whether"):
        read(program(tmp_path, TRAINER.replace(BEFORE, f"{asks.replace('gradient_', 'my_')}{BEFORE}")))


def test_tokens_of_a_chat_are_not_counted(tmp_path: Path) -> None:
    """Where the tokenizer has no template, which only a run knows; told, as without a condition."""
    adds = "model, tokenizer = setup_chat_format(model, tokenizer)"
    asks = f"if tokenizer.chat_template is None:\n    logger.info('none')\n    {adds}\n"
    changed = TRAINER.replace("from trl import", "from trl import setup_chat_format,")
    plain, asked = changed.replace(BEFORE, f"{adds}\n{BEFORE}"), changed.replace(BEFORE, asks + BEFORE)
    assert job(program(tmp_path, asked)) == job(program(tmp_path, plain))
    with pytest.raises(NotModelledError, match="whether"):
        read(program(tmp_path, changed.replace(BEFORE, f"{asks}    model.half()\n{BEFORE}")))


@pytest.mark.parametrize("start", ["raise SystemExit(main())", "sys.exit(main())"])
def test_a_program_may_hand_its_end_to_the_shell(start: str, tmp_path: Path) -> None:
    """``main`` is called first."""
    imports, inner = TRAINER.partition("model = ")[0], "model = " + TRAINER.partition("model = ")[2]
    body = "\n".join(f"    {line}" for line in inner.splitlines())
    text = f"import sys\n{imports}\ndef main():\n{body}\nif __name__ == '__main__':\n    {start}\n"
    assert job(program(tmp_path, text)) == job(program(tmp_path, TRAINER))


def sized_of(batch: int) -> str:
    """The program with another batch."""
    return TRAINER.replace("batch_size=4", f"batch_size={batch}")


@pytest.mark.parametrize(
    "sets",
    [
        "os.environ.setdefault('PYTORCH_CUDA_ALLOC_CONF', {})",
        "os.environ.update({{'PYTORCH_CUDA_ALLOC_CONF': {}}})",
        "os.putenv('PYTORCH_CUDA_ALLOC_CONF', {})",
        "torch.cuda.memory._set_allocator_settings({})",
    ],
)
def test_the_allocator_is_set_by_any_call(sets: str, tmp_path: Path) -> None:
    """Segments that grow are counted, as where an item of the environment says so; others are refused."""
    grows = "'expandable_segments:True'"
    jobs = [
        job(program(tmp_path, TRAINER.replace(BEFORE, f"import os\n{line.format(grows)}\n{BEFORE}")))
        for line in (sets, "os.environ['PYTORCH_CUDA_ALLOC_CONF'] = {}")
    ]
    assert jobs[0] == jobs[1] != job(program(tmp_path, TRAINER))
    other = TRAINER.replace(BEFORE, f"import os\n{sets.format('said')}\n{BEFORE}")
    assert "what this variable changes" in refusal(tmp_path, other)


def test_a_default_of_a_variable_gives_way_to_what_is_set(tmp_path: Path) -> None:
    """As Python's ``setdefault`` does."""
    sets = "import os\nos.environ['N'] = '2'\nos.environ.setdefault('N', '8')\nn = int(os.environ.get('N'))\n"
    text = TRAINER.replace("args = T", f"{sets}args = T").replace("batch_size=4", "batch_size=n")
    assert job(program(tmp_path, text)) == job(program(tmp_path, sized_of(2)))


def test_products_in_fp32_are_told(tmp_path: Path) -> None:
    """Four bits without a dtype to compute in; nothing is said beside 16 bits, whichever."""
    packed = "bnb_4bit_use_double_quant=True"
    assert packed in TRAINER
    for dtype, told in (("", True), (", bnb_4bit_compute_dtype=torch.float32", True),
                        (", bnb_4bit_compute_dtype=torch.bfloat16", False)):  # fmt: skip
        remarks = read(program(tmp_path, TRAINER.replace(packed, f"{packed}{dtype}"))).remarks
        assert any("in fp32" in each.text for each in remarks) is told


def test_the_trainer_that_trains_first_counts(tmp_path: Path) -> None:
    """Not the one that was made last."""
    text = TRAINER.replace(
        "args = T",
        "other = Trainer(model=model, args=TrainingArguments('o', bf16=True, num_train_epochs=1))\nargs = T",
    )
    text = text.replace("trainer.train()", "other.train()")
    assert job(program(tmp_path, text)) == job(program(tmp_path, sized_of(8)))


def test_a_name_of_the_function_around_it_is_set(tmp_path: Path) -> None:
    """By ``nonlocal``; where only a run knows whether it is, the name is not known."""
    sized = (
        "def size():\n    n = 1\n    def more():\n        nonlocal n\n        n = 2\n"
        "    more()\n    return n\nargs = T"
    )
    text = TRAINER.replace("args = T", sized).replace("batch_size=4", "batch_size=size()")
    assert job(program(tmp_path, text)) == job(program(tmp_path, sized_of(2)))
    maybe = text.replace("    more()", "    if newest():\n        more()")
    with pytest.raises(UsageError, match="placeholder"):
        job(program(tmp_path, maybe))
    # The function around it sets the name behind that anew.
    later = maybe.replace("    n = 1\n", "").replace("    return n", "    n = 4\n    return n")
    assert job(program(tmp_path, later)) == job(program(tmp_path, sized_of(4)))


def test_a_reference_is_the_model_as_it_was(tmp_path: Path) -> None:
    """By name or by place; one that is loaded otherwise, or beside adapters, is refused."""
    text = (
        TRL.replace("SFT", "DPO")
        .replace(", packing=True", "")
        .replace("peft_config=LoraConfig(r=64)", "ref_model=other")
    )
    text = text.replace(
        "    trained = 0\n", '    other = load(MODEL, kernel="flash_attention_2")\n    trained = 0\n'
    )
    alone = text.replace(", ref_model=other", "").replace("    other = load", "    # other = load")
    assert job(program(tmp_path, text)) == job(program(tmp_path, alone))
    placed = text.replace("model=model, args=args", "model, other, args=args").replace(
        ", ref_model=other", ""
    )
    assert job(program(tmp_path, placed)) == job(program(tmp_path, alone))
    otherwise = text.replace('other = load(MODEL, kernel="flash_attention_2")', "other = load(MODEL)")
    assert "loaded otherwise" in refusal(tmp_path, otherwise)
    assert "beside adapters" in refusal(
        tmp_path, text.replace("ref_model", "peft_config=LoraConfig(), ref_model")
    )


def test_models_of_other_classes(tmp_path: Path) -> None:
    """Classifiers in the Trainer; models that see in TRL's, whose length an own collator leaves open."""
    scores = TRAINER.replace("AutoModelForCausalLM", "AutoModelForSequenceClassification")
    scores = scores.replace('task_type="CAUSAL_LM"', 'task_type="SEQ_CLS"')
    assert job(program(tmp_path, scores)).recipe.task == "classify"
    sees = TRL.replace("LoraConfig(r=64)", "LoraConfig(target_modules=['q_proj'])")
    sees = sees.replace("AutoModelForCausalLM", "AutoModelForImageTextToText")
    sees = sees.replace("mistralai/Mistral-7B-v0.1", "Qwen/Qwen2.5-VL-7B-Instruct").replace(
        ", packing=True", ""
    )
    assert job(program(tmp_path, sees)).recipe.batch.images is not None
    own = read(
        program(tmp_path, sees.replace("train_dataset=data", "train_dataset=data, data_collator=joined"))
    )
    assert "say --seq" in own.needs["seq"]
    with pytest.raises(NotModelledError, match="how Trainer trains such a model"):
        read(program(tmp_path, TRAINER.replace("AutoModelForCausalLM", "AutoModelForImageTextToText")))
    liger = TRL.replace("from transformers", "from liger_kernel.transformers")
    liger = liger.replace("AutoModelFor", "AutoLigerKernelFor").replace("packing", "bf16=True, packing")
    assert job(program(tmp_path, liger)).recipe.loss == "liger"


def test_a_notebook_may_hand_its_model_to_accelerate(tmp_path: Path) -> None:
    """In its one process, where it asks for no other dtype."""
    lines = f"from accelerate import Accelerator\nmodel = Accelerator().prepare_model(model)\n{BEFORE}"
    path = tmp_path / "train.ipynb"
    for text, ends in (
        (lines, True),
        (lines.replace("Accelerator()", 'Accelerator(mixed_precision="fp16")'), False),
    ):
        cell = {"cell_type": "code", "source": TRAINER.replace(BEFORE, text)}
        path.write_text(json.dumps({"cells": [cell]}), encoding="utf-8")
        if ends:
            assert job(path) == job(program(tmp_path, TRAINER))
        else:
            with pytest.raises(NotModelledError, match="prepare_model"):
                read(path)


def test_what_other_files_say_is_read_by_the_names_of_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model or a parser of another module; without a command there is nothing to read."""
    monkeypatch.chdir(tmp_path)
    text = TRL.replace("    model = load(MODEL", "    from other import made\n    model = made(MODEL")
    path = program(tmp_path, text)
    with pytest.raises(NotModelledError, match="which model it trains"):
        read_config_file(path, None, Beside(gpu="rtx4090"))
    words = "--model_name_or_path Qwen/Qwen2.5-0.5B --use_peft --dataset_name a --max_length 512"
    answer = check_job(
        command_job(f"python train.py {words}", CheckOptions()), from_flags({"gpu": "rtx4090"})
    )
    assert answer.subject is not None, answer.failure
    assert any("read by their names alone" in text for _, text in answer.remarks)


def test_one_process_with_several_gpus_is_refused_where_the_program_loads_its_model(tmp_path: Path) -> None:
    """The Trainer would copy the model to each."""
    path = program(tmp_path, TRL)
    for command, ends in ((f"python {path}", False), (f"torchrun --nproc_per_node 2 {path}", True)):
        answer = answer_to(command, {"gpu": "rtx4090:2"})
        assert (answer.subject is not None) is ends
        assert ends or "nn.DataParallel" in answer.failure


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("apply_liger_kernel_to_llama()", ""),
        ("apply_liger_kernel_to_llama(model=model)", ""),
        ("apply_liger_kernel_to_llama(swiglu=False)", "other than its defaults"),
        # The first argument by place is that of one kernel.
        ("apply_liger_kernel_to_llama(model)", "other than its defaults"),
        ("apply_liger_kernel_to_qwen2()", "put into qwen2"),
    ],
)
def test_kernels_of_liger_that_a_program_puts_in_are_those_of_the_trainer(
    call: str, said: str, tmp_path: Path
) -> None:
    """With their defaults, and in the family of the model."""
    begins = f"from liger_kernel.transformers import {call.partition('(')[0]}\n"
    path = program(tmp_path, begins + TRAINER.replace("args = T", f"{call}\nargs = T"))
    if said:
        found = check_job(command_job(f"python {path}", CheckOptions()), from_flags({"gpu": "rtx4090"}))
        assert said in found.failure
        return
    asked = job(program(tmp_path, TRAINER.replace("bf16=True", "bf16=True, use_liger_kernel=True")))
    path.write_text(begins + TRAINER.replace("args = T", f"{call}\nargs = T"), encoding="utf-8")
    assert job(path).recipe == asked.recipe
    assert asked.recipe.loss == "liger"


@pytest.mark.parametrize("condition", ["PACKED is True", "PACKED is not False"])
def test_a_switch_may_be_asked_by_what_it_is(condition: str, tmp_path: Path) -> None:
    """``1`` is not ``True``, and what is not known is neither."""
    prepares = "model = prepare_model_for_kbit_training(model)\n"
    asks = f"if {condition}:\n    {prepares}"
    path = program(tmp_path, "PACKED = True\n" + TRAINER.replace(prepares, asks))
    assert job(path).recipe == job(program(tmp_path, TRAINER)).recipe
    unknown = TRAINER.replace(prepares, asks.replace("PACKED", "open('a').read()"))
    assert "whether this is done" in refusal(tmp_path, unknown)
