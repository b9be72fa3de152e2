#!/usr/bin/env python3
"""Compares Octet's tokenizers with Hugging Face's, ids and offsets, and stops at a difference.

    tests/compare/compare_tokenizers.py build/cpu/tests/compare/compare_encode DIR... [--count N] [--seed N]

A DIR has a tokenizer.json. It needs the package `tokenizers` 0.23. Text that is not valid UTF-8 is
left out: Python has no such strings. What differs is printed with both results; exit code 1.
"""
import argparse
import json
import pathlib
import subprocess
import sys

import tokenizers

from nasty_strings import nasty_strings


def char_offsets(text, spans):
    """Byte offsets as offsets of characters."""
    place, at = {}, 0
    for index, char in enumerate(text):
        place[at] = index
        at += len(char.encode())
    place[at] = len(text)
    return [(id_, place[begin], place[end]) for id_, begin, end in spans]


def difference(path, theirs, text, line):
    spans = json.loads(line)
    if spans is None:
        return "encode and encode_with_offsets differ"
    expected = theirs.encode(text, add_special_tokens=False)
    want = [(id_, *offset) for id_, offset in zip(expected.ids, expected.offsets)]
    got = char_offsets(text, spans)
    return None if got == want else f"expected {want}\n     got {got}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program")
    parser.add_argument("directories", nargs="+", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=3, help="differences to print for each")
    args = parser.parse_args()
    failed = False
    for path in args.directories:
        theirs = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
        added = [token.content for token in theirs.get_added_tokens_decoder().values()]
        texts = nasty_strings(args.seed, args.count, added[:40])
        done = subprocess.run([args.program, str(path)], capture_output=True,
                              input="".join(json.dumps(text) + "\n" for text in texts).encode())
        lines = done.stdout.decode().splitlines()
        if done.returncode != 0 or len(lines) != len(texts):
            sys.exit(f"{path}: {done.stderr.decode()}")
        differences = [(text, found) for text, line in zip(texts, lines)
                       if (found := difference(path, theirs, text, line))]
        print(f"{path}: {len(texts) - len(differences)} of {len(texts)} equal in ids and offsets")
        for text, found in differences[:args.show]:
            print(f"  {text!r}\n     {found}")
        failed = failed or bool(differences)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
