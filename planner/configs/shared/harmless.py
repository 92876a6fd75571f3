"""Keys that are known to change neither memory nor the time of a step, by name,
so that an unknown key stands out.
"""

from __future__ import annotations

from planner.words import words


def _names(text: str) -> frozenset[str]:
    return frozenset(words(text))


# transformers 5.23.0 training_args.py; the last lines are names of older versions.
TRAINER_HARMLESS = _names(
    """
    output_dir overwrite_output_dir do_train do_eval do_predict learning_rate lr_scheduler_type
    lr_scheduler_kwargs warmup_steps warmup_ratio optim_args weight_decay adam_beta1 adam_beta2 adam_epsilon
    average_tokens_across_devices max_grad_norm bf16_full_eval fp16_full_eval use_cache neftune_noise_alpha
    logging_strategy logging_steps logging_first_step logging_dir log_on_each_node logging_nan_inf_filter
    include_num_input_tokens_seen log_level log_level_replica disable_tqdm report_to run_name project
    trackio_space_id trackio_bucket_id trackio_static_space_id eval_steps eval_delay prediction_loss_only
    eval_on_start eval_do_concat_batches eval_use_gather_object eval_accumulation_steps include_for_metrics
    batch_eval_metrics save_only_model save_strategy save_steps save_on_each_node save_total_limit
    save_safetensors enable_jit_checkpoint push_to_hub hub_token hub_private_repo hub_model_id hub_strategy
    hub_always_push hub_revision load_best_model_at_end metric_for_best_model greater_is_better
    ignore_data_skip restore_callback_states_from_checkpoint full_determinism seed data_seed
    accelerator_config dataloader_drop_last dataloader_num_workers dataloader_pin_memory
    dataloader_persistent_workers dataloader_prefetch_factor dataloader_multiprocessing_context
    dataloader_in_order remove_unused_columns label_names length_column_name ddp_find_unused_parameters
    ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_backend ddp_timeout debug skip_memory_metrics
    resume_from_checkpoint local_rank half_precision_backend past_index push_to_hub_model_id
    push_to_hub_organization push_to_hub_token ray_scope jit_mode_eval use_ipex split_batches dispatch_batches
    include_tokens_per_second include_inputs_for_metrics fsdp_transformer_layer_cls_to_wrap
    fsdp_min_num_params predict_with_generate generation_max_length generation_num_beams generation_config
    _n_gpu fp16_opt_level use_legacy_prediction_loop mp_parameters tpu_num_cores tpu_metrics_debug
    """
)
"""TrainingArguments: reports, schedules, evaluation, checkpoints, loading of data."""

# llamafactory 0.9.5 hparams: data_args.py, model_args.py, finetuning_args.py,
# training_args.py, generating_args.py; the last two lines are names of 0.3.3 to 0.9.4.
LLAMA_FACTORY_HARMLESS = _names(
    """
    template dataset eval_dataset dataset_dir media_dir train_on_prompt mask_history streaming buffer_size
    mix_strategy interleave_probs overwrite_cache preprocessing_batch_size preprocessing_num_workers
    max_samples eval_num_beams ignore_pad_token_for_loss val_size eval_on_each_dataset tool_format
    default_system enable_thinking preserve_thinking tokenized_path data_shared_file_system adapter_folder
    cache_dir use_fast_tokenizer split_special_tokens init_special_tokens model_revision low_cpu_mem_usage
    rope_scaling train_from_scratch infer_backend offload_folder use_kv_cache infer_dtype hf_hub_token
    ms_hub_token om_hub_token print_param_status trust_remote_code lora_alpha loraplus_lr_ratio
    loraplus_lr_embedding use_rslora pissa_init pissa_iter pissa_convert create_new_adapter plot_loss
    compute_accuracy disable_shuffling early_stopping_steps include_effective_tokens_per_second
    freeze_trainable_layers freeze_trainable_modules freeze_extra_modules use_swanlab swanlab_project
    num_layer_trainable name_module_trainable
    swanlab_workspace swanlab_run_name swanlab_mode swanlab_api_key swanlab_logdir swanlab_lark_webhook_url
    swanlab_lark_secret ray_init_kwargs master_addr master_port ray_run_name ray_storage_path
    ray_storage_filesystem resources_per_worker placement_strategy do_sample temperature top_p top_k num_beams
    max_length max_new_tokens repetition_penalty length_penalty skip_special_tokens image_max_pixels
    image_min_pixels video_max_pixels video_min_pixels video_fps video_maxlen export_dir export_size
    export_device export_quantization_bit export_legacy_format export_hub_model_id quantization_device_map
    freeze_vision_tower freeze_multi_modal_projector image_do_pan_and_scan crop_to_patches use_audio_in_video
    audio_sampling_rate export_quantization_dataset export_quantization_nsamples export_quantization_maxlen
    vllm_maxlen vllm_gpu_util vllm_enforce_eager vllm_max_lora_rank vllm_config sglang_maxlen
    sglang_mem_fraction sglang_tp_size sglang_config sglang_lora_backend compute_dtype device_map
    model_max_length block_diag_attn include_mfu kt_weight_path kt_expert_checkpoint_path kt_use_lora_experts
    kt_lora_expert_num kt_lora_expert_intermediate_size module_dropout oft_rank oft_block_size oft_target
    pref_beta pref_ftx pref_bco_weight pref_loss dpo_label_smoothing kto_chosen_weight kto_rejected_weight
    simpo_gamma ppo_buffer_size ppo_epochs ppo_score_norm ppo_target ppo_whiten_rewards ref_model
    ref_model_adapters ref_model_quantization_bit reward_model reward_model_adapters
    reward_model_quantization_bit reward_model_type ld_alpha galore_target galore_rank galore_update_interval
    galore_scale galore_proj_type galore_layerwise apollo_target apollo_rank apollo_update_interval
    apollo_scale apollo_proj apollo_proj_type apollo_scale_type apollo_layerwise apollo_scale_front badam_mode
    badam_start_block badam_switch_mode badam_switch_interval badam_update_ratio badam_mask_mode badam_verbose
    hyper_parallel_args asft_alpha eaft_alpha fp8_backend fp8_enable_fsdp_float8_all_gather
    profiler_output_dir profiler_wait_steps profiler_warmup_steps profiler_active_steps profiler_repeat
    profiler_record_shapes profiler_profile_memory profiler_with_stack profile_modules
    kt_cpu_activation kt_config kt_non_expert_weight_path kt_mode kt_maxlen kt_use_cuda_graph kt_force_think
    kt_optimize_rule cpu_infer chunk_size mode hyper_parallel_cp_size badam_switch_block_every dpo_beta
    dpo_loss orpo_beta ppo_logger cache_path disable_version_checking train_mm_proj_only neft_alpha
    sortish_sampler
    """
)
"""LLaMA-Factory: data, tokens, schedules of adapters, experiment tracking, generation and export, and vision
towers, which a text model has not and a prediction leaves out.  The last lines are details of features that
are refused by their own switch.
"""

# trl 1.16.0 sft_config.py, model_config.py and scripts/utils.py;
# the last lines are those of recipes in its manner.
TRL_HARMLESS = _names(
    """
    trust_remote_code router_aux_loss_coef chat_template_path dataset_text_field dataset_kwargs
    dataset_num_proc eos_token pad_token truncation_mode shuffle_dataset pad_to_multiple_of
    eval_packing completion_only_loss assistant_only_loss model_revision lora_alpha lora_task_type use_rslora
    lora_bias dataset_name dataset_config dataset_train_split dataset_test_split dataset_streaming datasets
    ignore_bias_buffers streaming dataset_mixer dataset_mixture dataset_splits dataset_configs
    dataset_id_or_path chat_template preprocessing_num_workers auto_insert_empty_system_msg text_column
    tokenizer_name_or_path tokenizer_name base_model_revision model_code_revision max_train_samples
    max_eval_samples system_prompt benchmarks callbacks wandb_entity wandb_project hub_tags num_of_sequences
    chars_per_token dataset_batch_size test_split_size sanity_check
    """
)
"""TRL: data, templates, masks of the loss, schedules of adapters."""

# OptimalScale/LMFlow f3597dba src/lmflow/args.py ModelArguments, DatasetArguments, FinetunerArguments; the
# first line is read where a model generates, or where one that sees is trained; the third is those of
# optimizers that are refused.
LMFLOW_HARMLESS = _names(
    """
    lora_model_path use_int8 load_in_4bit use_ram_optimized_load finetune_part save_language_projection
    rope_pi_ratio rope_ntk_ratio lisa_activated_layers lisa_interval_steps lisa_layers_attribute
    customized_optim customized_optim_args optim_dummy_beta1 optim_dummy_beta2 optim_adam_beta1
    optim_adam_beta2 optim_beta1 optim_beta2 optim_beta3 optim_momentum optim_weight_decay
    tokenizer_name cache_dir use_fast_tokenizer model_revision token trust_remote_code lora_alpha
    save_aggregated_lora truncation_side padding_side eos_padding ignore_bias_buffers dataset_path
    dataset_name is_custom_dataset customized_cache_dir dataset_config_name train_file validation_file
    max_train_samples max_eval_samples streaming overwrite_cache validation_split_percentage
    preprocessing_num_workers group_texts_batch_size keep_linebreaks test_file train_on_prompt
    conversation_template dataset_cache_dir calculate_dataset_stats eval_dataset_path
    truncate_to_model_max_length disable_conversation_bos_token disable_conversation_eos_token
    """
)
"""LMFlow: data, tokens, and switches of what is refused or not trained."""

# axolotl 0.19.0 utils/schemas; the last lines are names of older versions.  ``eval_table_max_new_tokens`` is
# read by a callback of evaluation alone (2023-11 utils/callbacks.py:358); ``gptq_groupsize`` and
# ``gptq_model_v1`` by nothing (2023-11 src); ``gptq_disable_exllama`` chooses among kernels of which only
# those without exllama train.  Where there are ranks ``device_map`` is overwritten,
# and one process without it has ``auto`` (0.19.0 utils/config/__init__.py choose_device).
AXOLOTL_HARMLESS = _names(
    """
    strict auto_resume_from_checkpoints mean_resizing_embeddings reinit_weights datasets
    shuffle_merged_datasets shuffle_before_merging_datasets dataset_prepared_path dataset_shard_num
    dataset_shard_idx skip_prepare_dataset num_dataset_shards_to_save pretraining_dataset dataset_processes
    dataset_num_proc dataset_exact_deduplication dataset_keep_in_memory push_dataset_to_hub hf_use_auth_token
    device device_map world_size ddp do_causal_lm_eval eval_causal_lm_metrics do_bench_eval bench_dataset
    bench_split loss_watchdog_threshold loss_watchdog_patience gc_collect_steps eval_sequence_len
    min_sample_len max_prompt_len sample_packing_group_size sample_packing_bin_size
    sample_packing_sequentially sample_packing_mp_start_method eval_sample_packing pad_to_multiple_of
    curriculum_sampling multipack_real_batches pretrain_multipack_buffer_size pretrain_multipack_attn
    pretraining_sample_concatenation streaming streaming_multipack_buffer_size heads_k_stride ring_attn_func
    special_tokens added_tokens_overrides torch_compile_backend torch_compile_mode torch_compile_options
    evals_per_epoch saves_per_epoch save_first_step early_stopping_patience use_tensorboard profiler_steps
    profiler_steps_start include_tkps low_cpu_mem_usage chat_template chat_template_jinja chat_template_kwargs
    eot_tokens default_system_message fix_untrained_tokens is_preprocess preprocess_iterable total_num_tokens
    total_supervised_tokens sample_packing_eff_est axolotl_config_path is_falcon_derived_model
    is_llama_derived_model is_mistral_derived_model is_qwen_derived_model generate_samples
    num_generation_samples base_model_config cls_model_config tokenizer_config tokenizer_use_fast
    tokenizer_legacy tokenizer_use_mistral_common tokenizer_type processor_type tokenizer_save_jinja_files
    trust_remote_code revision_of_model model_revision model_type type_of_model lora_alpha lora_fan_in_fan_out
    lora_alpha_pattern peft_use_rslora peft_init_lora_weights loftq_config peft lora_on_cpu
    qlora_sharded_model_loading loraplus_lr_ratio loraplus_lr_embedding merge_lora train_on_inputs
    embedding_lr embedding_lr_scale lr_scheduler lr_quadratic_warmup cosine_min_lr_ratio
    cosine_constant_lr_ratio lr_div_factor lr_groups adam_epsilon2 adam_beta3 jagged_restart_steps wandb_mode
    wandb_project wandb_entity wandb_name wandb_watch wandb_log_model wandb_run_id use_wandb
    mlflow_tracking_uri mlflow_experiment_name hf_mlflow_log_artifacts use_mlflow use_comet comet_project_name
    eval_table_size eval_max_new_tokens bf16_full_eval evaluation_strategy eval_strategy eval_steps
    dynamic_checkpoint hub_model_id hub_strategy local_rank logging_steps dp_shard_size
    fsdp_final_state_dict_type generation_max_new_tokens generation_temperature generation_top_p
    generation_top_k generation_prompt_ratio generation_do_sample processor_kwargs
    experimental_skip_move_to_device bos_token eos_token pad_token unk_token additional_special_tokens
    peft_ensure_weight_tying merge_method torchdistx_path jagged_restart_warmup_steps
    jagged_restart_anneal_steps mlflow_run_name comet_api_key comet_workspace comet_experiment_key comet_mode
    comet_online comet_experiment_config gradio_title gradio_share gradio_server_name gradio_server_port
    gradio_max_new_tokens gradio_temperature use_ray ray_run_name resources_per_worker use_otel_metrics
    otel_metrics_host otel_metrics_port use_trackio trackio_project_name trackio_run_name rope_scaling
    noisy_embedding_alpha trl vllm ebft center_rewards_coefficient num_labels dpo_use_weighting
    dpo_label_smoothing precompute_ref_log_probs dpo_use_liger_kernel dpo_padding_free dpo_loss_type
    dpo_loss_weights orpo_alpha simpo_gamma cpo_alpha kto_desirable_weight kto_undesirable_weight rl_beta
    dpo_beta dpo_use_logits_to_keep dpo_generate_during_eval dpo_norm_loss rpo_alpha fp8_config
    fp8_enable_fsdp_float8_all_gather pose_split_on_token_ids pose_max_context_len pose_num_chunks
    flex_attn_compile_kwargs eaft_alpha eaft_k tiled_mlp_num_shards tiled_mlp_use_original_mlp
    fp32_norm_classes model_quantization_config_kwargs peft_layers_pattern relora_prune_ratio
    relora relora_steps relora_prune_method relora_cpu_offload relora_warmup_steps relora_anneal_steps
    dion_lr dion_momentum dion_rank_fraction dion_rank_multiple_of qgalore_rank qgalore_update_proj_gap
    qgalore_scale
    qgalore_proj_type qgalore_proj_quant qgalore_proj_bits qgalore_proj_group_size qgalore_cos_threshold
    qgalore_gamma_proj eval_table_max_new_tokens gptq_groupsize gptq_model_v1 gptq_disable_exllama
    image_resize_algorithm role_boundaries capabilities env_capabilities qgalore_queue_size
    lisa_step_interval lisa_layers_attribute scaling_softmax_factor scaling_softmax_bias
    """
)
"""Axolotl: data, tokens, schedules, tracking, how models are loaded and saved.  The last lines are details of
features that are refused by their own switch.
"""

# allenai/open-instruct e6c3044aa and b08997673 open_instruct/finetune.py FlatArguments, TokenizerConfig of
# dataset_transformation.py; the last line is what its older files still have.
OPEN_INSTRUCT_HARMLESS = _names(
    """
    exp_name add_seed_and_date_to_exp_name do_not_randomize_output_dir model_revision low_cpu_mem_usage
    dataset_name dataset_mixer
    dataset_mixer_list dataset_mixer_list_splits dataset_transform_fn dataset_target_columns
    dataset_cache_mode dataset_local_cache_dir dataset_config_hash dataset_skip_cache dataset_mix_dir
    dataset_config_name max_train_samples preprocessing_num_workers overwrite_cache clip_grad_norm
    learning_rate logging_steps lr_scheduler_type output_dir warmup_ratio final_lr_ratio weight_decay timeout
    resume_from_checkpoint report_to save_to_hub seed checkpointing_steps keep_last_n_checkpoints
    load_balancing_weight clean_checkpoints_at_end with_tracking wandb_project_name wandb_entity push_to_hub
    hf_entity hf_repo_id hf_repo_revision hf_repo_url try_launch_beaker_eval_jobs hf_metadata_dataset
    try_auto_save_to_beaker gs_bucket_path oe_eval_tasks oe_eval_max_length verbose tokenizer_name_or_path
    tokenizer_name tokenizer_revision trust_remote_code use_fast use_slow_tokenizer chat_template_name add_bos
    get_tokenizer_fn tokenizer_files_hash ground_truths_key sft_messages_key train_file run_name
    overwrite_output_dir
    """
)
"""open-instruct: data, tokens, schedules, tracking, checkpoints and uploads."""

# ms-swift 4.6.0 swift/arguments/*.py, base_args/*.py and trainers/arguments.py; ``metric`` is of 3.12.6.
MS_SWIFT_HARMLESS = _names(
    """
    acc_strategy adalora_beta1 adalora_beta2 adalora_deltaT adalora_init_r adalora_orth_reg_weight
    adalora_target_r adalora_tfinal adalora_tinit adapter_act adapter_length add_non_thinking_prefix
    add_version agent_template aligner_lr boft_block_num boft_block_size boft_dropout
    boft_n_butterfly_factor check_model columns create_checkpoint_symlink custom_register_path dataset
    dataset_num_proc dataset_shuffle decision_drop_instructions decision_shuffle_fields
    decision_state_as_text decision_subsample_options device_groups disable_auto_column_mapping
    disable_ignore_empty_think download_mode ds3_gather_for_generation early_stop_interval
    enable_npu_model_patch enable_thinking eval_dataset eval_dataset_args eval_generation_config eval_limit
    eval_metric extra_eval_args fourier_n_frequency fourier_scaling galore_cos_threshold galore_gamma_proj
    galore_optim_per_parameter galore_proj_bits galore_proj_group_size galore_proj_quant galore_proj_type
    galore_quantization galore_queue_size galore_rank galore_scale galore_target_modules
    galore_update_proj_gap galore_with_embedding hqq_axis ignore_args_error init_strategy interleave_prob
    lazy_tokenize lisa_step_interval llamapro_num_groups llamapro_num_new_blocks load_args load_data_args
    load_from_cache_file local_repo_path lora_alpha lora_ga_batch_size lora_ga_direction lora_ga_iters
    lora_ga_max_length lora_ga_scale lora_ga_stable_gamma lorap_lr_ratio max_model_len max_new_tokens
    max_shard_size model_kwargs model_name model_author model_revision model_type norm_bbox num_beams
    packing_num_proc packing_strategy padding_side preserve_thinking problem_type reft_args
    reft_intervention_type reft_layer_key reft_layers reft_rank repetition_penalty response_prefix
    resume_only_model rope_scaling safe_serialization shuffle_buffer_size stop_words stopping_strategy
    streaming strict structured_outputs_regex swanlab_email_language swanlab_exp_name swanlab_mode
    swanlab_notification_method swanlab_project swanlab_receiver_email swanlab_secret swanlab_sender_email
    swanlab_smtp_port swanlab_smtp_server swanlab_token swanlab_webhook_url swanlab_workspace temperature
    template template_backend top_k top_logprobs top_p train_dataloader_shuffle use_chat_template
    use_flash_ckpt use_logits_to_keep use_rslora val_dataset_shuffle vera_d_initial vera_dropout
    vera_projection_prng_key vera_rank vit_lr system use_hf cached_dataset custom_dataset_info logprobs metric
    """
)
"""ms-swift: data, templates, schedules, tracking, details of tuners that are refused by their own switch."""

MS_SWIFT_2_HARMLESS = _names(
    """
    acc_steps add_output_dir_suffix boft_modules_to_save boft_target_modules check_dataset_strategy
    check_model_is_latest custom_train_dataset_path custom_val_dataset_path dataset_seed dataset_test_ratio
    gpu_memory_fraction hqq_dynamic_config_path ia3_feedforward_modules ia3_modules_to_save ia3_target_modules
    lora_lr_ratio max_prompt_length metric_warmup_step model_cache_dir model_layer_cls_name neftune_alpha
    neftune_backend only_save_model preprocess_num_proc push_hub_strategy resume_only_model
    self_cognition_sample streaming_buffer_size streaming_val_size template_type test_oom_error tools_prompt
    train_dataset_mix_ds train_dataset_mix_ratio train_dataset_sample val_dataset val_dataset_sample
    vera_modules_to_save vera_target_modules quant_method bnb_4bit_comp_dtype
    """
)
"""ms-swift v1.5.0 to v2.6.0 swift/llm/utils/argument.py: those that :data:`MS_SWIFT_HARMLESS` does not have.
"""

MEGATRON_HARMLESS = _names(
    """
    train_iters num_train_epochs masked_softmax_fusion bias_dropout_fusion cross_entropy_loss_fusion
    calculate_per_token_loss manual_gc manual_gc_steps manual_gc_eval seed dataloader_num_workers
    dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor data_sharding
    data_parallel_random_init lr_warmup_init lr lr_decay_style lr_decay_iters lr_warmup_iters
    lr_warmup_fraction min_lr lr_wsd_decay_style lr_wsd_decay_iters weight_decay weight_decay_incr_style
    start_weight_decay end_weight_decay clip_grad adam_beta1 adam_beta2 adam_eps sgd_momentum muon_momentum
    muon_split_qkv muon_use_nesterov muon_scale_mode muon_fp32_matmul_prec muon_coefficient_type
    muon_num_ns_steps muon_tp_mode muon_extra_scale_factor muon_scalar_optimizer output_dir save_steps
    no_save_optim no_save_rng mcore_adapter no_load_optim no_load_rng finetune perform_initialization
    use_cpu_initialization async_save save_total_limit metric_for_best_model greater_is_better
    use_persistent_ckpt_worker dist_ckpt_save_pre_mcore_014 dist_ckpt_optim_fully_reshardable
    distrib_optim_fully_reshardable_mem_efficient local_rank ddp_timeout ddp_backend overlap_p2p_comm
    batch_p2p_comm align_param_gather cp_comm_type cp_partition_mode overlap_grad_reduce overlap_param_gather
    align_grad_reduce nccl_comm_warmup microbatch_group_size_per_vp_stage report_to logging_steps
    tensorboard_dir tensorboard_queue_size wandb_project wandb_exp_name eval_iters eval_steps fp8_recipe
    fp8_amax_history_len fp8_amax_compute_algo fp4_recipe apply_query_key_layer_scaling
    attention_softmax_in_fp32 moe_router_load_balancing_type moe_router_dtype moe_permute_fusion
    moe_aux_loss_coeff moe_z_loss_coeff moe_shared_expert_overlap moe_token_drop_policy
    mtp_loss_scaling_factor mtp_decoder_input_detach mtp_shared_weights save_safetensors
    save_missing_weights adapters hub_token merge_lora dsa_indexer_loss_coeff dsa_indexer_use_sparse_loss
    apply_dsa_kernel_fusion language_model_only apply_wd_to_qk_layernorm linear_decoupled_in_proj loss_scale
    is_binary_loss_scale num_labels save_strategy truncation_strategy packing padding_free train_type
    tuner_type bf16 split_dataset_ratio val_dataset cached_val_dataset use_distributed_optimizer
    attention_backend optimizer sequence_parallel vit_gradient_checkpointing vit_gradient_checkpointing_kwargs
    vit_attn_impl apply_rope_fusion attn_impl dataset_shuffle max_epochs freeze_vit freeze_aligner
    csa_dense_mode use_fused_mhc mhc_recompute_layer_num router_aux_loss_coef save save_interval eval_interval
    log_interval num_workers no_initialization distributed_backend no_rope_fusion
    """
)
"""ms-swift 4.6.0 swift/megatron/arguments/megatron_args.py: those of :data:`MS_SWIFT_HARMLESS` beside."""

MCORE_ADAPTER_HARMLESS = _names(
    """
    do_train stage optimizer bf16 use_distributed_optimizer bias_activation_fusion transformer_impl
    sequence_parallel variable_seq_lengths overlap_p2p_comm apply_rope_fusion moe_aux_loss_coeff
    moe_router_dtype moe_token_drop_policy moe_shared_expert_overlap moe_grouped_gemm
    moe_token_dispatcher_type expert_tensor_parallel_size calculate_per_token_loss cuda_graph_scope
    accumulate_allreduce_grads_in_fp32 distrib_optim_fully_reshardable
    distrib_optim_fully_reshardable_mem_efficient overlap_grad_reduce delay_grad_reduce overlap_param_gather
    check_for_nan_in_loss_and_grad ddp_average_in_collective ddp_bucket_size optimizer_offload_fraction
    save_hf_model save_merged_model ckpt_format ckpt_d2h_non_blocking compile_warmup use_mca
    """
)
"""mcore_adapter 0.10.0 training_args.py: those of :data:`LLAMA_FACTORY_HARMLESS` beside.  Gradients are
summed in fp32 under bf16, whatever ``accumulate_allreduce_grads_in_fp32`` says (``__post_init__``)."""

LLAMA_COOKBOOK_HARMLESS = _names(
    """
    tokenizer_name low_cpu_fsdp gradient_clipping gradient_clipping_threshold max_eval_step val_batch_size
    num_workers_dataloader lr weight_decay gamma seed dataset output_dir one_gpu save_model use_fast_kernels
    dist_checkpoint_root_folder dist_checkpoint_folder save_optimizer use_wandb save_metrics freeze_layers
    num_freeze_layers flop_counter_start profiler_dir checkpoint_type sharding_group_size replica_group_size
    lora_alpha bias task_type adapter_len adapter_layers num_virtual_tokens file train_split test_split
    data_path trust_remote_code pure_bf16 mixed_precision quant_type use_double_quant quant_storage
    compute_dtype
    """
)
"""meta-llama/llama-cookbook 0e003351 src/llama_cookbook/configs.  Layers are frozen in full fine-tuning under
FSDP alone, and attention is torch's fused one with ``use_fast_kernels`` and without."""
