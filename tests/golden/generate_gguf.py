#!/usr/bin/env python3
"""Writes gguf_blocks.gguf and gguf_blocks.f32: random blocks of every type that Octet reads from
GGUF, and what llama.cpp's own Python package decodes them to, as the raw bytes of float32 values,
tensor after tensor in the order of the file.

    pip install gguf==0.19.0 numpy==2.4.6
    python tests/golden/generate_gguf.py

Scales are finite and of ordinary size; every other bit is random, so each code, each bit of the
packed scales and each sign occurs.
"""

import pathlib

import gguf
import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
TYPES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]
# Where a block has its FP16 scales.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
BLOCKS = 3


def main():
    random = np.random.default_rng(20261130)
    writer = gguf.GGUFWriter(str(HERE / "gguf_blocks.gguf"), "llama")
    expected = b""
    for name in TYPES:
        kind = gguf.GGMLQuantizationType[name]
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        if name in HALVES:
            raw = random.integers(0, 256, (BLOCKS, size), dtype=np.uint8)
            for at in HALVES[name]:
                scale = random.normal(0, 0.05, (BLOCKS, 1)).astype(np.float16)
                raw[:, at:at + 2] = scale.view(np.uint8)
            raw = raw.reshape(1, -1)
        else:
            values = random.normal(0, 1, (1, 32)).astype(np.float32)
            raw = gguf.quants.quantize(values, kind)
        decoded = gguf.quants.dequantize(raw, kind).astype(np.float32)
        if raw.dtype == np.float16 or raw.dtype == np.float32:
            writer.add_tensor(name, raw)
        else:
            writer.add_tensor(name, raw, raw_dtype=kind)
        expected += decoded.tobytes()
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (HERE / "gguf_blocks.f32").write_bytes(expected)


if __name__ == "__main__":
    main()
