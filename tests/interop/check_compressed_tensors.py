#!/usr/bin/env python3
"""Octet and the compressed-tensors package read each other's checkpoints. Run by hand.

    check_compressed_tensors.py OCTET_BINARY

Needs torch, transformers, safetensors and compressed-tensors. Makes a tiny Llama and
    1. quantizes it with every scheme of `octet quantize` that is written in compressed-tensors' schema;
       their package reads config.json and decompresses every weight, which must equal code * scale as
       Octet defines it, and lie near the original;
    2. compresses it with their package, once a preset; `octet inspect --twin` compares every weight that
       Octet reads with the one that their package decompresses. They must be the same.
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
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

# scheme: least signal to noise in dB
OURS = {"fp8_channel": 31, "fp8_group": 31, "fp8_tensor": 31, "fp8_w8a16": 31, "mxfp8": 31, "int8": 38}
THEIRS = ["FP8", "FP8_DYNAMIC", "FP8_BLOCK", "MXFP8", "INT8", "W4A16", "W4A16_ASYM", "W8A16"]
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


def we_read_theirs(octet: str, source: pathlib.Path, out: pathlib.Path, preset: str) -> bool:
    group = preset_name_to_scheme(preset, ["Linear"])
    args = group.weights
    weights_only = group.input_activations is None
    if args.type == "int":
        form = "pack-quantized" if weights_only else "int-quantized"
    else:
        form = "mxfp8-quantized" if preset == "MXFP8" else "float-quantized"
    plain = {name: t.float() for name, t in read(source).items()}
    packed, twin = {}, dict(plain)
    for name, tensor in plain.items():
        module = name.removesuffix(".weight")
        if "_proj." not in name:
            packed[name] = tensor.bfloat16()
            continue
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
    quant = QuantizationConfig(config_groups={"group_0": group}, format=form, ignore=["lm_head"], quantization_status="compressed")
    config["quantization_config"] = json.loads(quant.model_dump_json())
    (out / "config.json").write_text(json.dumps(config, indent=2))
    other = out.with_name(out.name + "-twin")
    other.mkdir()
    save_file(twin, other / "model.safetensors", metadata={"format": "pt"})
    (other / "config.json").write_text((source / "config.json").read_text())
    run = subprocess.run([octet, "inspect", out, "--twin", other, "--json", "-"], capture_output=True, text=True)
    if run.returncode != 0:
        print(f"FAIL we read theirs    {preset:12} {form:16} {run.stderr.strip()}")
        return False
    report = json.loads(run.stdout)
    worst = max(entry["relative_rms"] for entry in report["twin"])
    good = worst == 0 and len(report["twin"]) == 14
    print(f"{'ok  ' if good else 'FAIL'} we read theirs    {preset:12} {form:16} {len(report['twin'])} weights, worst difference {worst:.2g}")
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
            good &= we_read_theirs(octet, root / "plain", root / preset, preset)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
