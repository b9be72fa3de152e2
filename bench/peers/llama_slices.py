#!/usr/bin/env python3
"""llama.cpp in the role of `octet bench slices`: the same commands, the same answers.

    llama_slices.py MODEL.gguf --threads N      decode BATCH CONTEXT SECONDS | prefill TOKENS SECONDS
    llama_slices.py --quantize IN OUT TYPE      TYPE is Q8_0, BF16 or F32
    llama_slices.py MODEL.gguf --threads N --start TOKENS
                                                one process: seconds from loading to the first token

Needs the llama_cpp module; run.py installs it. Each kind of work is tried with and without flash
attention, and several sequences with a cache for each and with one for all; the fastest is kept.
Threads are the pool that llama-bench uses, one to a processor. Only llama_decode is timed: no token is
drawn from the logits.
"""
import ctypes
import json
import os
import pathlib
import statistics
import sys
import time

import llama_cpp as ll

STEPS = 32  # before a sequence is cut back to its context, as `octet bench slices` does it
TYPES = {"Q8_0": 7, "BF16": 32, "F32": 0}


class PoolParams(ctypes.Structure):
    """ggml_threadpool_params"""
    _fields_ = [("cpumask", ctypes.c_bool * 512), ("n_threads", ctypes.c_int), ("prio", ctypes.c_int),
                ("poll", ctypes.c_uint32), ("strict_cpu", ctypes.c_bool), ("paused", ctypes.c_bool)]


@ll.llama_log_callback
def silent(level, text, data):
    pass


def library(name):
    return ctypes.CDLL(str(pathlib.Path(ll.__file__).parent / "lib" / f"lib{name}.so"))


def thread_pool(threads):
    params = PoolParams()
    library("ggml-base").ggml_threadpool_params_init(ctypes.byref(params), threads)
    for cpu in sorted(os.sched_getaffinity(0))[:threads]:
        params.cpumask[cpu] = True
    params.strict_cpu = True
    create = library("ggml-cpu").ggml_threadpool_new
    create.restype = ctypes.c_void_p
    return ctypes.c_void_p(create(ctypes.byref(params)))


class Work:
    """A context with `batch` sequences of `length` tokens at most."""

    def __init__(self, peer, batch, length, flash, unified):
        params = ll.llama_context_default_params()
        params.n_ctx = batch * -(-length // 256) * 256
        params.n_batch = max(2048, batch)
        params.n_seq_max = batch
        params.n_threads = params.n_threads_batch = peer.threads
        params.flash_attn_type = int(flash)
        params.kv_unified = unified
        params.no_perf = True
        self.context = ll.llama_init_from_model(peer.model, params)
        if not self.context:
            raise SystemExit("llama.cpp made no context")
        library("llama").llama_attach_threadpool(ctypes.c_void_p(self.context), peer.pool, peer.pool)
        self.memory = ll.llama_get_memory(self.context)
        self.batch = ll.llama_batch_init(max(length, batch), 0, 1)
        self.sequences, self.vocab, self.random = batch, peer.vocab, 1
        self.options = {"flash_attention": flash, "unified_cache": unified}

    def token(self):
        self.random = (self.random * 1103515245 + 12345) % 2**31
        return self.random % self.vocab

    def decode(self, cells):
        """Seconds of one llama_decode of `cells`: (sequence, position, wants logits)."""
        self.batch.n_tokens = len(cells)
        for i, (sequence, position, logits) in enumerate(cells):
            self.batch.token[i] = self.token()
            self.batch.pos[i] = position
            self.batch.n_seq_id[i] = 1
            self.batch.seq_id[i][0] = sequence
            self.batch.logits[i] = logits
        begin = time.perf_counter()
        if ll.llama_decode(self.context, self.batch) != 0:
            raise SystemExit("llama_decode failed")
        ll.llama_synchronize(self.context)
        return time.perf_counter() - begin

    def prompt(self, sequence, tokens):
        return self.decode([(sequence, i, i == tokens - 1) for i in range(tokens)])

    def steps(self, context, seconds):
        """Decode steps for so long, each sequence behind `context` tokens."""
        taken = []
        while sum(taken) < seconds:
            for sequence in range(self.sequences):
                ll.llama_memory_seq_rm(self.memory, sequence, context, -1)
            for step in range(STEPS):
                taken.append(self.decode([(s, context + step, True) for s in range(self.sequences)]))
        return {"tokens": len(taken) * self.sequences, "steps": len(taken), "seconds": sum(taken),
                "step_us": 1e6 * statistics.median(taken)}

    def prompts(self, tokens, seconds):
        taken = []
        while sum(taken) < seconds:
            ll.llama_memory_clear(self.memory, False)
            taken.append(self.prompt(0, tokens))
        return {"tokens": len(taken) * tokens, "seconds": sum(taken),
                "ttft_ms": 1e3 * statistics.median(taken)}


class Peer:
    def __init__(self, path, threads):
        self.path, self.threads = path, threads
        ll.llama_backend_init()
        self.model = ll.llama_model_load_from_file(path.encode(), ll.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"llama.cpp does not load {path}")
        self.vocab = ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(self.model))
        self.pool = thread_pool(threads)
        self.work = {}

    def about(self):
        return {"model": self.path, "version": ll.__version__,
                "weight_bytes_per_token": ll.llama_model_size(self.model),
                "system": ll.llama_print_system_info().decode()}

    def best(self, key, variants, prepare, run):
        """The fastest of `variants` at this work: each in turn, three times."""
        if key not in self.work:
            rates = {id(one): [] for one in variants}
            for one in variants:
                prepare(one)
                run(one, 0.2)
            for _ in range(3 if len(variants) > 1 else 0):
                for one in variants:
                    slice_ = run(one, 0.3)
                    rates[id(one)].append(slice_["tokens"] / slice_["seconds"])
            best = max(variants, key=lambda one: statistics.median(rates[id(one)] or [0]))
            for one in variants:
                if one is not best:
                    ll.llama_batch_free(one.batch)
                    ll.llama_free(one.context)
            self.work[key] = best
        return self.work[key]

    def answer(self, line):
        name, *rest = line.split()
        if name == "decode":
            batch, context, seconds = int(rest[0]), int(rest[1]), float(rest[2])

            def prepare(one):
                for sequence in range(batch):
                    one.prompt(sequence, context)
            work = self.work.get((batch, context)) or self.best(
                (batch, context),
                [Work(self, batch, context + STEPS, flash, unified) for flash in (True, False)
                 for unified in ((True, False) if batch > 1 else (False,))],
                prepare, lambda one, s: one.steps(context, s))
            found = work.steps(context, seconds)
            steps = found.pop("steps")
            found["weight_bytes"] = steps * ll.llama_model_size(self.model)
        elif name == "prefill":
            tokens, seconds = int(rest[0]), float(rest[1])
            work = self.work.get(tokens) or self.best(
                tokens, [Work(self, 1, tokens, flash, False) for flash in (True, False)],
                lambda one: None, lambda one, s: one.prompts(tokens, s))
            found = work.prompts(tokens, seconds)
        else:
            raise SystemExit(f"unknown command {line!r}")
        return {**found, **work.options}


def quantize(source, target, kind):
    params = ll.llama_model_quantize_default_params()
    params.ftype = TYPES[kind]
    params.allow_requantize = True
    if ll.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params)) != 0:
        raise SystemExit(f"llama.cpp could not make {target} of {source}")


def main():
    ll.llama_log_set(silent, ctypes.c_void_p())
    arguments = sys.argv[1:]
    if arguments[0] == "--quantize":
        quantize(*arguments[1:4])
        return
    threads = int(arguments[arguments.index("--threads") + 1])
    begin = time.perf_counter()
    peer = Peer(arguments[0], threads)
    if "--start" in arguments:
        tokens = int(arguments[arguments.index("--start") + 1])
        Work(peer, 1, tokens, True, False).prompt(0, tokens)
        print(json.dumps({"seconds": time.perf_counter() - begin}))
        return
    print(json.dumps(peer.about()), flush=True)
    for line in sys.stdin:
        print(json.dumps(peer.answer(line)), flush=True)


if __name__ == "__main__":
    main()
