"""Which software runs the recipe: switches that move gigabytes while the recipe stays the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from planner.domain.engine_facts import EngineFacts
from planner.domain.recipes.attention_kernels import ATTENTION_FACTS
from planner.domain.recipes.recipe import Batch, Quantization, Recipe
from planner.domain.stack_defaults import StackDefaults
from planner.domain.stack_values import (
    AdapterKernels,
    Distillation,
    DoraBranch,
    ExpertTargets,
    FrozenLayers,
    GatedDelta,
    KbitUpcast,
    LogitMetrics,
    LogitsCopy,
    LossWeights,
    ModelParallel,
    Muon,
    PackedMask,
    PairLogps,
    PassedOver,
    RecurrentKernels,
    RotaryInModel,
    RotaryModel,
    WithMamba2,
)
from planner.domain.uncertainty.prior import SettledBy


@dataclass(frozen=True, slots=True)
class Stack(EngineFacts):
    """One software stack at one version: its switches, by subject.

    Each value and its source: ``data/packages`` by version of a package, or ``data/stacks``.
    Where all stacks agree, files of tools or measured rows set another (``data/packages/README.md``).
    """

    id: str
    title: str
    defaults: StackDefaults

    # Dtypes of weights
    kbit_upcast: KbitUpcast
    """What k-bit preparation turns into fp32: ``all`` 16-bit tensors, or those in ``layers`` but norms."""
    loads_through_fp32: bool
    """Token table, head and norms become fp32 on the card, and 16 bits again before adapters come."""
    prepares_unquantized: bool
    """K-bit preparation is called on 16-bit bases too, which turns all of their weights to fp32."""
    copies_adapters: bool
    """A trainer that is handed a model with adapters keeps a frozen copy of them, as its reference."""
    autocast_as_weights: bool
    """Autocast is in fp16 over a checkpoint of another dtype than bf16, where nothing is said."""
    trainable_fp32: bool
    """The trained weights of a full fine-tune are upcast to fp32."""
    widens_ends: bool
    """A full fine-tune without engines keeps token table, head and norms in fp32 beside 16-bit matrices."""
    widens_copies: bool
    """Copies of ``modules_to_save`` are upcast to fp32, too."""
    engine_halves_kbit: bool
    """DeepSpeed's 16-bit engine turns the upcast tensors of a k-bit model back to 16 bits."""

    # Quantised bases
    quantizer: Literal["transformers", "lightning"]
    """Who makes 4-bit matrices: Transformers of all but the head, Lightning of all, from an fp16 copy."""
    whole_out_proj: WithMamba2
    """The architecture whose ``out_proj`` the loader keeps from k-bit quantisers, which pack the head."""
    scan_apart: WithMamba2
    """The architecture whose Mamba 2 runs without its fused kernel where ``out_proj`` is packed."""
    masks_wide_heads: bool
    """Heads too wide for FlashAttention run torch's kernel, under a mask that keeps samples apart."""
    expert_deltas: bool
    """What an adapter adds to a tensor of experts is a tensor of its own while they run, not a product."""
    adapters_call_model: bool
    """PEFT calls the model that it wraps, whose hooks so run, too; else it calls its ``forward``."""
    linearized_experts: bool
    """Experts of Llama 4 are matrices of ``nn.Linear``, which run one after the other."""
    fused_experts: bool
    """Experts are three-dimensional parameters; k-bit quantisers skip them and heirs of ``nn.Linear``."""
    expert_targets: ExpertTargets
    """What adapts them: their own names, those they replaced, too (ranks add up), or ``any`` (one rank)."""
    quantizes_experts: Literal["never", "expanded", "held", "fp8"]
    """Packed, too.  ``expanded``: for each product, without adapters; ``held``: when read, until backward;
    ``fp8``: with products of their own, which Transformers has for experts in fp8.
    """
    unpacks_by_branches: bool
    """The kernel that expands 4-bit weights finds each value by nested branches instead of a table."""
    keeps_expanded_weight: bool
    """4-bit weights are expanded into one buffer that stays, and in backward beside it."""
    linear4bit_keeps_input: bool
    """4-bit linears save the input they computed with, although nothing needs it."""
    linear4bit_copies_scales: bool
    """The scales of a 4-bit weight that are quantised too are first copied, less their mean."""
    linear4bit_dtype: Literal["compute", "loaded", "fp16"]
    """Dtype of 4-bit linears: the job's (``loaded``: whatever a packed checkpoint says), or fp16."""
    int8_keeps_outlier_weights: bool
    """int8 linears hold the weights of outlier columns in the input's dtype from one step to the next."""
    int8_keeps_quantized_input: bool
    """int8 linears keep their input quantised by columns until backward."""
    packed_kernels: Literal["unread", "auto", "gptqmodel"]
    """Who computes with GPTQ and AWQ matrices: AutoGPTQ and AutoAWQ (``auto``), or others by their names."""
    fp8_checkpoints: Literal["unread", "never", "widened", "trained", "unpacked"]
    """Checkpoints in fp8 do not load, are turned to 16 bits where the card has no fp8 (``widened``), train as
    they are on cards that have it, too (``trained``), or are turned to 16 bits by the tool (``unpacked``).
    """
    awq_in_fp16: bool
    """Models of AWQ matrices are loaded in fp16 where bf16 is asked."""

    # Loading and saving
    loads_tower: bool
    """The tower of a checkpoint that sees is loaded for text alone, too; Transformers could leave it out."""
    ties_tables: bool
    """A model whose head is its token table is built so; else it gets a head of its own."""
    kbit_waits_on_host: bool
    """A k-bit model, packed on the GPU, waits in host RAM for its engine; else it is whole on every GPU."""
    loader_reserves: Literal["nothing", "half", "stored"]
    """Taken and let go before the loader fills the card: all as ``stored``, or of k-bit models ``half``."""
    loads_sorted: bool
    """The loader takes tensors in the order of their names; else in that of the checkpoint."""
    loader_places: Literal["kbit", "alone", "undivided"]
    """What the loader brings to the card: ``kbit``, all of one process (``alone``), or ``undivided`` ones."""
    runs_trainer: bool
    """Transformers' Trainer runs the loop: it empties the cache before engines, and waits for each loss."""
    runs_deepspeed: bool
    """The stack's own code can hand a job to DeepSpeed."""
    zero_init: bool
    """Under ZeRO-3 each parameter is divided as it is made; else the model is whole on every GPU before."""
    zero3_init_flag: bool
    """Accelerate's key of that name; false asks for a model that is whole before the engine has it."""
    heeds_init_flag: bool
    """That key counts; from Accelerate 1.0 on a Trainer's model is divided as it is made all the same."""
    fsdp_loads: Literal["one_by_one", "whole", "shards"]
    """Parameters come whole and are divided ``one_by_one``, or when the ``whole`` model is on each card; or
    all ``shards`` are made at once, and filled later."""
    fsdp_empties: bool
    """Where FSDP divides the model, the stack's own loop gives the cache back before it begins."""
    saves_through_host: bool
    """To save, every process of DeepSpeed's stages 1 and 2 copies all weights to the host."""

    # Adapters
    trains_ends: bool
    """Beside LoRA over a base model, by its path, token table and head are trained whole."""
    adapter_kernels: AdapterKernels
    """LoRA by separate operators; with scaling, addition and casts compiled into one; with the base's
    product added in place to its own, unscaled one (``in_place``).  Or as one function with its matrix,
    which adds a product to the other in place, or (``fused_apart``) makes it apart before;
    ``fused_dropped``: in place, and with dropout too, of which query, key and value share one."""
    dora: DoraBranch
    """How long the identity lives by which DoRA multiplies: until the branch is done, or the product."""
    oft: Literal["unread", "twice", "apart", "alike"]
    """Who turns the input of a quantised matrix: the wrapper of all (``alike``), or one that leaves
    casts to the rotation under autocast (``apart``), of which that of GPTQ multiplies before (``twice``)."""
    vera: Literal["unread", "one_wrapper"]
    """Whether VeRA's only wrapper, that of all bases, was read."""

    # Layers
    model_code: Literal["transformers-4", "transformers-5", "own", "megatron-core"]
    """Whose modeling code runs: Transformers 4 (4.36 to 4.38) or 5, which decides what attention kernels an
    architecture has, its own, or Megatron-Core, which joins query, key and value, and gate and up."""
    capped_sdpa: Literal["refused", "asked", "default"]
    """Whether Transformers runs Gemma 2 with torch's kernel, which knows no caps: never, where that is asked
    for, or unless another one is."""
    gemma3_eager: bool
    """Attention of Gemma 3 is written out unless a job names a kernel."""
    soft_caps: Literal["logits", "stream"]
    """What Gemma 2 caps at its end; where that is the stream, each layer makes its mask, too."""
    copies_kv_heads: Literal["none", "wide", "repeated", "all", "joined"]
    """Keys and values are copied for all heads before attention: ``repeated``, though a single one is a view;
    or ``all``.  ``wide``: where no kernel for groups takes their heads; ``joined``: on cards without
    FlashAttention, while on others what the kernel returns of each sample is joined, by a copy."""
    keeps_hidden_states: bool
    """Inputs of layers and what the last norm makes live until backward (``output_hidden_states``)."""
    caches_keys: bool
    """Without checkpoints each layer copies keys and values into a cache, in training too (``use_cache``)."""
    fused_norm: bool
    """Norms by one kernel that saves its input only."""
    fused_head_norms: Literal["none", "gemma4", "qwen3_too"]
    """Architectures whose norms of queries and keys are one kernel with their rotary positions."""
    gated_delta: GatedDelta
    recurrent_kernels: RecurrentKernels
    solves_chunks: bool
    latents_by_head: bool
    """Multi-head latent attention expands latents in four dimensions, as one head of keys and values."""
    scales_norms_wide: bool
    """RMS norms multiply by their weight in fp32, before the cast back."""
    fused_mlp: bool
    """The gated activation by one kernel that saves its inputs only."""
    one_gelu_kernel: bool
    """GELU by a hyperbolic tangent is torch's kernel, though Transformers spells it out (``gelu_new``)."""
    sdpa_mask: Literal["bool", "stream", "none", "given"]
    """The mask that a padded batch hands to torch's fused attention: a boolean one, which torch turns
    into the compute dtype in every layer; one in the dtype of the embeddings, shared where that is the
    compute dtype; or none.  ``given``: each batch, padded or not, brings one in the compute dtype."""
    packed_mask: PackedMask
    """What eager and torch's fused attention see of packed samples: whole rows without a mask, a mask of the
    samples of each row (the collator's, or made from positions that begin anew), or ``one_row`` of all rows
    with such a mask.  ``varlen``: as ``rows``, but a kernel that is told where samples begin runs as sdpa."""
    flash_generation: int
    """Generation of the FlashAttention kernels behind ``flash2`` and ``sdpa``."""
    cudnn_attention: bool
    """On Hopper and data center Blackwell ``sdpa`` takes cuDNN's kernels, with a mask, too."""
    sdpa_kernel: Literal["any", "efficient", "math"]
    """The one kernel that the program leaves torch's fused attention (``torch.nn.attention.sdpa_kernel``,
    ``torch.backends.cuda.enable_flash_sdp(False)``); ``any``: torch chooses."""
    device_map: Literal["unread", "layer", "largest"]
    """Room that a GPU gets beyond an even share (``device_map``): for a layer or the largest module."""
    model_parallel: ModelParallel
    """What GPUs have of the stream between matrices: all ``features`` of each token, or their own ``tokens``.
    Of divided sequences: ``gathered_heads``, keys a head at a time; ``exchanged_heads``: tokens for heads."""
    whole_table_gradient: bool
    """Where features are divided, the token table's gradient is that of the whole one, as DTensor's are."""
    mixture_code: Literal["transformers", "torchtitan-2026", "torchtitan-2025", "scattermoe", "liger"]
    """Whose layers run mixtures of experts: those of Transformers, with the kernels of ``scattermoe`` or of
    ``liger`` or without, or of torchtitan 0.3.0.  ``torchtitan-2025`` is its code up to e347b1e5e
    (2026-02-15), with padded rows of each expert, and an exchange of tokens where GPUs divide experts."""
    host_experts: Literal["none", "bf16", "int8"]
    """How KTransformers holds experts in host RAM, where it computes and trains them; ``none``: cards do."""
    keeps_host_activations: bool
    """It keeps there what the backward pass of experts reads, instead of computing it again."""
    host_parts: int
    """Parts into which it divides each expert: memory nodes of the machine."""
    fp8_linears: Literal["unread", "eager", "compiled"]
    """How products of torchao in 8 bits run: operator by operator, or with each cast as one kernel."""
    qat_weights: Literal["unread", "intx", "int4"]
    """Which quantiser of torchao rounds weights: that of inputs (``intx``), or ``int4`` of its own."""

    # Checkpointing
    frozen_layers: FrozenLayers
    """What checkpointing makes of layers that are not trained.  ``differentiated``: the first one's input
    requires a gradient, so backward runs through all.  ``skipped``: those below the first trained one keep
    nothing.  ``entered``: inputs of trained layers require one; ``spared``: only these are checkpointed."""
    reentrant_under_ddp: bool
    """Where checkpoints are reentrant by default, they are so under DDP, too."""
    zero3_reentrant_adapters: bool
    """Beside adapters under ZeRO-3 checkpoints are reentrant, whatever is asked for."""
    zero3_adapters_as_base: bool
    """Under ZeRO-3 adapters over a base that is not quantised are made in its dtype."""
    hooks_input: bool
    """Beside adapters what the first layer reads requires a gradient without checkpoints, too."""
    checkpoints_parts: bool
    """Checkpointing wraps norms, attention and MLP of a layer one by one instead of the layer."""
    checkpoints_twice: bool
    """It wraps them, and the layer around them."""
    checkpoints_itself: bool
    """Inside of a checkpoint that is not reentrant a layer checkpoints itself, and runs twice again."""
    selective_keeps_attention: bool
    """A selective checkpoint keeps what the attention kernel returns."""
    selective_flex: Literal["unread", "output", "saved"]
    """What it keeps of FlexAttention: the ``output``, or all that a compiled function of its own saves."""
    checkpoints_units: bool
    """A layer's checkpoint is around its FSDP unit, as in Transformers; else inside of it."""
    offloaded_inputs_kept: int
    """Block inputs on the GPU while others are in host RAM, beside that of the layer that is recomputed."""
    pins_inputs: Literal["never", "if_room", "always"]
    """What is saved in host RAM is pinned there; ``if_room``: but for blocks it has no room for."""
    offloads_saved: bool
    """Without checkpointing, too, saved tensors go to host RAM, as by TRL's ``OffloadActivations``."""

    # Loss
    loss_forward: tuple[LogitsCopy, ...]
    """Full-size logits tensors that are alive at the peak of the loss."""
    loss_backward: tuple[LogitsCopy, ...]
    """Full-size logits at the peak of its backward; ``model_loss``: beside the model's own log-softmax."""
    logit_metrics: LogitMetrics
    whole_head_in_full: bool
    """Where the loss is cut in pieces, full fine-tuning makes all logits first."""
    caps_pieces: bool
    """What a model makes of its logits, such as a cap, it makes of pieces, too."""
    liger_sums_wide: Literal["never", "16-bit", "always"]
    """Of which trained heads Liger's fused loss makes an fp32 copy of each piece's product, before it adds it
    to the gradient.
    """
    liger_loss: bool
    """The trainer has a switch for Liger's fused head and loss, which Transformers' own model code takes."""
    liger_models: tuple[str, ...]
    """Types of models whose loss that switch replaces; it changes nothing of others.  ``any``: of all."""
    liger_experts: tuple[str, ...]
    """Types of models whose experts become a function of Liger's with its gated activation; or ``none``."""
    liger_by_class: bool
    """That loss is put into classes before a model is loaded: of models that see, into some alone."""
    cut_cross_entropy: bool
    """A loss ``liger`` is this kernel instead, which makes no logits at all, also where a model evaluates."""
    loss_pieces: Literal["eighths", "kept_eighths", "rows", "wide_rows", "budget", "tiles"]
    """Of a loss ``chunked``: eight, made anew or kept; ``rows``, 256 each, made anew, of operands in fp32
    (``wide_rows``); a ``budget`` of bytes; ``tiles``, no log-softmax."""
    autocast_until_loss: bool
    """Of preferences over a 4-bit base in bf16, autocast ends with the loss, not where the model returns."""
    loss_weights: LossWeights
    """The trainer takes the loss of each token from the model's logits, and weighs it by its probability, or
    by the entropy of a copy of its logits (``entropy_of_rows``: a copy more for the loss).  ``divergence``:
    by the probability, and adds the distance to a second model, which runs first.  ``masked_tokens``: of
    copies of the rows that the model had to guess, which sees whole rows.  ``none``: not so."""
    widens_table_states: bool
    """Under an 8-bit optimizer of bitsandbytes the states of token tables stay in fp32."""
    binds_loss: bool
    """The training loop refers to the loss, and so to its graph, until the next one is computed."""
    keeps_outputs: bool
    """The training loop refers to what the model returned, and its logits, until it returns again."""
    widens_outputs: bool
    """Under autocast accelerate casts to fp32 what model code of the package's own returns, too."""
    step_in_function: bool
    """The training step is a function: it lets go of what it refers to when it returns."""

    # Trainers of preferences, rewards and generated completions
    pair_logps: PairLogps
    """How log-probabilities of pairs are taken."""
    chosen_likelihood: bool
    """In ORPO and SimPO with all logits held, the cross-entropy of the chosen sequences comes first."""
    completion_logps: Literal["none", "divided", "in_place", "in_place_alone", "fused_rows", "tiles"]
    """How log-probabilities of completions are taken.  ``divided``: of logits that are divided by the
    temperature into a tensor of their own, and then their entropy; ``in_place``: of logits divided in place
    (``in_place_alone``: without entropy).  Others as for pairs."""
    zero3_rollouts: Literal["unread", "keeps_order", "forgets_order", "handed_at_once"]
    """With weights that ZeRO-3 divides the model is whole while it generates, and vLLM gets one matrix
    after the other.  ``keeps_order``: of modules, as training had it; ``forgets_order``: it is learned
    anew each time.  ``handed_at_once``: vLLM gets all of the model at once; else as ``keeps_order``."""
    vllm_groups: int
    """Where ZeRO-3 hands them to vLLM at once: in so many groups of layers instead; 0: as one."""
    distillation: Distillation
    """Student beside teacher: both with the ``mixture`` of their probabilities, or one with the other's
    (``forward``, ``reverse``); all logits at once, then an empty cache, or in pieces.  ``none``: unread."""
    model_dropout: Literal["always", "not_in_pairs", "never"]
    """Whether the model drops as its config says: trainers of preferences may set modules of dropout to zero
    (``not_in_pairs``), and a package may have models of its own without any (``never``)."""
    caches_reference: bool
    """Log-probabilities of the reference are computed once, before training."""
    reward_head: Literal["score", "value"]
    """What scores in a reward model: a head in the place of the words', or one of values beside it."""
    packs_reward_model: bool
    """A reward model that scores completions is loaded with the quantisation of the policy."""
    feature_layers: int
    """Completions are scored by so many layers' outputs in the model without its adapters; 0: otherwise."""
    classifies: Literal["no", "listed", "made"]
    """Which models label samples: those that Transformers ``listed``, or any, ``made`` to by the tool."""

    # Optimizer
    foreach_step_copies: int
    """Full-size temporaries of the foreach AdamW step: 2 before torch 2.1, 1 since; 0: ``foreach=False``."""
    steps_on_cpu: bool
    """Optimizers of bitsandbytes can step in host RAM."""
    one_optimizer_group: bool
    """The optimizer has all trained weights as one group; else those without weight decay are a second."""
    projects_head: bool
    """APOLLO and GaLore project the gradient of a head of its own, too, not only those of the layers."""
    muon: Muon
    """Its Muon steps ``matrices``, or ``all`` but vectors, or ``gathers`` what FSDP2 divides."""

    # Positions
    rotary_tables: tuple[RotaryModel, ...]
    """Architectures each of whose layers has tables of cosines and sines, or ``none``; behind ``shared`` all
    layers have one pair, with adapters.  torchtune's in fp32: for ``pairs`` of features, or ``halves``."""
    rotary_rows: Literal["positions", "grown"]
    """Positions in such a table: all that the model was made for, or fewer, which grow with the samples."""
    rotary_positions: int
    """So many instead, where the stack's own builder of the model says them; else 0."""
    rotary_in_model: tuple[RotaryInModel, ...]
    """Architectures whose cosines and sines are made once a pass, before any layer: ``all``, or ``none``.
    Their angles come from a matrix product, or behind ``elementwise`` from one element by element."""
    joins_turned_heads: bool
    """Rotary code joins what is turned with what is not, which may be nothing: a copy, head by head."""

    # Batches and the cache
    sorts_lengths: bool
    """Batches are made of samples of like length, so that padding to the longest adds next to nothing."""
    rounds_lengths: bool
    """Batches are padded to a multiple of some tokens, so that a sample alone is padded and has a mask."""
    drops_long_samples: bool
    """Samples above the length are left out, not cut to it, so that none lies at the length itself."""
    keeps_outgrown_blocks: bool
    """Cached blocks of lengths that were outgrown stay reserved: nobody empties the cache between steps."""
    empties_before_backward: Literal["never", "first", "every"]
    """The cache is emptied before the backward passes of the ``first`` step, or of ``every`` one."""
    expandable_segments: Literal["off", "one_node", "several_gpus", "torchrun", "on"]
    """Whether its code or launch script lets the allocator's segments grow page by page; ``several_gpus``:
    where it starts several processes; ``torchrun``: and under DeepSpeed; ``one_node``: within one node."""
    roundup_divisions: int
    """Parts of the allocator's ``roundup_power2_divisions``, to which sizes are rounded; 0: it is not set."""
    max_split_mib: int
    """The allocator's ``max_split_size_mb``: larger blocks are not split; 0: it is not set."""

    # Where all this is from
    versions: tuple[tuple[str, str], ...]
    """Packages and versions whose facts these are (``data/packages``), sorted by name."""
    unread: tuple[str, ...]
    """A phrase for each version that was asked for and lies outside those that were read."""
    settled: tuple[tuple[str, SettledBy, str], ...]
    """What settled the value of every switch (every default as ``defaults.<name>``), and the source."""
    quantized_defaults: StackDefaults | None = None
    """The defaults over a quantised base, where some of them differ."""
    extends: str = ""
    """Id of the stack that this one is a variant of (the last in a row); empty where it is none's."""
    usual: tuple[tuple[str, str | bool], ...] = ()
    """What the example files of the tool set where its bare defaults do not, by the name of the default."""

    @property
    def divides_as_made(self) -> bool:
        """Whether ZeRO-3 never has the whole of an unquantised model on one GPU."""
        return self.zero_init and (self.zero3_init_flag or not self.heeds_init_flag)

    @property
    def piles_up(self) -> bool:
        """Whether cached blocks of outgrown lengths stay from step to step."""
        return self.keeps_outgrown_blocks and self.empties_before_backward == "never"

    @property
    def passes_over(self) -> PassedOver:
        """Which tensors that are no weights of ``nn.Linear`` k-bit quantisers leave as they are."""
        if not self.fused_experts or self.quantizes_experts == "expanded":
            return "nothing"
        return "parameters" if self.quantizes_experts == "never" else "routers"

    @property
    def offers_liger_loss(self) -> bool:
        """Whether Liger's fused head and loss can run: it replaces classes of Transformers alone."""
        return self.liger_loss and self.model_code != "own"

    @property
    def guesses_tokens(self) -> bool:
        """Whether masked tokens are guessed from those before and behind, under a mask in every batch."""
        return self.loss_weights == "masked_tokens"

    def kbit_upcast_over(self, recipe: Recipe) -> KbitUpcast:
        """What preparation turns to fp32 over this recipe's base.

        Source: axolotl 0.19.0 loaders/model.py _prepare_model_for_quantization, which leaves it out under
        ZeRO-3 and FSDP; trl 0.9.6, 0.12.1, 0.19.1 trainer/sft_trainer.py is_sharded_qlora, trainer/utils.py
        peft_module_casting_to_bf16, and the same in 0.24.0 models/utils.py prepare_peft_model.
        """
        upcast, numerics = self.kbit_upcast, recipe.numerics
        if upcast == "recast":
            if numerics.quantization == "int8":
                return "all"
            upcast = "norms" if numerics.precision == "bf16-mixed" else "all"
            return "none" if recipe.sharding.gathers_weights else upcast
        return "none" if upcast == "layers" and recipe.sharding.gathers_weights else upcast

    def masks_padding(self, batch: Batch) -> bool:
        """Whether attention needs a mask for padding."""
        return batch.masks_padding or (self.rounds_lengths and batch.is_padded)

    def masks_samples(self, recipe: Recipe) -> bool:
        """Whether packed samples get a mask that keeps them apart.

        FlashAttention is told where each begins.  Ignored: a row that one sample fills has none.
        Source: transformers 5.23 masking_utils.py find_packed_sequence_indices (4.53 on: positions begin
        anew, without a mask) and _preprocess_mask_arguments (numbers of samples become booleans).
        """
        if recipe.batch.padding != "packed" or ATTENTION_FACTS[recipe.attention].is_flash:
            return False
        numbered = self.packed_mask == "collated" and self.sdpa_mask == "stream"
        return numbered or (self.places_samples and not self.tells_samples(recipe))

    def tells_samples(self, recipe: Recipe) -> bool:
        """Whether a kernel is told where packed samples begin (axolotl 0.19.0 attention/sdpa_varlen.py)."""
        return self.packed_mask == "varlen" and (recipe.batch.padding, recipe.attention) == ("packed", "sdpa")

    @property
    def places_samples(self) -> bool:
        """Whether packed batches come with positions, of which a mask is made."""
        return self.packed_mask in ("varlen", "rows", "one_row") and self.sdpa_mask == "bool"

    def joins_rows(self, recipe: Recipe) -> bool:
        """Whether all rows of a micro-batch lie in one: packed samples, or pairs of ms-swift."""
        own = self.pair_logps == "rows_let_go" and recipe.batch.is_paired and recipe.batch.padding == "packed"
        return own or (recipe.batch.padding == "packed" and self.packed_mask == "one_row")

    def finds_unused(self, *, has_adapter: bool, is_checkpointed: bool) -> bool:
        """Whether DDP looks for unused parameters in such a job."""
        if has_adapter:
            return self.ddp_finds_unused in ("always", "unless_checkpointed")
        return self.ddp_finds_unused == "always" or (self.ddp_finds_unused != "never" and not is_checkpointed)

    def defaults_over(self, quantization: Quantization) -> StackDefaults:
        """What the stack does where the user says nothing, over a base with this quantisation; those over one
        in fp8, which nobody prepares, are the usual ones.
        """
        over = None if quantization in ("none", "fp8") else self.quantized_defaults
        return over or self.defaults

    @property
    def facts(self) -> dict[str, object]:
        """Defaults, those over quantised bases that differ, and switches, as ``settled`` names them."""
        owners: dict[str, object] = {
            "": self,
            "defaults": self.defaults,
            "quantized": self.quantized_defaults,
        }
        names = (name.rpartition(".") for name, _, _ in self.settled)
        return {
            f"{table}.{name}" if table else name: getattr(owners[table], name) for table, _, name in names
        }

    def __hash__(self) -> int:
        """Hash of the id: equality still compares all fields, and lookups in caches stay cheap."""
        return hash(self.id)
