#!/usr/bin/env python3
"""EleutherAI's lm-eval scores a model over /v1/completions as `octet eval` does. Run by hand.

    check_lm_eval.py OCTET_BINARY MODEL

Needs lm-eval[api] and transformers (for the tokenizer; no torch), and no network. Starts
`octet serve MODEL`, makes a task of pairs (what follows a line of this repository's own tests: the next
line, or another one) and one of whole files, and lets lm-eval ask as it asks any server: token ids,
echo, logprobs, max_tokens 1. For each pair and each file `octet eval perplexity` computes the same sum
of log-probabilities without a server. Prints the largest difference and fails if it is more than
rounding.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"

import lm_eval  # noqa: E402
import transformers  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

HERE = pathlib.Path(__file__).resolve()
TOLERANCE = 1e-3  # nats of a sum: the bits are those of the engine, JSON rounds them

PAIRS = """
task: octet_pairs
dataset_path: json
dataset_kwargs:
  data_files: {{test: {folder}/pairs.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{bos}{{{{context}}}}"
doc_to_choice: choices
doc_to_target: 0
target_delimiter: ""
metric_list:
  - metric: acc
"""
FILES = """
task: octet_files
dataset_path: json
dataset_kwargs:
  data_files: {{test: {folder}/files.jsonl}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list:
  - metric: bits_per_byte
"""


def make_data(folder, bos):
    """Pairs of a beginning and what may follow, and short texts, of our own sources.

    A beginning ends before a space, where no token spans the cut: lm-eval counts the tokens of the
    beginning alone."""
    text = (HERE.parents[1] / "e2e" / "harness.py").read_text()
    functions = [part for part in re.split(r"\n(?=    def |class )", text) if part.count("\n") > 4]
    pairs = []
    for i, function in enumerate(functions):
        begin, end = function.split("(", 1)[0].rsplit(" ", 1)
        other = functions[(i + 1) % len(functions)].rsplit(" ", 1)[1]
        pairs.append({"context": begin, "choices": [" " + end, " " + other]})
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    texts = [{"text": function} for function in functions[:4]]
    (folder / "files.jsonl").write_text("".join(json.dumps(one) + "\n" for one in texts))
    (folder / "pairs.yaml").write_text(PAIRS.format(folder=folder, bos=bos))
    (folder / "files.yaml").write_text(FILES.format(folder=folder))


def sum_of(octet, model, text, folder):
    """The log-probability of a text behind the model's BOS, by `octet eval`."""
    path = folder / "text"
    path.write_text(text)
    done = subprocess.run([octet, "eval", "perplexity", model, "--text", path, "--convention", "single",
                           "--json", "-"], capture_output=True, check=True)
    return -json.loads(done.stdout)["nll"]


def ask(url, model, folder):
    return lm_eval.simple_evaluate(
        model="local-completions",
        model_args={"model": "model", "base_url": f"{url}/v1/completions", "tokenizer": str(model),
                    "tokenizer_backend": "huggingface", "max_length": 2048,
                    "num_concurrent": 4},
        tasks=["octet_pairs", "octet_files"],
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        batch_size=4, log_samples=True, bootstrap_iters=0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("octet")
    parser.add_argument("model", type=pathlib.Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_data(folder, transformers.AutoTokenizer.from_pretrained(args.model).bos_token)
        port = folder / "port"
        server = subprocess.Popen([args.octet, "serve", args.model, "--port", "0", "--port-file", port,
                                   "--served-model-name", "model"], stderr=subprocess.DEVNULL)
        try:
            while not port.exists():
                if server.poll() is not None:
                    raise SystemExit("the server did not start")
            results = ask(f"http://127.0.0.1:{int(port.read_text())}", args.model, folder)
        finally:
            server.terminate()
            server.wait()

        worst, count = 0.0, 0
        for sample in results["samples"]["octet_pairs"]:
            doc = sample["doc"]
            begin = sum_of(args.octet, args.model, doc["context"], folder)
            for choice, answer in zip(doc["choices"], sample["resps"]):
                theirs = answer[0][0]
                ours = sum_of(args.octet, args.model, doc["context"] + choice, folder) - begin
                worst, count = max(worst, abs(float(theirs) - ours)), count + 1
        for sample in results["samples"]["octet_files"]:
            theirs = sample["resps"][0][0]
            ours = sum_of(args.octet, args.model, sample["doc"]["text"], folder)
            worst, count = max(worst, abs(float(theirs) - ours)), count + 1
        accuracy = results["results"]["octet_pairs"]["acc,none"]
        print(f"lm-eval {lm_eval.__version__}: {count} sums, off by at most {worst:.2g} nats; "
              f"acc of the pairs {accuracy:.2f}")
        if count == 0 or worst > TOLERANCE:
            raise SystemExit("these are not the same sums")


if __name__ == "__main__":
    main()
