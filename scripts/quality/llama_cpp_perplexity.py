#!/usr/bin/env python3
"""The perplexity that llama.cpp computes, by the convention of its own perplexity tool: whole windows
of --window tokens, the second half of each scored. `octet eval perplexity --convention halves` is
the same of ours.

    llama_cpp_perplexity.py MODEL.gguf TEXT [--window 512] [--windows 100]

Needs llama-cpp-python, and of it llama.cpp's own functions alone: its Llama class passes memory of
numpy on in ways that some pairs of versions refuse. llama.cpp computes with the GGUF's own blocks, and
quantizes activations to 8 bits on the way where its kernels do; octet decodes the blocks to BF16. So the
two agree closely, not to the bit.
"""

import argparse
import contextlib
import ctypes
import math
import os
import pathlib
import sys

import llama_cpp
import numpy as np


@contextlib.contextmanager
def quiet():
    """llama.cpp writes pages to stderr while it loads."""
    kept = os.dup(2)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


class Model:
    def __init__(self, path, window, threads):
        self.window = window
        with quiet():
            llama_cpp.llama_backend_init()
            options = llama_cpp.llama_model_default_params()
            # Not the weights in another layout: some builds of it die of an illegal instruction
            # where the processor has tiles (AMX) and the system does not give them.
            if hasattr(options, "use_extra_bufts"):
                options.use_extra_bufts = False
            self.model = llama_cpp.llama_model_load_from_file(os.fsencode(path), options)
            params = llama_cpp.llama_context_default_params()
            params.n_ctx = params.n_batch = params.n_ubatch = window
            params.n_threads = params.n_threads_batch = threads or os.cpu_count()
            self.context = self.model and llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            sys.exit(f"llama.cpp cannot load {path}")
        self.vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        self.size = llama_cpp.llama_vocab_n_tokens(self.vocabulary)
        # The tool adds BOS by the model's own rule, and does not look for special tokens.
        self.bos = (llama_cpp.llama_vocab_bos(self.vocabulary)
                    if llama_cpp.llama_vocab_get_add_bos(self.vocabulary) else None)
        self.batch = llama_cpp.llama_batch_init(window, 0, 1)

    def tokenize(self, text):
        most = len(text) + 2
        tokens = (llama_cpp.llama_token * most)()
        count = llama_cpp.llama_tokenize(self.vocabulary, text, len(text), tokens, most,
                                         self.bos is not None, False)
        if count < 0:
            sys.exit(f"llama.cpp does not tokenize the text: {count}")
        return list(tokens[:count])

    def losses(self, tokens, first):
        """Of tokens[first + 1:], in nats, each given those before it."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        self.batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            self.batch.token[i] = token
            self.batch.pos[i] = i
            self.batch.n_seq_id[i] = 1
            self.batch.seq_id[i][0] = 0
            self.batch.logits[i] = i >= first
        status = llama_cpp.llama_decode(self.context, self.batch)
        if status != 0:
            sys.exit(f"llama_decode gives {status}")
        losses = []
        for i in range(first, len(tokens) - 1):
            row = ctypes.cast(llama_cpp.llama_get_logits_ith(self.context, i),
                              ctypes.POINTER(ctypes.c_float * self.size)).contents
            logits = np.frombuffer(row, dtype=np.float32).astype(np.float64)
            top = logits.max()
            norm = top + math.log(np.exp(logits - top).sum())
            losses.append(norm - logits[tokens[i + 1]])
        return losses


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--windows", type=int, default=0, help="0 is all")
    parser.add_argument("--threads", type=int, default=None)
    args = parser.parse_args()
    model = Model(args.model, args.window, args.threads)
    tokens = model.tokenize(pathlib.Path(args.text).read_bytes())
    count = len(tokens) // args.window
    if args.windows:
        count = min(count, args.windows)
    if count == 0:
        sys.exit(f"{args.text}: {len(tokens)} tokens are less than one window of {args.window}")
    nll, scored = 0.0, 0
    for i in range(count):
        window = tokens[i * args.window:(i + 1) * args.window]
        if model.bos is not None:
            window[0] = model.bos
        losses = model.losses(window, args.window // 2)
        nll += math.fsum(losses)
        scored += len(losses)
        if (i + 1) % 20 == 0 or i + 1 == count:
            print(f"{i + 1}/{count} windows: perplexity {math.exp(nll / scored):.4f}", flush=True)
    print(f"perplexity {math.exp(nll / scored):.4f}  ({nll / scored:.5f} nats a token, {scored} tokens, "
          f"{len(tokens)} tokens of text)")


if __name__ == "__main__":
    main()
