"""A GGUF of a Llama's shape with random BF16 weights: random_gguf.py CONFIG.json OUT.gguf

For speed alone: no vocabulary, no RoPE scaling. The format is that of ggml's docs/gguf.md, version 3.
"""
import json
import pathlib
import random
import struct
import sys

F32, BF16 = 0, 30
ALIGNMENT = 32


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def pair(key, value):
    """A key with its value: text, a whole number (uint32) or a real one (float32)."""
    if isinstance(value, str):
        return text(key) + struct.pack("<I", 8) + text(value)
    if isinstance(value, int):
        return text(key) + struct.pack("<II", 4, value)
    return text(key) + struct.pack("<If", 6, value)


def pairs_of(config):
    heads = config["num_attention_heads"]
    head = config.get("head_dim") or config["hidden_size"] // heads
    return {"general.architecture": "llama", "general.name": "random",
            "llama.context_length": config["max_position_embeddings"],
            "llama.embedding_length": config["hidden_size"],
            "llama.block_count": config["num_hidden_layers"],
            "llama.feed_forward_length": config["intermediate_size"],
            "llama.attention.head_count": heads,
            "llama.attention.head_count_kv": config["num_key_value_heads"],
            "llama.attention.key_length": head, "llama.attention.value_length": head,
            "llama.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
            "llama.rope.dimension_count": head,
            "llama.rope.freq_base": float(config.get("rope_theta", 10000.0)),
            "llama.vocab_size": config["vocab_size"], "tokenizer.ggml.model": "none"}


def tensors_of(config):
    """(name, dimensions with the innermost first, type) of each tensor."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"]
    head = config.get("head_dim") or hidden // heads
    queries, keys = heads * head, config["num_key_value_heads"] * head
    yield "token_embd.weight", (hidden, config["vocab_size"]), BF16
    yield "output_norm.weight", (hidden,), F32
    if not config.get("tie_word_embeddings"):
        yield "output.weight", (hidden, config["vocab_size"]), BF16
    for layer in range(config["num_hidden_layers"]):
        name = f"blk.{layer}."
        yield name + "attn_norm.weight", (hidden,), F32
        yield name + "attn_q.weight", (hidden, queries), BF16
        yield name + "attn_k.weight", (hidden, keys), BF16
        yield name + "attn_v.weight", (hidden, keys), BF16
        yield name + "attn_output.weight", (queries, hidden), BF16
        yield name + "ffn_norm.weight", (hidden,), F32
        yield name + "ffn_gate.weight", (hidden, inner), BF16
        yield name + "ffn_up.weight", (hidden, inner), BF16
        yield name + "ffn_down.weight", (inner, hidden), BF16


def count_of(dimensions):
    count = 1
    for size in dimensions:
        count *= size
    return count


def padded(size):
    return -(-size // ALIGNMENT) * ALIGNMENT


def write(config, path):
    pairs, tensors = pairs_of(config), list(tensors_of(config))
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs))
    for key, value in pairs.items():
        head += pair(key, value)
    offset = 0
    for name, dimensions, kind in tensors:
        head += text(name) + struct.pack("<I", len(dimensions))
        head += struct.pack(f"<{len(dimensions)}Q", *dimensions) + struct.pack("<IQ", kind, offset)
        offset += padded(count_of(dimensions) * (4 if kind == F32 else 2))
    # The upper half of a float is its BF16. A prime number of weights, over and over.
    drawn = random.Random(0)
    weights = b"".join(struct.pack("<f", drawn.gauss(0, 0.02))[2:] for _ in range(65521))
    with open(path, "wb") as file:
        file.write(head.ljust(padded(len(head)), b"\0"))
        at = 0
        for _, dimensions, kind in tensors:
            count = count_of(dimensions)
            if kind == F32:
                data = struct.pack("<f", 1.0) * count
                file.write(data.ljust(padded(len(data)), b"\0"))
                continue
            left = count * 2
            while left > 0:
                part = weights[at:at + left]
                file.write(part)
                left -= len(part)
                at = (at + len(part)) % len(weights)
            file.write(b"\0" * (padded(count * 2) - count * 2))


def main():
    config = json.loads(pathlib.Path(sys.argv[1]).read_text())
    write(config, sys.argv[2])


if __name__ == "__main__":
    main()
