#!/usr/bin/env python3
"""lm-eval's own MMLU, GSM8K and HumanEval tasks over `octet serve` score as `octet eval` does. Run by hand.

    check_lm_eval_tasks.py OCTET_BINARY MODEL DATA [--limit N] [--tasks mmlu,gsm8k,humaneval]
                           [-- OPTIONS OF BOTH, such as --compute fp8]

Needs lm-eval[api] and transformers (for the tokenizer; no torch), and no network. DATA is a folder with
mmlu.jsonl ({subject, question, choices, answer}), gsm8k.jsonl and HumanEval.jsonl(.gz). `octet eval` draws
N questions of each by a seed; lm-eval is given the same ones, in its own task definitions with the data
from a file, and asks the server. Compared question by question: the likelihood of each letter and which is
the best; the answers to word problems, and both ways to read them; the functions that were completed (the
programs themselves run in `octet eval` alone, in its sandbox). Prints the scores of both, and fails if they
differ in more than one question in 200.
"""

import argparse
import collections
import gzip
import json
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"

import lm_eval  # noqa: E402
import yaml  # noqa: E402
import transformers  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

THEIRS = pathlib.Path(lm_eval.__file__).parent / "tasks"
TOLERANCE = 1e-3  # nats of a letter
SHOTS = 5


class Loader(yaml.SafeLoader):
    """Their definitions without the functions that they name."""


Loader.add_constructor("!function", lambda loader, node: None)


def their_task(path, **changes):
    task = yaml.load((THEIRS / path).read_text(), Loader)
    for name in ("tag", "group", "dataset_name", "unsafe_code"):
        task.pop(name, None)
    return {**task, "dataset_path": "json", **changes}


def read_rows(path):
    opened = gzip.open(path, "rt") if path.suffix == ".gz" else path.open()
    with opened as file:
        return [json.loads(line) for line in file if line.strip()]


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def evaluate(octet, task, model, data, limit, options, folder):
    out = folder / f"{task}.json"
    subprocess.run([octet, "eval", task, model, "--data", data, "--limit", str(limit), "--json", out,
                    *options], check=True, stdout=subprocess.DEVNULL)
    return json.loads(out.read_text())


def write_task(folder, task):
    (folder / f"{task['task']}.yaml").write_text(yaml.safe_dump(task))
    return task["task"]


def mmlu_tasks(folder, rows, result):
    """One task of theirs for each subject: names, and our items in the order of its questions."""
    by_subject = collections.defaultdict(list)
    for row in rows:
        by_subject[row["subject"]].append(row)
    asked = collections.defaultdict(list)
    for item in result["items"]:
        asked[item["group"]].append(item)
    tasks = {}
    for subject, items in asked.items():
        numbers = [int(item["item"].rsplit("/", 1)[1]) for item in items]
        files = {"test": write_rows(folder / f"{subject}_test.jsonl",
                                    [by_subject[subject][n] for n in numbers]),
                 "dev": write_rows(folder / f"{subject}_dev.jsonl", by_subject[subject][:SHOTS])}
        words = subject.replace("_", " ")
        task = their_task("mmlu/default/_default_template_yaml", task=f"octet_mmlu_{subject}",
                          dataset_kwargs={"data_files": files}, num_fewshot=SHOTS,
                          description="The following are multiple choice questions (with answers) about "
                                      f"{words}.\n\n")
        tasks[write_task(folder, task)] = items
    return tasks


def gsm8k_tasks(folder, rows, result):
    items = result["items"]
    numbers = [int(item["item"].split()[1]) for item in items]
    files = {"test": write_rows(folder / "gsm8k_test.jsonl", [rows[n] for n in numbers]),
             "train": write_rows(folder / "gsm8k_train.jsonl", rows[:SHOTS])}
    task = their_task("gsm8k/gsm8k.yaml", task="octet_gsm8k", dataset_kwargs={"data_files": files},
                      fewshot_config={"sampler": "first_n"})
    return {write_task(folder, task): items}


def humaneval_tasks(folder, rows, result):
    items = result["items"]
    by_id = {row["task_id"]: row for row in rows}
    files = {"test": write_rows(folder / "humaneval_test.jsonl", [by_id[item["item"]] for item in items])}
    task = their_task("humaneval/humaneval.yaml", task="octet_humaneval",
                      dataset_kwargs={"data_files": files}, metric_list=[{"metric": "bypass"}])
    del task["filter_list"]
    return {write_task(folder, task): items}


MAKERS = {"mmlu": ("mmlu.jsonl", mmlu_tasks), "gsm8k": ("gsm8k.jsonl", gsm8k_tasks),
          "humaneval": ("HumanEval.jsonl", humaneval_tasks)}


def puts_bos(model):
    """Whether the tokenizer puts BOS before every text, as `octet eval` then does; lm-eval must be told."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    return tokenizer.bos_token_id is not None and tokenizer("x").input_ids[0] == tokenizer.bos_token_id


def ask(octet, model, tasks, options, folder):
    port = folder / "port"
    server = subprocess.Popen([octet, "serve", model, "--port", "0", "--port-file", port,
                               "--served-model-name", "model", *options], stderr=subprocess.DEVNULL)
    try:
        while not port.exists():
            if server.poll() is not None:
                raise SystemExit("the server did not start")
        return lm_eval.simple_evaluate(
            model="local-completions",
            model_args={"model": "model", "base_url": f"http://127.0.0.1:{int(port.read_text())}/v1/completions",
                        "tokenizer": str(model), "tokenizer_backend": "huggingface", "max_length": 8192,
                        "add_bos_token": puts_bos(model),
                        "num_concurrent": 8, "timeout": 3600},
            tasks=list(tasks), task_manager=TaskManager(include_path=str(folder), include_defaults=False),
            batch_size=1, log_samples=True, bootstrap_iters=0)
    finally:
        server.terminate()
        server.wait()


def compare_mmlu(sample, item):
    """(same verdict, difference of the likelihoods)"""
    theirs = [float(answer[0][0]) for answer in sample["resps"]]
    ours = item["answer"]["logprobs"]
    return (bool(sample["acc"]) == bool(item["scores"]["acc"]),
            max(abs(a - b) for a, b in zip(theirs, ours)))


def compare_gsm8k(sample, item):
    same = bool(sample["exact_match"]) == bool(item["scores"][sample["filter"]])
    return same, float(sample["resps"][0][0] != item["answer"]["text"])


def compare_humaneval(sample, item):
    same = sample["resps"][0][0] == item["answer"][0]["text"]
    return same, float(not same)


COMPARE = {"mmlu": compare_mmlu, "gsm8k": compare_gsm8k, "humaneval": compare_humaneval}


def report(kind, tasks, results, ours):
    count = different = 0
    worst = 0.0
    right = collections.Counter()
    for name, items in tasks.items():
        for sample in results["samples"][name]:
            same, distance = COMPARE[kind](sample, items[sample["doc_id"]])
            count += 1
            different += not same
            worst = max(worst, distance)
            for metric in ("acc", "exact_match"):
                if metric in sample:
                    right[sample.get("filter", "none")] += int(sample[metric])
    metrics = {name: round(value["value"], 4) for name, value in ours["metrics"].items()}
    print(f"{kind}: {len(ours['items'])} questions; octet eval {metrics}; lm-eval {dict(right)} right; "
          f"{different} of {count} verdicts differ; "
          + (f"likelihoods off by at most {worst:.2g} nats" if kind == "mmlu" else
             "an answer has another text" if worst else "all answers are the same text"), flush=True)
    failed = different * 200 > count or (kind == "mmlu" and worst > TOLERANCE)
    return failed or count == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("octet")
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--limit", type=int, default=40)
    parser.add_argument("--tasks", default="mmlu,gsm8k,humaneval")
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    args, options = parser.parse_args(words[:end]), words[end + 1:]
    failed = False
    for kind in args.tasks.split(","):
        name, make = MAKERS[kind]
        data = args.data / name
        if not data.exists():
            data = data.with_name(data.name + ".gz")
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary)
            ours = evaluate(args.octet, kind, args.model, data, args.limit, options, folder)
            tasks = make(folder, read_rows(data), ours)
            results = ask(args.octet, args.model, tasks, options, folder)
            failed = report(kind, tasks, results, ours) or failed
    print(f"lm-eval {lm_eval.__version__}")
    if failed:
        raise SystemExit("these are not the same scores")


if __name__ == "__main__":
    main()
