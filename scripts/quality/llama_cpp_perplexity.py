#!/usr/bin/env python3
"""The perplexity that llama.cpp computes, by the convention of its own perplexity tool: whole windows
of --window tokens, the second half of each scored. `octet eval perplexity --convention halves` is
the same of ours.

    llama_cpp_perplexity.py MODEL.gguf TEXT [--window 512] [--windows 100]

Needs llama-cpp-python. Its Llama class computes with the GGUF's own blocks, and quantizes activations
to 8 bits on the way where its kernels do; octet decodes the blocks to BF16. So the two agree closely,
not to the bit.
"""

import argparse
import math
import pathlib

import llama_cpp
import numpy as np


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--windows", type=int, default=0, help="0 is all")
    parser.add_argument("--threads", type=int, default=None)
    args = parser.parse_args()
    model = llama_cpp.Llama(args.model, n_ctx=args.window, n_batch=args.window, logits_all=True,
                            n_threads=args.threads, n_threads_batch=args.threads, verbose=False)
    # The tool adds BOS by the model's own rule, and does not look for special tokens.
    vocabulary = llama_cpp.llama_model_get_vocab(model.model)
    adds_bos = llama_cpp.llama_vocab_get_add_bos(vocabulary)
    tokens = model.tokenize(pathlib.Path(args.text).read_bytes(), add_bos=adds_bos, special=False)
    count = len(tokens) // args.window
    if args.windows:
        count = min(count, args.windows)
    first = args.window // 2
    nll, scored = 0.0, 0
    for i in range(count):
        window = tokens[i * args.window:(i + 1) * args.window]
        if adds_bos:
            window[0] = model.token_bos()
        model.reset()
        model.eval(window)
        rows = np.asarray(model.scores[first:args.window - 1], dtype=np.float64)
        top = rows.max(axis=1, keepdims=True)
        norm = top[:, 0] + np.log(np.exp(rows - top).sum(axis=1))
        nll -= (rows[np.arange(len(rows)), window[first + 1:]] - norm).sum()
        scored += len(rows)
        if (i + 1) % 20 == 0 or i + 1 == count:
            print(f"{i + 1}/{count} windows: perplexity {math.exp(nll / scored):.4f}", flush=True)
    print(f"perplexity {math.exp(nll / scored):.4f}  ({nll / scored:.5f} nats a token, {scored} tokens, "
          f"{len(tokens)} tokens of text)")


if __name__ == "__main__":
    main()
