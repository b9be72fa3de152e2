#!/usr/bin/env python3
"""Holds a model directory of ours to Hugging Face transformers: the same ids for the same texts, the
same greedy tokens, and log-probabilities that agree to float32.

    check_hf.py build/models/smollm2 [--octet build/cpu/octet]

Needs transformers, tokenizers and torch. transformers computes in float32, Octet with --compute fp32.
Prints a line for each text and fails if one is off.
"""

import argparse
import json
import subprocess
import sys
import tempfile

import torch
import transformers

LOGPROB_TOLERANCE = 1e-3
STEPS = 24

TEXTS = [
    "What is gravity?",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "The year 1969, the 20th of July; 3.14159 and 1,000,000.",
    "Grüße aus Köln — ça va? Привет мир! 你好，世界。 こんにちは 🚀👩‍🚀",
    "  leading blanks,\ttabs\r\n\r\nand   runs \n\n\n of white space  ",
    "I've said it's they'll we're I'D 'Tis don't",
    "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n",
    "x" * 200 + " " + "ab" * 100,
    "¼ ½ ² ⅷ ٣ १२३ ①②",
    "\u00a0\u2003\u3000nbsp \u200bzero e\u0301 \ufb01",
]


def ours(octet, model, texts):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(texts, file)
        file.flush()
        done = subprocess.run([octet, "generate", model, "--compute", "fp32", "--prompt-file",
                               file.name, "--max-tokens", str(STEPS), "--temperature", "0",
                               "--logprobs", "3", "--json", "-"], check=True, capture_output=True)
    return json.loads(done.stdout)


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--octet", default="build/cpu/octet")
    args = parser.parse_args()
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    worst, failed = 0.0, 0
    for text, answer in zip(TEXTS, ours(args.octet, args.model, TEXTS), strict=True):
        faults = []
        ids = tokenizer(text)["input_ids"]
        if ids != answer["prompt_ids"]:
            faults.append("other ids")
        if tokenizer.decode(answer["prompt_ids"], skip_special_tokens=False,
                            clean_up_tokenization_spaces=False) != text:
            faults.append("ids do not decode to the text")
        # Every step at once, over the tokens that Octet chose.
        chosen = answer["token_ids"]
        logits = model(input_ids=torch.tensor([answer["prompt_ids"] + chosen[:-1]])).logits[0]
        rows = logits[len(answer["prompt_ids"]) - 1:].log_softmax(-1)
        if rows.argmax(-1).tolist() != chosen:
            faults.append("other greedy tokens")
        difference = 0.0
        for row, best in zip(rows, answer["logprobs"]):
            for entry in best:
                difference = max(difference, abs(float(row[entry["token"]]) - entry["logprob"]))
        worst = max(worst, difference)
        if difference > LOGPROB_TOLERANCE:
            faults.append("other log-probabilities")
        failed += bool(faults)
        print(f"{text[:40]!r:46} {len(ids):4} ids  logprob off by {difference:.2e}  "
              f"{', '.join(faults) or 'ok'}")
    print(f"{len(TEXTS) - failed} of {len(TEXTS)} texts agree; log-probabilities within {worst:.2e}")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
