#!/usr/bin/env python3
"""The golden cases: what each tiny model looks like. README.md says what each is for."""

import dataclasses

import torch

@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    seed: int
    config: dict  # config.json as it lies on disk
    lengths: tuple[int, ...]  # one sequence each; the first is the one-token prompt
    dtype: torch.dtype = torch.float32
    config_by_hf: bool = False  # keep the config.json that transformers writes (the v5 dialect)
    shard_size: str | None = None  # for instance "100KB": several files and an index
    router_bias: tuple[float, float] = (0.0, 0.0)  # mean, standard deviation of e_score_correction_bias
    small_latents: bool = False  # q_a and kv_a outputs so small that their norms' epsilon shows
    mtp_layer: bool = False  # append a multi-token-prediction layer, which a reader must ignore


LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "use_cache": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "attention_dropout": 0.0,
    "pretraining_tp": 1,
}

DEEPSEEK_V3 = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "use_cache": True,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "moe_layer_freq": 1,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "tie_word_embeddings": False,
}

DEEPSEEK_V2 = DEEPSEEK_V3 | {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "scoring_func": "softmax",
    "norm_topk_prob": False,
    "torch_dtype": "float32",
}

CASES = [
    Case(
        name="llama_mha",
        seed=1,
        lengths=(1, 7, 33),
        config=LLAMA
        | {
            "vocab_size": 131,
            "hidden_size": 48,
            "intermediate_size": 76,
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "num_key_value_heads": 3,
            "max_position_embeddings": 64,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "rope_scaling": None,
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": False,
            "torch_dtype": "float32",
        },
    ),
    Case(
        name="llama_f16",
        seed=2,
        lengths=(1, 5, 19),
        dtype=torch.float16,
        # The first Llama generation: no num_key_value_heads, head_dim or bias keys; readers must know the defaults.
        config=LLAMA
        | {
            "vocab_size": 101,
            "hidden_size": 40,
            "intermediate_size": 60,
            "num_hidden_layers": 2,
            "num_attention_heads": 5,
            "max_position_embeddings": 64,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
            "torch_dtype": "float16",
        },
    ),
    Case(
        name="llama_gqa_rope3",
        seed=3,
        lengths=(1, 7, 151),
        dtype=torch.bfloat16,
        config=LLAMA
        | {
            "vocab_size": 97,
            "hidden_size": 136,
            "intermediate_size": 60,
            "num_hidden_layers": 2,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "max_position_embeddings": 512,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": True,
            "eos_token_id": [2, 3, 5],
            "torch_dtype": "bfloat16",
        },
    ),
    Case(
        name="llama_bias_sharded",
        seed=4,
        lengths=(1, 9, 37),
        shard_size="90KB",
        config=LLAMA
        | {
            "vocab_size": 115,
            "hidden_size": 80,
            "intermediate_size": 52,
            "num_hidden_layers": 2,
            "num_attention_heads": 5,
            "num_key_value_heads": 1,
            "max_position_embeddings": 64,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "rope_scaling": {"type": "linear", "factor": 2.5},
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": False,
            "torch_dtype": "float32",
        },
    ),
    Case(
        name="deepseek_v3_groups",
        seed=5,
        lengths=(1, 7, 33),
        dtype=torch.bfloat16,
        # So negative that masking a group with 0 instead of -inf lets its experts back in.
        router_bias=(-0.7, 0.2),
        config=DEEPSEEK_V3
        | {
            "vocab_size": 107,
            "hidden_size": 56,
            "intermediate_size": 72,
            "moe_intermediate_size": 12,
            "num_hidden_layers": 3,
            "first_k_dense_replace": 1,
            "num_attention_heads": 3,
            "num_key_value_heads": 3,
            "q_lora_rank": 40,
            "kv_lora_rank": 48,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8,
            "v_head_dim": 16,
            "n_routed_experts": 16,
            "n_shared_experts": 2,
            "num_experts_per_tok": 3,
            "n_group": 4,
            "topk_group": 2,
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.5,
            "num_nextn_predict_layers": 0,
            "max_position_embeddings": 128,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "rope_scaling": None,
            "torch_dtype": "bfloat16",
        },
    ),
    Case(
        name="deepseek_v3_yarn_mtp",
        seed=6,
        lengths=(1, 7, 97),
        router_bias=(0.0, 0.15),
        small_latents=True,
        mtp_layer=True,
        config=DEEPSEEK_V3
        | {
            "vocab_size": 91,
            "hidden_size": 44,
            "intermediate_size": 60,
            "moe_intermediate_size": 8,
            "num_hidden_layers": 2,
            "first_k_dense_replace": 1,
            "num_attention_heads": 3,
            "num_key_value_heads": 3,
            "q_lora_rank": None,
            "kv_lora_rank": 36,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 16,
            "v_head_dim": 16,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.5,
            "num_nextn_predict_layers": 1,
            "max_position_embeddings": 256,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "rope_scaling": {
                "type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "beta_fast": 32,
                "beta_slow": 1,
                "mscale": 1.2,
                "mscale_all_dim": 0.6,
            },
            "torch_dtype": "float32",
        },
    ),
    Case(
        name="deepseek_v3_rope_parameters",
        seed=7,
        lengths=(1, 7, 65),
        router_bias=(0.0, 0.15),
        small_latents=True,
        config_by_hf=True,
        config=DEEPSEEK_V3
        | {
            "vocab_size": 103,
            "hidden_size": 52,
            "intermediate_size": 64,
            "moe_intermediate_size": 10,
            "num_hidden_layers": 2,
            "first_k_dense_replace": 0,
            "num_attention_heads": 3,
            "num_key_value_heads": 3,
            "q_lora_rank": 36,
            "kv_lora_rank": 72,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 12,
            "v_head_dim": 20,
            "n_routed_experts": 6,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "n_group": 2,
            "topk_group": 1,
            "norm_topk_prob": False,
            "routed_scaling_factor": 1.25,
            "num_nextn_predict_layers": 0,
            "max_position_embeddings": 512,
            "rms_norm_eps": 1e-5,
            "rope_parameters": {
                "rope_theta": 500.0,
                "rope_type": "yarn",
                "factor": 8.0,
                "original_max_position_embeddings": 64,
                "beta_fast": 4.0,
                "beta_slow": 0.5,
                "truncate": False,
            },
        },
    ),
    Case(
        name="deepseek_v2_greedy",
        seed=23,
        lengths=(1, 7, 65),
        config=DEEPSEEK_V2
        | {
            "vocab_size": 109,
            "hidden_size": 48,
            "intermediate_size": 68,
            "moe_intermediate_size": 10,
            "num_hidden_layers": 2,
            "first_k_dense_replace": 1,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "q_lora_rank": None,
            "kv_lora_rank": 40,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8,
            "v_head_dim": 16,
            "n_routed_experts": 9,
            "n_shared_experts": 2,
            "num_experts_per_tok": 3,
            "n_group": 1,
            "topk_group": 1,
            "topk_method": "greedy",
            "routed_scaling_factor": 1.0,
            "max_position_embeddings": 1280,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000,
            "rope_scaling": {
                "type": "yarn",
                "factor": 40,
                "original_max_position_embeddings": 32,
                "beta_fast": 32,
                "beta_slow": 1,
                "mscale": 0.707,
                "mscale_all_dim": 0.707,
            },
        },
    ),
    Case(
        name="deepseek_v2_group_limited",
        seed=25,
        lengths=(1, 7, 33),
        config=DEEPSEEK_V2
        | {
            "vocab_size": 99,
            "hidden_size": 48,
            "intermediate_size": 56,
            "moe_intermediate_size": 8,
            "num_hidden_layers": 2,
            "first_k_dense_replace": 1,
            "num_attention_heads": 3,
            "num_key_value_heads": 3,
            "q_lora_rank": 28,
            "kv_lora_rank": 40,
            "qk_nope_head_dim": 24,
            "qk_rope_head_dim": 8,
            "v_head_dim": 16,
            "n_routed_experts": 12,
            "n_shared_experts": 2,
            "num_experts_per_tok": 3,
            "n_group": 4,
            "topk_group": 2,
            "topk_method": "group_limited_greedy",
            "routed_scaling_factor": 4.0,
            "max_position_embeddings": 128,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000,
            "rope_scaling": None,
        },
    ),
]

# Sizes that no tile divides; a case replaces what it is about.
SMALL = {
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "use_cache": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "attention_dropout": 0.0,
    "vocab_size": 67,
    "hidden_size": 44,
    "intermediate_size": 52,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
MISTRAL = SMALL | {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
MIXTRAL = SMALL | {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}
QWEN2 = SMALL | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
QWEN3 = SMALL | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False}
QWEN3_MOE = QWEN3 | {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"}

# Llama with a RoPE scaling that depends on the length of the sequence.
STRETCHED = SMALL | {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 40,
    "num_attention_heads": 5,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "attention_bias": False,
    "mlp_bias": False,
}

CASES += [
    Case(
        name="mistral_window",
        seed=41,
        lengths=(1, 7, 41),
        dtype=torch.bfloat16,
        config=MISTRAL | {"head_dim": 12, "sliding_window": 5},
    ),
    Case(
        name="mistral_full",
        seed=42,
        lengths=(1, 6, 29),
        dtype=torch.bfloat16,
        config_by_hf=True,
        config=MISTRAL | {"num_attention_heads": 2, "num_key_value_heads": 1, "sliding_window": None},
    ),
    Case(
        name="mixtral_window",
        seed=43,
        lengths=(1, 8, 37),
        dtype=torch.bfloat16,
        config=MIXTRAL
        | {
            "head_dim": 8,
            "intermediate_size": 20,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "router_aux_loss_coef": 0.02,
            "sliding_window": 6,
        },
    ),
    Case(
        name="qwen2_window",
        seed=44,
        lengths=(1, 8, 43),
        dtype=torch.bfloat16,
        config=QWEN2
        | {
            "num_attention_heads": 2,
            "num_hidden_layers": 3,
            "num_key_value_heads": 1,
            "tie_word_embeddings": True,
            "use_sliding_window": True,
            "sliding_window": 6,
            "max_window_layers": 2,
        },
    ),
    # As published: a window that is not used, and YaRN that a user has put on by hand.
    Case(
        name="qwen2_yarn",
        seed=45,
        lengths=(1, 7, 61),
        dtype=torch.bfloat16,
        config=QWEN2
        | {
            "num_attention_heads": 2,
            "max_position_embeddings": 16,
            "use_sliding_window": False,
            "sliding_window": 8,
            "max_window_layers": 1,
            "rope_theta": 1000.0,
            "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
        },
    ),
    Case(
        name="qwen3_norms",
        seed=46,
        lengths=(1, 7, 39),
        dtype=torch.bfloat16,
        config=QWEN3
        | {
            "head_dim": 14,  # the q width, 56, is not the hidden size
            "rms_norm_eps": 0.02,
            "tie_word_embeddings": True,
            "use_sliding_window": False,
            "sliding_window": None,
            "max_window_layers": 2,
        },
    ),
    Case(
        name="qwen3_layer_types",
        seed=47,
        lengths=(1, 9, 35),
        dtype=torch.bfloat16,
        config_by_hf=True,
        config=QWEN3
        | {
            "head_dim": 12,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 4,
            "max_window_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    Case(
        name="qwen3_moe_sparse",
        seed=48,
        lengths=(1, 7, 33),
        dtype=torch.bfloat16,
        config=QWEN3_MOE
        | {
            "head_dim": 12,
            "intermediate_size": 36,
            "num_hidden_layers": 4,
            "num_experts": 7,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 10,
            "norm_topk_prob": True,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [1],
            "use_sliding_window": False,
            "sliding_window": None,
            "max_window_layers": 4,
        },
    ),
    Case(
        name="qwen3_moe_window",
        seed=52,
        lengths=(1, 7, 33),
        dtype=torch.bfloat16,
        config_by_hf=True,
        config=QWEN3_MOE
        | {
            "head_dim": 12,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 10,
            "norm_topk_prob": False,
            "use_sliding_window": True,
            "sliding_window": 5,
        },
    ),
    Case(
        name="llama_dynamic",
        seed=50,
        lengths=(1, 7, 45),
        dtype=torch.bfloat16,
        config=STRETCHED
        | {"max_position_embeddings": 16, "rope_scaling": {"rope_type": "dynamic", "factor": 3.0}},
    ),
    Case(
        name="llama_longrope",
        seed=51,
        lengths=(1, 7, 45),
        dtype=torch.bfloat16,
        config=STRETCHED
        | {
            "max_position_embeddings": 48,
            "rope_scaling": {
                "rope_type": "longrope",
                "original_max_position_embeddings": 16,
                "short_factor": [1.0, 1.05, 1.2, 1.3],
                "long_factor": [1.0, 1.5, 2.5, 3.0],
            },
        },
    ),
]
