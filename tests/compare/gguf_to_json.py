#!/usr/bin/env python3
"""Writes the vocabulary of a GGUF file as a Hugging Face tokenizer.json, for comparisons alone.

    tests/compare/gguf_to_json.py VOCAB.gguf DIR

Byte-level vocabularies ("gpt2") get the pre-tokenizer that tokenizer.ggml.pre names;
SentencePiece-style ones ("llama") the merges that Hugging Face makes of the scores. Needs `gguf`.
"""
import json
import pathlib
import sys

import gguf

TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
PATTERNS = {
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "llama-bpe": [CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
                  + TAIL],
    "qwen2": [CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + TAIL],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"],
}
PATTERNS.update({"starcoder": PATTERNS["smollm"], "refact": PATTERNS["smollm"],
                 "command-r": PATTERNS["smollm"]})


def field(reader, name, default=None):
    found = reader.fields.get(name)
    return default if found is None else found.contents()


def byte_level(reader, tokens):
    splits = [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
               "invert": False} for pattern in PATTERNS[field(reader, "tokenizer.ggml.pre")]]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
             "use_regex": False}
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, level]},
        "post_processor": {**level, "trim_offsets": field(reader, "tokenizer.ggml.pre") == "gpt-2"},
        "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "byte_fallback": False,
                  "ignore_merges": field(reader, "tokenizer.ggml.pre") == "llama-bpe",
                  "vocab": {token: i for i, token in enumerate(tokens)},
                  "merges": field(reader, "tokenizer.ggml.merges")}}


def sentence_piece(reader, tokens):
    scores = field(reader, "tokenizer.ggml.scores")
    ids = {token: i for i, token in enumerate(tokens)}
    merges = []
    for piece, i in ids.items():
        local = [(ids[piece[:k]], ids[piece[k:]]) for k in range(1, len(piece))
                 if piece[:k] in ids and piece[k:] in ids]
        merges += [(left, right, scores[i]) for left, right in sorted(local)]
    merges.sort(key=lambda merge: -merge[2])
    space = {"pattern": {"String": "▁"}, "content": " "}
    return {
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": None, "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", **space}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "fuse_unk": True,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "byte_fallback": True, "ignore_merges": False, "vocab": ids,
                  "merges": [[tokens[left], tokens[right]] for left, right, _ in merges]}}


def main():
    source, target = sys.argv[1], pathlib.Path(sys.argv[2])
    reader = gguf.GGUFReader(source)
    tokens = field(reader, "tokenizer.ggml.tokens")
    kinds = field(reader, "tokenizer.ggml.token_type")
    make = sentence_piece if field(reader, "tokenizer.ggml.model") == "llama" else byte_level
    made = make(reader, tokens)
    made["added_tokens"] = [
        {"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": kind == 3}
        for i, (token, kind) in enumerate(zip(tokens, kinds)) if kind in (3, 4) and token]
    target.mkdir(parents=True, exist_ok=True)
    (target / "tokenizer.json").write_text(json.dumps({"version": "1.0", **made}))


if __name__ == "__main__":
    main()
