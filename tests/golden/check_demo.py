#!/usr/bin/env python3
"""Recomputes the demo model's reference.json with the installed transformers.

    check_demo.py models/octet-demo

Two reasons to run it by hand: it shows that this version of transformers still reads the checkpoint as
it was meant, and that reference.json, which the engine's tests are held to, can be obtained again.
Prints one line a figure and fails if one is off.
"""

import argparse
import json
import pathlib
import sys

import torch
import transformers
from generate import load

LOGPROB_TOLERANCE = 1e-3
MARGIN_TOLERANCE = 2e-3
NLL_TOLERANCE = 1e-5  # relative
WINDOW = 511


@torch.no_grad()
def logprobs(model, ids: list[int]) -> torch.Tensor:
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].log_softmax(-1)


@torch.no_grad()
def greedy(model, ids: list[int], steps: int) -> tuple[list[int], list[float]]:
    """Tokens and the margin of each step: first minus second log-probability."""
    tokens, margins, cache, step = [], [], None, ids
    for _ in range(steps):
        out = model(input_ids=torch.tensor([step]), past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        best = out.logits[0, -1].log_softmax(-1).topk(2)
        tokens.append(int(best.indices[0]))
        margins.append(float(best.values[0] - best.values[1]))
        step = tokens[-1:]
    return tokens, margins


def nll(model, bos: int, tokens: list[int], window: int) -> float:
    """Summed over all tokens, in windows that start after a BOS each."""
    total = 0.0
    for start in range(0, len(tokens), window):
        part = tokens[start : start + window]
        scores = logprobs(model, [bos] + part)[:-1]
        total -= float(scores.gather(-1, torch.tensor(part).unsqueeze(-1)).double().sum())
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=pathlib.Path, help="directory of the demo model, with reference.json")
    directory = parser.parse_args().model

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    reference = json.loads((directory / "reference.json").read_text())
    bos = reference["bos_token_id"]
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"))
    model = load(directory)
    failures = 0

    def report(what: str, good: bool, detail: str) -> None:
        nonlocal failures
        failures += not good
        print(f"{what:34} {'ok ' if good else 'OFF'}  {detail}")

    print(f"here: transformers {transformers.__version__}, torch {torch.__version__}; reference: {reference['source']}")
    for name, want in reference["prompts"].items():
        ids = [bos] + tokenizer.encode(want["text"], add_special_tokens=False)
        report(f"{name}: token ids", ids == want["ids"], f"{len(ids)} tokens")
        top = logprobs(model, want["ids"])[-1].topk(10)
        off = max(abs(a - b) for a, b in zip(top.values.tolist(), want["top10_logprobs"], strict=True))
        same = top.indices.tolist() == want["top10_ids"]
        report(f"{name}: top 10", same and off < LOGPROB_TOLERANCE, f"log-probabilities within {off:.1e}")
        tokens, margins = greedy(model, want["ids"], len(want["greedy_ids"]))
        off = max(abs(a - b) for a, b in zip(margins, want["greedy_margins"], strict=True))
        good = tokens == want["greedy_ids"] and off < MARGIN_TOLERANCE
        report(f"{name}: greedy", good, f"{len(tokens)} tokens, margins within {off:.1e}")
    for name, want in reference["texts"].items():
        tokens = tokenizer.encode((directory / name).read_text(), add_special_tokens=False)
        report(f"{name}: tokens", len(tokens) == want["tokens"], f"{len(tokens)}")
        for key, window in (("nll", WINDOW), ("single_pass_nll", len(tokens))):
            got = nll(model, bos, tokens, window)
            off = abs(got / want[key] - 1)
            report(f"{name}: {key}", off < NLL_TOLERANCE, f"{got:.4f}, reference {want[key]:.4f}")
    sys.exit(f"{failures} figures are off" if failures else 0)


if __name__ == "__main__":
    main()
