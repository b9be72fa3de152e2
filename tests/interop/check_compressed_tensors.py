#!/usr/bin/env python3
"""Octet and the compressed-tensors package read each other's checkpoints. Run by hand.

    check_compressed_tensors.py OCTET_BINARY

Needs torch, transformers, safetensors and compressed-tensors. Makes a tiny Llama and
    1. quantizes it with every scheme of `octet quantize` that is written in compressed-tensors' schema;
       their package reads config.json and decompresses every weight, which must equal code * scale as
       Octet defines it, and lie near the original;
    2. compresses it with their package, once a preset, and in groups of several presets whose targets
       are names, expressions and a class; `octet inspect --twin` compares every weight that Octet reads
       with the one that their package decompresses. They must be the same.
Prints one line a format and fails if one is off.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers
from compressed_tensors.compressors import mxfp8, naive_quantized, pack_quantized
from compressed_tensors.quantization import QuantizationConfig, preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams
from compressed_tensors.utils.match import match_targets
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

# scheme: least signal to noise in dB
OURS = {"fp8_channel": 31, "fp8_group": 31, "fp8_tensor": 31, "fp8_w8a16": 31, "mxfp8": 31, "int8": 38}
THEIRS = ["FP8", "FP8_DYNAMIC", "FP8_BLOCK", "MXFP8", "INT8", "W4A16", "W4A16_ASYM", "W8A16"]
# preset: its targets. Modules that none of them names stay as they are.
GROUPS = {
    "by pattern": {"FP8_DYNAMIC": ["re:.*self_attn.*"], "FP8_BLOCK": ["re:.*mlp.*"]},
    "some": {"FP8_DYNAMIC": ["re:.*(gate|up)_proj$"]},
    "by name": {
        "FP8_DYNAMIC": ["Linear"],
        "W4A16": ["re:.*layers.0.mlp.down_proj"],
        "INT8": ["model.layers.1.mlp.down_proj", "model.layers.1.self_attn.o_proj"],
    },
    # Two expressions for one module: the first as text.
    "twice": {"FP8_BLOCK": ["re:.*q_proj"], "FP8_DYNAMIC": ["re:.*_attn.*", "re:.*mlp.*"]},
}
COMPRESSORS = {
    "float-quantized": naive_quantized.FloatQuantizationCompressor,
    "int-quantized": naive_quantized.IntQuantizationCompressor,
    "mxfp8-quantized": mxfp8.MXFP8QuantizationCompressor,
    "pack-quantized": pack_quantized.PackedQuantizationCompressor,
}


def make_model(directory: pathlib.Path) -> None:
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=256,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)


def read(directory: pathlib.Path) -> dict[str, torch.Tensor]:
    tensors = {}
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, "pt") as file:  # what Hugging Face itself opens them with
            tensors |= {name: file.get_tensor(name) for name in file.keys()}
    return tensors


def modules(tensors: dict[str, torch.Tensor]) -> list[str]:
    return sorted({name.rpartition(".")[0] for name in tensors if "_proj." in name})


def parts(tensors: dict[str, torch.Tensor], module: str) -> dict[str, torch.Tensor]:
    return {n.removeprefix(module + "."): t for n, t in tensors.items() if n.startswith(module + ".")}


def by_definition(state: dict[str, torch.Tensor], scheme) -> torch.Tensor:
    """code * scale, one product in float32."""
    weight, scale = state["weight"], state["weight_scale"]
    scale = torch.exp2(scale.float() - 127) if scale.dtype == torch.uint8 else scale.float()
    rows, cols = weight.shape
    if scale.ndim == 2:
        scale = scale.repeat_interleave(-(-rows // scale.shape[0]), 0)[:rows]
        scale = scale.repeat_interleave(-(-cols // scale.shape[1]), 1)[:, :cols]
    return weight.float() * scale


def sqnr(got: torch.Tensor, want: torch.Tensor) -> float:
    return float(10 * torch.log10(want.double().square().sum() / (got.double() - want.double()).square().sum()))


def they_read_ours(octet: str, source: pathlib.Path, out: pathlib.Path, scheme: str, least: float) -> bool:
    subprocess.run([octet, "quantize", source, "--out", out, "--scheme", scheme], check=True, capture_output=True)
    config = QuantizationConfig.model_validate(json.loads((out / "config.json").read_text())["quantization_config"])
    group = config.config_groups["group_0"]
    ours, plain = read(out), read(source)
    worst, same = float("inf"), True
    for module in modules(ours):
        state = parts(ours, module)
        theirs = COMPRESSORS[config.format].decompress(dict(state), group)["weight"].float()
        # They compute in the scales' type, and MXFP8 in BF16, where the products are exact too.
        same &= torch.equal(theirs, by_definition(state, group))
        worst = min(worst, sqnr(theirs, plain[module + ".weight"].float()))
    good = same and worst > least
    print(f"{'ok  ' if good else 'FAIL'} they read ours    {scheme:12} {config.format:16} least SQNR {worst:.1f} dB")
    return good


def scales_of(weight: torch.Tensor, args) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and zero points by their own rule, from least and largest values by cell."""
    rows, cols = weight.shape
    if args.strategy == "block":
        r, c = args.block_structure
        cells = weight.reshape(rows // r, r, cols // c, c)
        low, high = cells.amin((1, 3)), cells.amax((1, 3))
    elif args.strategy == "group":
        cells = weight.reshape(rows, -1, args.group_size)
        low, high = cells.amin(-1), cells.amax(-1)
    elif args.strategy == "channel":
        low, high = weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    else:
        low, high = weight.amin().reshape(1), weight.amax().reshape(1)
    return calculate_qparams(low, high, args)


def form_of(preset: str, group) -> str:
    if group.weights.type == "int":
        return "pack-quantized" if group.input_activations is None else "int-quantized"
    return "mxfp8-quantized" if preset == "MXFP8" else "float-quantized"


def we_read_theirs(octet: str, source: pathlib.Path, out: pathlib.Path, targets: dict[str, list[str]]) -> bool:
    groups = {preset: preset_name_to_scheme(preset, names) for preset, names in targets.items()}
    forms = {preset: form_of(preset, group) for preset, group in groups.items()}
    owner = {target: preset for preset, names in targets.items() for target in names}
    plain = {name: t.float() for name, t in read(source).items()}
    packed, twin, quantized = {}, dict(plain), 0
    for name, tensor in plain.items():
        module = name.removesuffix(".weight")
        matched = match_targets(module, torch.nn.Linear(1, 1), owner) if "_proj." in name else []
        if not matched:
            packed[name] = tensor.bfloat16()
            continue
        quantized += 1
        preset = owner[matched[0]]
        group, form, args = groups[preset], forms[preset], groups[preset].weights
        scale, zero = scales_of(tensor, args)
        # Scales have the model's type.
        state = {"weight": tensor, "weight_scale": scale.bfloat16(), "weight_zero_point": zero.to(torch.int8)}
        state = COMPRESSORS[form].compress(state, group)
        # Their products in float32: they compute in the type of the scales.
        exact = {part: t.float() if t.dtype == torch.bfloat16 else t for part, t in state.items()}
        twin[name] = COMPRESSORS[form].decompress(exact, group)["weight"].float()
        packed |= {f"{module}.{part}": t.contiguous() for part, t in state.items()}
        if group.input_activations is not None and not group.input_activations.dynamic:
            packed[f"{module}.input_scale"] = torch.tensor([0.02], dtype=torch.bfloat16)
    out.mkdir()
    save_file(packed, out / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    mixed = len(set(forms.values())) > 1
    for preset, group in groups.items():
        group.format = forms[preset] if mixed else None
    quant = QuantizationConfig(
        config_groups={f"group_{i}": group for i, group in enumerate(groups.values())},
        format="mixed-precision" if mixed else next(iter(forms.values())),
        ignore=["lm_head"],
        quantization_status="compressed",
    )
    config["quantization_config"] = json.loads(quant.model_dump_json())
    (out / "config.json").write_text(json.dumps(config, indent=2))
    other = out.with_name(out.name + "-twin")
    other.mkdir()
    save_file(twin, other / "model.safetensors", metadata={"format": "pt"})
    (other / "config.json").write_text((source / "config.json").read_text())
    run = subprocess.run([octet, "inspect", out, "--twin", other, "--json", "-"], capture_output=True, text=True)
    form = quant.format
    if run.returncode != 0:
        print(f"FAIL we read theirs    {out.name:12} {form:16} {run.stderr.strip()}")
        return False
    report = json.loads(run.stdout)
    worst = max(entry["relative_rms"] for entry in report["twin"])
    good = worst == 0 and len(report["twin"]) == quantized
    print(f"{'ok  ' if good else 'FAIL'} we read theirs    {out.name:12} {form:16} {len(report['twin'])} weights, worst difference {worst:.2g}")
    return good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("octet", help="the binary")
    octet = parser.parse_args().octet
    transformers.logging.set_verbosity_error()
    good = True
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        make_model(root / "plain")
        for scheme, least in OURS.items():
            good &= they_read_ours(octet, root / "plain", root / scheme, scheme, least)
        for preset in THEIRS:
            good &= we_read_theirs(octet, root / "plain", root / preset, {preset: ["Linear"]})
        for label, targets in GROUPS.items():
            good &= we_read_theirs(octet, root / "plain", root / label, targets)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
