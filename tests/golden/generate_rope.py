#!/usr/bin/env python3
"""Writes rope.json: what Hugging Face transformers takes as rotary frequencies for well-known configurations."""

import json
import pathlib

import torch
from generate import HERE, VERSIONS
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.deepseek_v3.modeling_deepseek_v3 import yarn_apply_mscale
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

YARN_40 = {"rope_type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1}
LLAMA3 = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
# name: (rotated dims, theta, max_position_embeddings, scaling, sequence length)
ROPES = {
    "default": (128, 10000.0, 4096, {"rope_type": "default"}, None),
    "llama-3.1-8b": (128, 500000.0, 131072, LLAMA3 | {"factor": 8.0}, None),
    "llama-3.2-1b": (64, 500000.0, 131072, LLAMA3 | {"factor": 32.0}, None),
    "linear-4": (128, 10000.0, 4096, {"rope_type": "linear", "factor": 4.0}, None),
    "dynamic-2-at-1000": (64, 10000.0, 2048, {"rope_type": "dynamic", "factor": 2.0}, 1000),
    "dynamic-2-at-6145": (64, 10000.0, 2048, {"rope_type": "dynamic", "factor": 2.0}, 6145),
    "deepseek-v3": (64, 10000.0, 163840, YARN_40 | {"mscale": 1.0, "mscale_all_dim": 1.0}, None),
    "deepseek-v2-lite": (64, 10000.0, 163840, YARN_40 | {"mscale": 0.707, "mscale_all_dim": 0.707}, None),
    "yarn-mscales-differ": (64, 10000.0, 163840, YARN_40 | {"mscale": 1.0, "mscale_all_dim": 0.5}, None),
    "yarn-no-mscale-no-truncate": (128, 1000000.0, 131072, YARN_40 | {"factor": 4.0, "truncate": False}, None),
    "yarn-attention-factor": (128, 1000000.0, 131072, YARN_40 | {"factor": 4.0, "attention_factor": 1.25}, None),
}
# As the model cards of Qwen2.5 and Qwen3 tell users to put it on.
ROPES["qwen-yarn"] = (
    128,
    1000000.0,
    32768,
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    None,
)
# Phi-3's way: no factor, which then follows from the two lengths.
ROPES["longrope-no-factor"] = (
    8,
    10000.0,
    131072,
    {
        "rope_type": "longrope",
        "original_max_position_embeddings": 4096,
        "short_factor": [1.0, 1.1, 1.2, 1.5],
        "long_factor": [1.1, 2.0, 10.0, 30.0],
    },
    131072,
)
for _length in (4096, 4097):  # the last length on the short factors, the first on the long ones
    ROPES[f"longrope-at-{_length}"] = (
        16,
        10000.0,
        131072,
        {
            "rope_type": "longrope",
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "short_factor": [1.0, 1.05, 1.1, 1.2, 1.4, 1.6, 1.8, 2.0],
            "long_factor": [1.0, 1.5, 2.0, 4.0, 8.0, 16.0, 24.0, 32.0],
        },
        _length,
    )


def write_rope(path: pathlib.Path) -> None:
    entries = {}
    for name, (dim, theta, max_positions, scaling, length) in ROPES.items():
        config = AutoConfig.for_model(
            "llama",
            head_dim=dim,
            max_position_embeddings=max_positions,
            rope_parameters={"rope_theta": theta} | scaling,
        )
        kind = scaling["rope_type"]
        plain = LlamaRotaryEmbedding.compute_default_rope_parameters
        compute = plain if kind == "default" else ROPE_INIT_FUNCTIONS[kind]
        inv_freq, attention_factor = compute(config, torch.device("cpu"), seq_len=length)
        entries[name] = {
            "dim": dim,
            "rope_theta": theta,
            "max_position_embeddings": max_positions,
            "rope_scaling": scaling,
            "seq_len": length,
            "attention_factor": attention_factor,
            "inv_freq": inv_freq.tolist(),
        }
        if "mscale_all_dim" in scaling:  # MLA: 128 + 64 dims a head
            entries[name]["mla_softmax_scale"] = yarn_apply_mscale(config.rope_parameters, 192**-0.5)
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items())
    path.write_text(f'{{\n "versions": {json.dumps(VERSIONS)},\n "ropes": {{\n{lines}\n }}\n}}\n')


if __name__ == "__main__":
    write_rope(HERE / "rope.json")
