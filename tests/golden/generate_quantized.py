#!/usr/bin/env python3
"""Writes the golden cases of quantized checkpoints that other tools write.

    generate_quantized.py                 write every case beside this script
    generate_quantized.py NAME ...        write only these cases
    generate_quantized.py --out DIR       write elsewhere

A case is made as those of generate.py, with two steps more:
    1. quantize   the linears, in the layout of the tool; and dequantize them again, here, from the
                  definition of the layout and not from its bytes
    2. record     what transformers computes in float32 from the *dequantized* checkpoint
    3. replace    the linears by the quantized ones, and config.json's quantization_config
So whoever reads the quantized checkpoint must get the weights that were recorded. The files in
compressed-tensors are written by the compressed-tensors package itself.
"""

import argparse
import json
import pathlib
import shutil

import numpy as np
import safetensors.torch
import torch
import transformers
from compressed_tensors.compressors.naive_quantized import FloatQuantizationCompressor
from compressed_tensors.compressors.pack_quantized import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from cases import LLAMA, Case
from generate import HERE, record, write_checkpoint

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # nibble i of a word holds output 8 w + order[i]


def llama(hidden: int, inner: int, heads: int) -> dict:
    return LLAMA | {
        "vocab_size": 67,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    }


def words(numbers: np.ndarray) -> torch.Tensor:
    """[..., 8] numbers below 16, the first in the lowest bits, as I32 words."""
    shifted = numbers.astype(np.uint32) << (4 * np.arange(8, dtype=np.uint32))
    return torch.from_numpy(np.bitwise_or.reduce(shifted, -1).view(np.int32).copy())


def int4(weight: np.ndarray, group_of: np.ndarray, groups: int, symmetric: bool):
    """numbers [out, in], zero points and F16 scales [out, groups]; asymmetric or around 8."""
    out = weight.shape[0]
    scale, zero = np.empty((out, groups), np.float16), np.empty((out, groups), np.int64)
    for g in range(groups):
        part = weight[:, group_of == g]
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        if symmetric:
            scale[:, g], zero[:, g] = np.abs(part).max(1) / 7.5, 8
        else:
            scale[:, g] = (high - low) / 15
            zero[:, g] = np.clip(np.round(-low / scale[:, g].astype(np.float64)), 0, 15)
    s, z = scale.astype(np.float64)[:, group_of], zero[:, group_of]
    return np.clip(np.round(weight / s) + z, 0, 15).astype(np.int64), zero, scale


def values(number, zero, scale, group_of) -> torch.Tensor:
    exact = (number - zero[:, group_of]) * scale.astype(np.float64)[:, group_of]
    return torch.from_numpy(exact.astype(np.float32))


def awq(name: str, weight: torch.Tensor, rng) -> tuple[dict, torch.Tensor]:
    w = weight.double().numpy()
    group_of = np.arange(w.shape[1]) // 128
    number, zero, scale = int4(w, group_of, group_of[-1] + 1, symmetric=False)
    pack = lambda x: words(x.reshape(x.shape[0], -1, 8)[:, :, AWQ_ORDER])
    tensors = {"qweight": pack(number.T), "qzeros": pack(zero.T), "scales": torch.from_numpy(scale.T.copy())}
    return tensors, values(number, zero, scale, group_of)


def gptq(name: str, weight: torch.Tensor, rng) -> tuple[dict, torch.Tensor]:
    """With act-order: inputs lie in groups of 32 in no order, and values are rounded to F16."""
    w = weight.double().numpy()
    groups = w.shape[1] // 32
    group_of = rng.permutation(np.arange(w.shape[1]) // 32)
    number, zero, scale = int4(w, group_of, groups, symmetric=False)
    zero = np.maximum(zero, 1)  # they are stored less one
    number = np.clip(np.round(w / scale.astype(np.float64)[:, group_of]) + zero[:, group_of], 0, 15).astype(np.int64)
    tensors = {
        "qweight": words(number.T.reshape(-1, 8, w.shape[0]).transpose(0, 2, 1)),
        "qzeros": words((zero.T - 1).reshape(groups, -1, 8)),
        "scales": torch.from_numpy(scale.T.copy()),
        "g_idx": torch.from_numpy(group_of.astype(np.int32)),
        "bias": torch.zeros(w.shape[0], dtype=torch.float16),
    }
    return tensors, values(number, zero, scale, group_of).half().float()


PACKED = QuantizationScheme(
    targets=["Linear"],
    weights=QuantizationArgs(num_bits=4, type="int", symmetric=False, strategy="group", group_size=32),
    format="pack-quantized",
)
BLOCKS = QuantizationScheme(
    targets=["Linear"],
    weights=QuantizationArgs(num_bits=8, type="float", symmetric=True, strategy="block", block_structure=[32, 48]),
    input_activations=QuantizationArgs(num_bits=8, type="float", symmetric=True, strategy="group", group_size=48, dynamic=True),
    format="float-quantized",
)


def packed(name: str, weight: torch.Tensor, rng) -> tuple[dict, torch.Tensor]:
    w = weight.double().numpy()
    group_of = np.arange(w.shape[1]) // 32
    number, zero, scale = int4(w, group_of, group_of[-1] + 1, symmetric=False)
    plain = values(number, zero, scale, group_of)
    state = {
        "weight": plain.half().float(),
        "weight_scale": torch.from_numpy(scale),
        "weight_zero_point": torch.from_numpy((zero - 8).astype(np.int8)),
    }
    return PackedQuantizationCompressor.compress(state, PACKED), plain.half().float()


def blocks(name: str, weight: torch.Tensor, rng) -> tuple[dict, torch.Tensor]:
    """Blocks of 32 x 48 that do not divide the weight, with BF16 scales."""
    rows, cols = -(-weight.shape[0] // 32), -(-weight.shape[1] // 48)
    scale = torch.empty(rows, cols)
    for r in range(rows):
        for c in range(cols):
            scale[r, c] = weight[r * 32 : r * 32 + 32, c * 48 : c * 48 + 48].abs().max() / 448
    scale = scale.bfloat16()
    state = FloatQuantizationCompressor.compress({"weight": weight, "weight_scale": scale}, BLOCKS)
    codes = state["weight"].float()
    each = scale.float().repeat_interleave(32, 0).repeat_interleave(48, 1)[: weight.shape[0], : weight.shape[1]]
    return state, codes * each


def tensor_fp8(name: str, weight: torch.Tensor, rng) -> tuple[dict, torch.Tensor]:
    """One scale a tensor, [] in F32, as AutoFP8 and ModelOpt store it, and one of the input."""
    scale = weight.abs().max() / 448
    codes = (weight / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
    tensors = {"weight": codes, "weight_scale": scale.clone(), "input_scale": torch.tensor(0.02)}
    return tensors, codes.float() * scale


COMPRESSED = {"quant_method": "compressed-tensors", "quantization_status": "compressed", "ignore": ["lm_head"]}

# name: (config, seed, quantizer, quantization_config, side files)
CASES = {
    "llama_awq": (
        llama(256, 128, 8),
        41,
        awq,
        {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"},
        {},
    ),
    "llama_gptq_act_order": (
        llama(64, 96, 4),
        42,
        gptq,
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True, "sym": False},
        {},
    ),
    "llama_pack_quantized": (
        llama(64, 96, 4),
        43,
        packed,
        COMPRESSED | {"format": "pack-quantized", "config_groups": {"group_0": PACKED.model_dump(mode="json")}},
        {},
    ),
    "llama_fp8_blocks": (
        llama(72, 100, 4),
        44,
        blocks,
        COMPRESSED | {"format": "float-quantized", "config_groups": {"group_0": BLOCKS.model_dump(mode="json")}},
        {},
    ),
    "llama_modelopt": (
        llama(56, 76, 4),
        45,
        tensor_fp8,
        None,
        {
            "hf_quant_config.json": {
                "producer": {"name": "modelopt", "version": "0.29.0"},
                "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": None, "exclude_modules": ["lm_head"]},
            }
        },
    ),
}


def write(name: str, directory: pathlib.Path) -> None:
    config, seed, quantize, quant, side_files = CASES[name]
    case = Case(name=name, seed=seed, lengths=(1, 7, 33), config=config)
    write_checkpoint(case, directory)
    path = directory / "model.safetensors"
    plain, stored = safetensors.torch.load_file(path), {}
    rng = np.random.default_rng(seed)
    for key, tensor in list(plain.items()):
        if not key.endswith("_proj.weight"):
            # The reader's embedding is the recorded one.
            plain[key] = tensor.half().float()
            stored[key] = tensor.half()
            continue
        module = key.removesuffix(".weight")
        parts, plain[key] = quantize(module, tensor, rng)
        stored |= {f"{module}.{part}": t.contiguous() for part, t in parts.items()}
    safetensors.torch.save_file(plain, path, metadata={"format": "pt"})
    record(case, directory)
    safetensors.torch.save_file(stored, path, metadata={"format": "pt"})
    if quant:
        (directory / "config.json").write_text(json.dumps(config | {"quantization_config": quant}, indent=2) + "\n")
    for file, content in side_files.items():
        (directory / file).write_text(json.dumps(content, indent=2) + "\n")
    path.chmod(0o644)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="cases to write; all of them if none")
    parser.add_argument("--out", type=pathlib.Path, default=HERE, help="where to write (default: beside this script)")
    args = parser.parse_args()
    unknown = set(args.names) - set(CASES)
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name in args.names or CASES:
        directory = args.out / name
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        write(name, directory)


if __name__ == "__main__":
    main()
