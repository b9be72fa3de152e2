#!/usr/bin/env python3
"""Writes demo_tokens.json: what Hugging Face's tokenizers makes of difficult strings.

    pip install tokenizers==0.23.3 && python3 tests/unit/text/data/make_demo_tokens.py

The tokenizer is the bundled model's, as it is and with other pre-tokenizers and added tokens put
into it ("patch"), so that one vocabulary covers the rules of many models.
"""
import copy
import json
import pathlib
import random
import tempfile

from tokenizers import Tokenizer

HERE = pathlib.Path(__file__).resolve().parent
DEMO = HERE.parents[3] / "models" / "octet-demo" / "tokenizer.json"
RNG = random.Random(20240607)

FIXED = [
    "", " ", "\n", "a", " a", "a ", "a  ", "  leading spaces", "Hello world", "\r\n", "\t\tx",
    "I'M don't can'T we'LL'S '\u017f \u017fs'\u017f", "12345 1,234.56",
    "\u65e5\u672c\u8a9e\u30c6\u30b9\u30c8 \u4e2d\u6587\u6d4b\u8bd5 \ud55c\uad6d\uc5b4",
    "caf\u00e9 na\u00efve cafe\u0301", "...!!!???", "\n\n \n\t\t x\r\n\r\n y",
    "a\u180eb \u180e", "\u00a0x\u2003\u3000y\u2028z\u0085",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f3f3\ufe0f\u200d\U0001f308\U0001f44d\U0001f3fd",
    " \U0001fa77 \U0001f6dc \U0002ebf0",  # younger than Unicode 14
    "\u0661\u0662\u0663\u0664\u0665 \u2177 \u2167 \u00b2\u00b3\u00bd \u96f6\u4e00",
    "\0\x01\x7f", " " * 60, "a" * 300, "ab" * 100, " \n" * 40, "!" * 100, "1" * 50, "\u0301" * 20,
    "e\u0301 \u0301 x", "\ufb06 \ufb03 \u00df \u1e9e", "\U0001d49c\U0001d4d1 \U0001d7d8",
    "def f(x):\n    return x**2  # ok\n", "http://a.b/c?d=e&f=g#h", "<|bos|><|eos|>",
    "x<|bos|>y <|eos|> z", "<|bo", "\ufeffBOM", "\ufffd\uffff\U0010ffff\ue000",
]
POOLS = [
    lambda: chr(RNG.randint(32, 126)),
    lambda: RNG.choice(" \t\n\r\u00a0\u2003\u3000\u0085\u180e\u200b\u200d\ufeff"),
    lambda: RNG.choice("'\"\u2018\u2019\u017fsStTmMdDvVrReElL"),
    lambda: chr(RNG.choice([RNG.randint(0x4E00, 0x9FFF), RNG.randint(0x3040, 0x30FF),
                            RNG.randint(0xAC00, 0xD7A3)])),
    lambda: chr(RNG.randint(0x80, 0x24FF)),
    lambda: chr(RNG.choice([RNG.randint(0x1F300, 0x1FAFF), 0x200D, 0xFE0F])),
    lambda: chr(RNG.randint(0x300, 0x36F)),
    lambda: RNG.choice("0123456789\u0660\u0661\u00b2\u00bd\u2167"),
    lambda: RNG.choice("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~\u00ab\u00bb\u2026\u20ac"),
    lambda: RNG.choice(["<|bos|>", "<|eos|>", "<|pad|>", "<|pad|", "[A]", "[B]", "[AB", "hello"]),
    lambda: RNG.choice(["the", " world", "Return", " def", "ing", "  ", "\n\n", "na\u00efve"]),
]


def random_text(lengths):
    pools = RNG.sample(POOLS, RNG.choice([1, 2, 3, 5, 8]))
    return "".join(RNG.choice(pools)() for _ in range(RNG.choice(lengths)))


def split(pattern, behavior, invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def sequence(*stages):
    return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": list(stages)}}


def byte_level(prefix=False, regex=True):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True,
            "use_regex": regex}


def added_tokens(*tokens):
    """The demo's and these; one that the vocabulary has keeps its id, others are numbered on."""
    out, next_id = list(demo["added_tokens"]), len(vocab)
    for token in tokens:
        token["id"] = vocab.get(token["content"], next_id)
        next_id += token["id"] == next_id
        out.append(token)
    return {"added_tokens": out}


def token(content, **flags):
    return {"content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": False, **flags}


LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
demo = json.loads(DEMO.read_text())
vocab = demo["model"]["vocab"]
plain = byte_level(regex=False)
patches = {
    "demo": {},
    "gpt2": {"pre_tokenizer": byte_level()},
    "gpt2_prefix_space": {"pre_tokenizer": byte_level(prefix=True)},
    "smollm2": sequence({"type": "Digits", "individual_digits": True}, byte_level()),
    "digit_runs": sequence({"type": "Digits", "individual_digits": False}, byte_level(prefix=True)),
    "llama3_ignore_merges": {**sequence(split(LLAMA3, "Isolated"), plain),
                             "model": {"ignore_merges": True}},
    "words": sequence(split(r"^\w+$|\bx|\d+\B|\h|.\Z|(?<=a)\W|(?m:.)e|$", "Isolated"), plain),
    "added": added_tokens(
        token("[A]", lstrip=True, special=True), token("[B]", rstrip=True),
        token("[AB]", lstrip=True, rstrip=True), token("he", single_word=True),
        token("hello", normalized=True), token("  ", normalized=True, rstrip=True),
        token("\n\n", lstrip=True), token("[A", special=True)),
}
for behavior in ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"]:
    for invert in [False, True]:
        patches[f"{behavior}_{invert}"] = sequence(split(" ", behavior, invert, "String"),
                                                   split(r"[\s\p{P}]|x*", behavior, invert), plain)

variants = []
for name, patch in patches.items():
    data = copy.deepcopy(demo)
    for key, value in patch.items():
        if key == "model":
            data["model"].update(value)
        else:
            data[key] = value
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(data, file)
        file.flush()
        tokenizer = Tokenizer.from_file(file.name)
    assert all(tokenizer.token_to_id(t["content"]) == t["id"] for t in data["added_tokens"])
    is_demo = name == "demo"
    texts = FIXED + [random_text([2, 5, 10, 30, 60]) for _ in range(130 if is_demo else 10)]
    cases = []
    for text in texts:
        tokenizer.encode_special_tokens = False
        case = {"text": text, "ids": tokenizer.encode(text, add_special_tokens=False).ids}
        tokenizer.encode_special_tokens = True
        as_text = tokenizer.encode(text, add_special_tokens=False).ids
        if as_text != case["ids"]:
            case["ids_special_as_text"] = as_text
        cases.append(case)
    variant = {"name": name, "patch": patch, "cases": cases}
    if is_demo:
        variant["decodes"] = []
        for _ in range(60):
            ids = [RNG.choice([RNG.randrange(8192), RNG.randrange(260)])
                   for _ in range(RNG.choice([1, 2, 5, 20]))]
            variant["decodes"].append({"ids": ids,
                                       "text": tokenizer.decode(ids, skip_special_tokens=False),
                                       "skipped": tokenizer.decode(ids, skip_special_tokens=True)})
    variants.append(variant)

out = {"source": "Hugging Face tokenizers 0.23.3", "variants": variants}
(HERE / "demo_tokens.json").write_text(
    json.dumps(out, ensure_ascii=False, separators=(",", ":")).replace('{"text"', '\n{"text"') + "\n")
