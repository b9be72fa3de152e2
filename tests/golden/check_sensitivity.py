#!/usr/bin/env python3
"""Proves that the golden cases can fail: each known way to get a model wrong must move the logits.

A golden test that passes with the bug in place is worth nothing. This tool takes each case, puts one
mistake at a time into the transformers model (a forgotten bias, the wrong epsilon, half-split instead
of interleaved rotary pairs, ...) and prints how far the logits go from the golden ones, as a share of
the largest golden logit. It fails if a mistake moves them less than ten times the tolerance that the
engine's float32 path is held to. Run by hand after a change to generate.py.
"""

import sys
from functools import partial

import safetensors.torch
import torch
import transformers
from cases import CASES
from generate import HERE, load

TOLERANCE = 1e-4  # of max|logit|, for an engine that computes in float32


# ---- mistakes: functions that break a loaded model --------------------------------------------


def rope(model, attention_factor=None, **changes):
    """Rotary frequencies of changed parameters; rope_type="default" drops the scaling."""
    config = model.config
    config.rope_parameters = config.rope_parameters | changes
    if changes:
        model.model.rotary_emb = type(model.model.rotary_emb)(config)
    if attention_factor is not None:
        model.model.rotary_emb.attention_scaling = attention_factor


def softmax_scale(model, factor):
    for layer in model.model.layers:
        layer.self_attn.scaling *= factor


def half_split(model):
    model.config.rope_interleave = False


def epsilon(model, names, value):
    for name, module in model.named_modules():
        if name.endswith(names):
            module.variance_epsilon = value


def drop(model, suffix):
    for name, tensor in model.state_dict().items():
        if name.endswith(suffix):
            tensor.zero_()


def kv_head_by_remainder(model):
    """Query head i reads kv head i mod kv_heads instead of i div group."""
    config = model.config
    groups = config.num_attention_heads // config.num_key_value_heads
    order = torch.arange(config.num_attention_heads).view(groups, config.num_key_value_heads).T.flatten()
    for layer in model.model.layers:
        attention, d = layer.self_attn, config.head_dim
        q, o = attention.q_proj.weight, attention.o_proj.weight
        q.copy_(q.view(-1, d, q.shape[1])[order].reshape(q.shape))
        o.copy_(o.view(o.shape[0], -1, d)[:, order].reshape(o.shape))


def swap_gate_and_up(model):
    for name, tensor in model.state_dict().items():
        if name.endswith("gate_up_proj"):
            gate, up = tensor.clone().chunk(2, dim=1)
            tensor.copy_(torch.cat((up, gate), dim=1))


def router(model, **changes):
    """Our own router, written from the published description, with one rule changed.

    With no change it must reproduce the golden values: that checks the description itself.
    """
    config = model.config
    sigmoid = config.model_type == "deepseek_v3"
    grouped = sigmoid or getattr(config, "topk_method", "greedy") == "group_limited_greedy"
    normalise = {
        "deepseek_v3": getattr(config, "norm_topk_prob", False),
        "qwen3_moe": getattr(config, "norm_topk_prob", False),
        "mixtral": True,
    }
    rule = {
        "score": "sigmoid" if sigmoid else "softmax",
        "bias_in_choice": True,
        "bias_in_weight": False,
        "groups": config.n_group if grouped else 1,
        "best_of_group": 2 if sigmoid else 1,
        "mask": float("-inf") if sigmoid else 0.0,
        "normalise": normalise.get(config.model_type, False),
        "scale": getattr(config, "routed_scaling_factor", 1.0),
        "top_k": config.num_experts_per_tok,
    } | changes

    def forward(gate, x):
        x = x.view(-1, x.shape[-1])
        logits = x @ gate.weight.T
        score = logits.sigmoid() if rule["score"] == "sigmoid" else logits.softmax(-1)
        bias = getattr(gate, "e_score_correction_bias", 0.0)
        choice = score + bias if rule["bias_in_choice"] else score
        if rule["groups"] > 1:
            parts = choice.view(len(x), rule["groups"], -1)
            value = parts.sort(-1).values[..., -rule["best_of_group"] :].sum(-1)
            cut = value.sort(-1).values[:, -config.topk_group].unsqueeze(-1)
            choice = torch.where((value >= cut).unsqueeze(-1), parts, rule["mask"]).flatten(1)
        experts = choice.sort(-1, descending=True).indices[:, : rule["top_k"]]
        weight = (score + bias if rule["bias_in_weight"] else score).gather(-1, experts)
        if rule["normalise"]:
            weight = weight / (weight.sum(-1, keepdim=True) + 1e-20)
        return logits, weight * rule["scale"], experts

    for layer in model.model.layers:
        if hasattr(layer.mlp, "gate"):
            layer.mlp.gate.forward = partial(forward, layer.mlp.gate)


def drop_shared_experts(model):
    drop(model, "shared_experts.down_proj.weight")


def scale_shared_experts(model):
    """routed_scaling_factor also applied to the shared experts."""
    for name, tensor in model.state_dict().items():
        if name.endswith("shared_experts.down_proj.weight"):
            tensor.mul_(model.config.routed_scaling_factor)


def window(model, size, sliding=None):
    """Another window, or none; where layers have types, in the layers that `sliding` lists."""
    config = model.config
    config.sliding_window = size
    if getattr(config, "layer_types", None) is None:
        return
    if sliding is not None:
        types = ("full_attention", "sliding_attention")
        config.layer_types = [types[i in sliding] for i in range(config.num_hidden_layers)]
    if size is None:
        config.layer_types = ["full_attention"] * config.num_hidden_layers
    model.model.has_sliding_layers = "sliding_attention" in config.layer_types


def no_head_norm(model, name):
    for layer in model.model.layers:
        setattr(layer.self_attn, name, torch.nn.Identity())


class NormOfAllHeads(torch.nn.Module):
    """One norm over the heads of a token together."""

    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def forward(self, x):  # [batch, tokens, heads, dim]
        mean = x.pow(2).mean((-2, -1), keepdim=True)
        return x * torch.rsqrt(mean + self.norm.variance_epsilon) * self.norm.weight


def norm_heads_together(model):
    for layer in model.model.layers:
        layer.self_attn.q_norm = NormOfAllHeads(layer.self_attn.q_norm)


def swap_head_norms(model):
    for layer in model.model.layers:
        attention = layer.self_attn
        attention.q_norm, attention.k_norm = attention.k_norm, attention.q_norm


LATENT_NORMS = ("q_a_layernorm", "kv_a_layernorm")

MISTAKES = {
    "llama_mha": [
        ("rope theta 5000", partial(rope, rope_theta=5000.0)),
        ("norm epsilon 1e-6", partial(epsilon, names="norm", value=1e-6)),
        ("no final norm weight", lambda m: m.model.norm.weight.fill_(1.0)),
    ],
    "llama_f16": [("rope theta 5000", partial(rope, rope_theta=5000.0))],
    "llama_gqa_rope3": [
        ("rope without scaling", partial(rope, rope_type="default")),
        ("rope scaled linearly", partial(rope, rope_type="linear")),
        ("rope low_freq_factor 2", partial(rope, low_freq_factor=2.0)),
        ("softmax scale by hidden/heads", partial(softmax_scale, factor=(16 / 17) ** 0.5)),
        ("kv head i mod kv_heads", kv_head_by_remainder),
    ],
    "llama_bias_sharded": [
        ("no q bias", partial(drop, suffix="q_proj.bias")),
        ("no v bias", partial(drop, suffix="v_proj.bias")),
        ("no o bias", partial(drop, suffix="o_proj.bias")),
        ("no gate bias", partial(drop, suffix="gate_proj.bias")),
        ("no up bias", partial(drop, suffix="up_proj.bias")),
        ("no down bias", partial(drop, suffix="down_proj.bias")),
        ("rope without scaling", partial(rope, rope_type="default")),
    ],
    "llama_dynamic": [
        ("rope without scaling", partial(rope, rope_type="default")),
        ("rope scaled linearly", partial(rope, rope_type="linear")),
        ("factor 2", partial(rope, factor=2.0)),
    ],
    "llama_longrope": [
        ("rope without scaling", partial(rope, rope_type="default")),
        ("short factors for all", partial(rope, long_factor=[1.0, 1.05, 1.2, 1.3])),
        ("long factors for all", partial(rope, short_factor=[1.0, 1.5, 2.5, 3.0])),
        ("rope attention factor 1", partial(rope, attention_factor=1.0)),
    ],
    "mistral_window": [
        ("no window", partial(window, size=None)),
        ("window without the query", partial(window, size=6)),
        ("window one too small", partial(window, size=4)),
        ("softmax scale by hidden/heads", partial(softmax_scale, factor=(12 / 11) ** 0.5)),
        ("kv head i mod kv_heads", kv_head_by_remainder),
    ],
    "mistral_full": [
        ("a window", partial(window, size=8)),
        ("rope theta 5000", partial(rope, rope_theta=5000.0)),
    ],
    "mixtral_window": [
        ("no window", partial(window, size=None)),
        ("window without the query", partial(window, size=7)),
        ("weights not normalised", partial(router, normalise=False)),
        ("sigmoid router", partial(router, score="sigmoid")),
        ("one expert", partial(router, top_k=1)),
        ("w1 and w3 swapped", swap_gate_and_up),
    ],
    "qwen2_window": [
        ("no q bias", partial(drop, suffix="q_proj.bias")),
        ("no k bias", partial(drop, suffix="k_proj.bias")),
        ("no v bias", partial(drop, suffix="v_proj.bias")),
        ("no window", partial(window, size=None)),
        ("window in all layers", partial(window, size=6, sliding=(0, 1, 2))),
        ("window in the layers below", partial(window, size=6, sliding=(0, 1))),
        ("window without the query", partial(window, size=7)),
    ],
    "qwen2_yarn": [
        ("rope without scaling", partial(rope, rope_type="default")),
        ("rope scaled linearly", partial(rope, rope_type="linear")),
        ("rope attention factor 1", partial(rope, attention_factor=1.0)),
        ("the window is used", partial(window, size=8, sliding=(1,))),
    ],
    "qwen3_norms": [
        ("no q norm", partial(no_head_norm, name="q_norm")),
        ("no k norm", partial(no_head_norm, name="k_norm")),
        ("head norms with 1e-6", partial(epsilon, names=("q_norm", "k_norm"), value=1e-6)),
        ("one norm for all heads", norm_heads_together),
        ("q and k norms swapped", swap_head_norms),
        ("softmax scale by hidden/heads", partial(softmax_scale, factor=(14 / 11) ** 0.5)),
    ],
    "qwen3_layer_types": [
        ("no window", partial(window, size=None)),
        ("window in the other layer", partial(window, size=4, sliding=(1,))),
        ("window by max_window_layers", partial(window, size=4, sliding=())),
        ("no k bias", partial(drop, suffix="k_proj.bias")),
        ("no o bias", partial(drop, suffix="o_proj.bias")),
    ],
    "qwen3_moe_sparse": [
        ("weights not normalised", partial(router, normalise=False)),
        ("sigmoid router", partial(router, score="sigmoid")),
        ("two experts", partial(router, top_k=2)),
        ("expert gate and up swapped", swap_gate_and_up),
        ("no q norm", partial(no_head_norm, name="q_norm")),
    ],
    "qwen3_moe_window": [
        ("weights normalised", partial(router, normalise=True)),
        ("no window", partial(window, size=None)),
    ],
    "deepseek_v3_groups": [
        ("half-split rope", half_split),
        ("no router bias", partial(router, bias_in_choice=False)),
        ("router bias in the weights", partial(router, bias_in_weight=True)),
        ("no groups", partial(router, groups=1)),
        ("group score by one expert", partial(router, best_of_group=1)),
        ("groups masked with 0", partial(router, mask=0.0)),
        ("weights not normalised", partial(router, normalise=False)),
        ("no routed scaling", partial(router, scale=1.0)),
        ("softmax router", partial(router, score="softmax")),
        ("no shared experts", drop_shared_experts),
        ("shared experts scaled", scale_shared_experts),
        ("expert gate and up swapped", swap_gate_and_up),
    ],
    "deepseek_v3_yarn_mtp": [
        ("latent norms with rms_norm_eps", partial(epsilon, names=LATENT_NORMS, value=1e-5)),
        ("rope without scaling", partial(rope, rope_type="default")),
        ("rope attention factor 1", partial(rope, attention_factor=1.0)),
        ("no mscale in the softmax scale", partial(softmax_scale, factor=(0.06 * 1.3862944 + 1) ** -2)),
        ("half-split rope", half_split),
        ("no router bias", partial(router, bias_in_choice=False)),
    ],
    "deepseek_v3_rope_parameters": [
        ("q latent norm with rms_norm_eps", partial(epsilon, names="q_a_layernorm", value=1e-5)),
        ("kv latent norm with rms_norm_eps", partial(epsilon, names="kv_a_layernorm", value=1e-5)),
        ("rope theta 10000", partial(rope, rope_theta=10000.0)),
        ("rope bounds truncated", partial(rope, truncate=True)),
        ("default rope betas", partial(rope, beta_fast=32, beta_slow=1)),
        ("rope attention factor 1", partial(rope, attention_factor=1.0)),
        ("half-split rope", half_split),
        ("weights normalised", partial(router, normalise=True)),
        ("no groups", partial(router, groups=1)),
    ],
    "deepseek_v2_greedy": [
        ("rope without scaling", partial(rope, rope_type="default")),
        ("no mscale in the softmax scale", partial(softmax_scale, factor=1.2608038**-2)),
        ("weights normalised", partial(router, normalise=True)),
        ("sigmoid router", partial(router, score="sigmoid")),
    ],
    "deepseek_v2_group_limited": [
        ("no groups", partial(router, groups=1)),
        ("group score by two experts", partial(router, best_of_group=2)),
        ("weights normalised", partial(router, normalise=True)),
        ("no routed scaling", partial(router, scale=1.0)),
    ],
}


def main() -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    failures = 0
    for case in CASES:
        golden = safetensors.torch.load_file(HERE / case.name / "golden.safetensors")

        def distance(mistake, golden=golden, case=case) -> float:
            model = load(HERE / case.name)
            worst = 0.0
            with torch.no_grad():
                mistake(model)
                for n in range(len(case.lengths)):
                    want = golden[f"logits.{n}"]
                    got = model(input_ids=golden[f"input_ids.{n}"].unsqueeze(0), use_cache=False).logits[0]
                    worst = max(worst, float((got - want).abs().max() / want.abs().max()))
            return worst

        right = [("transformers as it is", lambda model: None)]
        if "num_experts_per_tok" in case.config:
            right.append(("our router, no mistake", router))
        for label, change in right:
            share = distance(change)
            bad = share > TOLERANCE / 10
            failures += bad
            print(f"{case.name:28} {label:34} {share:9.1e}  {'DIFFERS' if bad else 'same'}")
        for label, mistake in MISTAKES[case.name]:
            share = distance(mistake)
            bad = share < 10 * TOLERANCE
            failures += bad
            print(f"{case.name:28} {label:34} {share:9.1e}  {'TOO SMALL' if bad else 'shows'}")
    sys.exit(f"{failures} checks failed" if failures else 0)


if __name__ == "__main__":
    main()
