#!/usr/bin/env python3
"""Writes small_tokenizers.json: small tokenizers of each kind with what Hugging Face's tokenizers
makes of difficult strings, ids and offsets (in bytes).

    pip install tokenizers==0.23.3 && python3 tests/unit/text/data/make_small_tokenizers.py
"""
import json
import pathlib
import sys
import tempfile

from tokenizers import Tokenizer

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "compare"))
from nasty_strings import nasty_strings  # noqa: E402

WORDS = ["the", "there", "hello", "help", "naïve", "日本", "12", "x"]
PREPEND = {"type": "Prepend", "prepend": "▁"}
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
DECODER = {"type": "Sequence", "decoders": [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
    {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}


def merges_of(words, vocab):
    """Left to right merges of each word; what they build gets the next ids."""
    merges = []
    for word in words:
        for end in range(2, len(word) + 1):
            left, right = word[:end - 1], word[end - 1]
            for piece in (left, right, left + right):
                vocab.setdefault(piece, len(vocab))
            if [left, right] not in merges:
                merges.append([left, right])
    return merges


def added(vocab, content, special=True, **flags):
    return {"id": vocab.get(content, len(vocab)), "content": content, "special": special,
            "single_word": False, "lstrip": False, "rstrip": False, "normalized": not special,
            **flags}


def sentence_piece(byte_fallback=True, **parts):
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    if byte_fallback:
        for b in range(256):
            vocab[f"<0x{b:02X}>"] = len(vocab)
    for char in "▁etaoinshrdlu .,!<>|0123456789":
        vocab.setdefault(char, len(vocab))
    merges = merges_of(["▁▁", "▁▁▁▁", *("▁" + word for word in WORDS), *WORDS], vocab)
    return {"normalizer": {"type": "Sequence", "normalizers": [PREPEND, REPLACE]},
            "pre_tokenizer": None, "post_processor": None, "decoder": DECODER,
            "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True,
                      "byte_fallback": byte_fallback, "vocab": vocab, "merges": merges},
            "added_tokens": [added(vocab, "<unk>"), added(vocab, "<s>"), added(vocab, "</s>")],
            **parts}


def metaspace(scheme, split, **parts):
    return sentence_piece(normalizer=None, pre_tokenizer={
        "type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}, **parts)


def alphabet():
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(rest)}


def byte_level(splits=(), prefix=False, trim=False, **parts):
    letters = alphabet()
    vocab = {letters[b]: b for b in range(256)}

    def spelled(text):
        return "".join(letters[b] for b in text.encode())

    merges = merges_of([spelled(word) for word in WORDS + [" " + word for word in WORDS]], vocab)
    level = {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": trim,
             "use_regex": not splits}
    return {"normalizer": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, level]},
            "post_processor": level, "decoder": level,
            "model": {"type": "BPE", "vocab": vocab, "merges": merges},
            "added_tokens": [added(vocab, "<s>")], **parts}


def without_bytes(gone, fallback="", **model):
    """A vocabulary that lacks letters of `gone`; <0xHH> for the bytes of `fallback`'s letters."""
    made = byte_level()
    letters = alphabet()
    for byte in gone:
        made["model"]["vocab"].pop(letters[byte], None)
    vocab = {token: i for i, token in enumerate(["<unk>", *made["model"]["vocab"]])}
    for byte in sorted({byte for gap in fallback for byte in letters[gap].encode()}):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    merges = [pair for pair in made["model"]["merges"] if all(part in vocab for part in pair)]
    made["model"] = {"type": "BPE", "vocab": vocab, "merges": merges, **model}
    return with_tokens(made)


# Of two-byte letters (control characters, lead bytes) and of one-byte letters.
GONE = [*range(33), *b"lx!.", 0x7F, 0xC2, 0xC3, 0xE6, 0xF0, *range(0x80, 0xA0)]
GONE.remove(0x20)


def with_tokens(made, *tokens):
    made["added_tokens"] += tokens
    for i, token in enumerate(made["added_tokens"]):
        token["id"] = made["model"]["vocab"].get(token["content"], len(made["model"]["vocab"]) + i)
    return made


KINDS = {
    "llama-2": sentence_piece(),
    "llama-2 with tokens in normalized text": with_tokens(
        sentence_piece(), added({}, "hello", special=False), added({}, "<|x|>", special=False)),
    "unknown characters, fused": sentence_piece(byte_fallback=False),
    "unknown characters, each": {**(one := sentence_piece(byte_fallback=False)),
                                 "model": {**one["model"], "fuse_unk": False}},
    "metaspace, first": metaspace("first", False),
    "metaspace, always, split": metaspace("always", True),
    "metaspace, never": metaspace("never", True),
    "byte level, NFC": byte_level(normalizer={"type": "NFC"}),
    "byte level, NFC with tokens in normalized text": with_tokens(
        byte_level(normalizer={"type": "NFC"}), added({}, "日é", special=False)),
    "byte level, prefix space, offsets trimmed": byte_level(prefix=True, trim=True),
    "byte level, punctuation and digits": byte_level(
        splits=[{"type": "Punctuation", "behavior": "Contiguous"},
                {"type": "Digits", "individual_digits": True}]),
    "byte level, missing bytes vanish": without_bytes(GONE),
    "byte level, missing bytes are unknown, fused": without_bytes(
        GONE, unk_token="<unk>", fuse_unk=True),
    "byte level, missing bytes are unknown, each": without_bytes(
        GONE, unk_token="<unk>", fuse_unk=False),
    "byte level, missing bytes are spelled or unknown": without_bytes(
        GONE, fallback=b"x\n\r\x85\x97", unk_token="<unk>", byte_fallback=True),
    "byte level, missing bytes are spelled or vanish, offsets trimmed": {
        **without_bytes(GONE, fallback=b"lx\xf0\x9f", byte_fallback=True),
        "post_processor": byte_level(trim=True)["post_processor"]},
    "unknown characters vanish": {**(one := sentence_piece(byte_fallback=False)),
                                  "model": {**one["model"], "unk_token": None}},
}


def main():
    kinds = []
    for number, (name, made) in enumerate(KINDS.items()):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump({"version": "1.0", **made}, file)
            file.flush()
            tokenizer = Tokenizer.from_file(file.name)
        tokens = [token["content"] for token in made["added_tokens"]]
        texts = ["hello there", "  the  x ", "help\n\nthe", "日é日e\u0301", "naïve nai\u0308ve", "日本 12"]
        texts += [text for text in nasty_strings(100 + number, 90, tokens) if len(text) < 16][:35]
        cases = []
        for text in dict.fromkeys(texts):
            found = tokenizer.encode(text, add_special_tokens=False)
            spans = [[i, len(text[:begin].encode()), len(text[:end].encode())]
                     for i, (begin, end) in zip(found.ids, found.offsets)]
            cases.append({"text": text, "spans": spans,
                          "decoded": tokenizer.decode(found.ids, skip_special_tokens=False)})
        kinds.append({"name": name, "tokenizer": made, "cases": cases})
    lines = ",\n".join(json.dumps(kind, separators=(",", ":"), ensure_ascii=False) for kind in kinds)
    (HERE / "small_tokenizers.json").write_text(f"[{lines}]\n", "utf-8")


if __name__ == "__main__":
    main()
