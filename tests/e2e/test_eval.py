"""The tasks of octet eval: data of our own, a model beside a baseline, gates, reports, taking up again."""
import json
import os
import pathlib
import tempfile
import unittest

import harness


def rows(*all_rows):
    return "".join(json.dumps(row) + "\n" for row in all_rows)


MMLU = rows(*({"subject": f"subject_{s}", "question": f"What is {n} + {s}?",
               "choices": [str(n + s + i - n % 4) for i in range(4)], "answer": n % 4}
              for s in range(2) for n in range(5)))
GSM8K = rows(*({"question": f"A box holds {n} pens. How many do {n} boxes hold?",
                "answer": f"{n} times {n} is {n * n}.\n#### {n * n}"} for n in range(2, 8)))
HUMANEVAL = rows(
    {"task_id": "Own/0", "prompt": "def add(a, b):\n    \"\"\"The sum.\"\"\"\n", "entry_point": "add",
     "test": "def check(f):\n    assert f(1, 2) == 3"},
    {"task_id": "Own/1", "prompt": "def one():\n    return 1\n", "entry_point": "one",
     "test": "def check(f):\n    assert f() == 1"})
PROMPTS = rows({"prompt": "def add(a, b):", "id": "add"}, {"prompt": "import os\n"},
               {"prompt": "class Stack:"})


class Eval(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def file(self, text, name):
        path = self.root / name
        path.write_text(text)
        return path

    def eval(self, task, *args, baseline=True):
        """The result, and what was said on stderr."""
        out = self.root / "result.json"
        both = ["--compute", "fp8", "--baseline", harness.MODEL] if baseline else []
        code, shown, log = harness.run("eval", task, harness.MODEL, *both, *args, "--json", out)
        self.assertEqual(code, 0, shown + log)
        return json.loads(out.read_text()), log

    def refused(self, words, task, *args):
        code, shown, log = harness.run("eval", task, harness.MODEL, *args)
        self.assertEqual((code, shown), (2, ""), log)
        for word in words:
            self.assertIn(word, log)
        self.assertNotIn("internal error", log)

    def test_mmlu_is_paired_and_taken_up_again(self):
        data, kept = self.file(MMLU, "m.jsonl"), self.root / "kept.jsonl"
        page = self.root / "page.html"
        args = ("--data", data, "--shots", 2, "--resume", kept, "--html", page)
        first, _ = self.eval("mmlu", *args)
        self.assertEqual(first["count"], 6)
        self.assertEqual(set(first["groups"]), {"subject_0", "subject_1"})
        self.assertEqual(len(first["metrics"]["acc"]["difference_interval"]), 2)
        lines = kept.read_text().splitlines()
        self.assertEqual(len(lines), 12)
        self.assertNotIn("http", page.read_text())
        # A run that was cut off within a line, then the rest; whole, it asks nothing again.
        kept.write_text("\n".join(lines[:7]) + "\n" + lines[7][:20])
        again, log = self.eval("mmlu", *args)
        self.assertEqual(again, first)
        self.assertIn("1 lines are broken", log)
        self.assertEqual(len(kept.read_text().splitlines()), 13)
        self.assertEqual(self.eval("mmlu", *args)[0], first)
        self.assertEqual(len(kept.read_text().splitlines()), 13)

    def test_gsm8k_and_humaneval(self):
        result, _ = self.eval("gsm8k", "--data", self.file(GSM8K, "g.jsonl"), "--shots", 2, "--max-tokens",
                              24, "--limit", 3)
        self.assertEqual(result["count"], 3)
        self.assertEqual(list(result["metrics"]), ["strict-match", "flexible-extract", "loop rate"])
        result, _ = self.eval("humaneval", "--data", self.file(HUMANEVAL, "h.jsonl"), "--max-tokens", 24,
                              "--samples", 2, "--temperature", 0.5, baseline=False)
        self.assertEqual(result["count"], 2)
        ends = {sample["end"] for item in result["items"] for sample in item["answer"]}
        self.assertLessEqual(ends, {"passed", "failed", "out_of_time", "killed"})

    def test_recall_by_length_and_depth(self):
        text = os.path.join(harness.MODEL, "eval_docs.txt")
        page = self.root / "page.html"
        result, _ = self.eval("needle", "--text", text, "--lengths", "256,512", "--count", 3, "--html", page,
                              "--max-accuracy-drop", 0)
        self.assertEqual(result["metrics"]["found"]["value"], 1)
        self.assertEqual(result["count"], 6)
        self.assertIn("100 %", page.read_text())
        for kind in ("code", "dialogue"):
            result, _ = self.eval("needle", "--kind", kind, "--lengths", "400", "--count", 2, baseline=False)
            self.assertEqual(result["count"], 2)

    def test_regress_keeps_verdicts(self):
        prompts, verdicts = self.file(PROMPTS, "p.jsonl"), self.root / "v.jsonl"
        args = ("--prompts", prompts, "--max-tokens", 40, "--verdicts", verdicts)
        result, _ = self.eval("regress", *args)
        self.assertEqual(result["count"], 3)
        self.assertGreater(result["different"], 0)
        self.assertEqual(len(verdicts.read_text().splitlines()), result["different"])
        verdicts.write_text(verdicts.read_text().replace('"verdict":""', '"verdict":"worse"'))
        again, _ = self.eval("regress", *args)
        self.assertEqual(again["verdicts"], {"worse": result["different"]})
        # A run with fewer prompts, or other answers, leaves the rest of a person's work.
        before = sorted(verdicts.read_text().splitlines())
        self.eval("regress", *args, "--limit", 1)
        self.eval("regress", "--prompts", prompts, "--max-tokens", 3, "--verdicts", verdicts)
        self.assertLessEqual(set(before), set(verdicts.read_text().splitlines()))
        code, _, log = harness.run("eval", "regress", harness.MODEL, "--baseline", harness.MODEL,
                                   "--prompts", prompts, "--max-worse", 0)
        self.assertEqual(code, 2, log)
        self.assertIn("--verdicts", log)
        code, _, log = harness.run("eval", "regress", harness.MODEL, "--compute", "fp8", "--baseline",
                                   harness.MODEL, *args, "--max-worse", 0)
        self.assertEqual(code, 1)
        self.assertIn("are worse", log)
        # The same model twice: nothing differs.
        same, _ = self.eval("regress", "--baseline", harness.MODEL, *args[:4], baseline=False)
        self.assertEqual(same["different"], 0)

    def test_sampling_agrees_with_itself(self):
        prompts = self.file(PROMPTS, "p.jsonl")
        result, _ = self.eval("sampling", "--baseline", harness.MODEL, "--prompts", prompts, "--max-tokens", 16,
                              "--temperatures", "0,1", "--top-ps", "1", baseline=False)
        self.assertEqual([cell["same"] for cell in result["cells"]], [1, 1])
        self.assertEqual(result["cells"][0]["common_beginning_by_chance"], 1)
        self.assertLess(result["cells"][1]["common_beginning_by_chance"], 1)

    def test_compare_by_position(self):
        text = os.path.join(harness.MODEL, "eval_docs.txt")
        page = self.root / "page.html"
        result, _ = self.eval("compare", "--text", text, "--window", 200, "--html", page)
        buckets = result["by_position"]
        self.assertEqual([b["first"] for b in buckets], [1, 64, 128])
        self.assertEqual(sum(b["tokens"] for b in buckets), result["tokens"])
        self.assertIn("KL divergence by position", page.read_text())

    def test_gates(self):
        data = self.file(MMLU, "m.jsonl")
        code, _, log = harness.run("eval", "mmlu", harness.MODEL, "--data", data, "--shots", 0,
                                   "--min-accuracy", 1)
        self.assertEqual(code, 1, log)
        self.assertIn("gate failed: acc", log)
        self.refused(["--max-accuracy-drop", "--baseline"], "mmlu", "--data", data, "--shots", 0,
                     "--max-accuracy-drop", 0.1)

    def test_broken_rows_are_named_and_the_rest_is_used(self):
        data = self.file(MMLU + "{\nnot json\n" + rows({"subject": "x"}), "m.jsonl")
        result, log = self.eval("mmlu", "--data", data, "--shots", 0, baseline=False)
        self.assertEqual(result["count"], 10)
        self.assertIn("3 broken rows are left out, 10 are used", log)
        self.assertIn("m.jsonl:11", log)

    def test_bad_input(self):
        empty, wrong = self.file("", "empty.jsonl"), self.file(rows({"a": 1}), "wrong.jsonl")
        mmlu, gsm8k = self.file(MMLU, "m.jsonl"), self.file(GSM8K, "g.jsonl")
        human = self.file(HUMANEVAL, "h.jsonl")
        prompts = self.file(PROMPTS, "p.jsonl")
        binary = self.root / "binary"
        binary.write_bytes(bytes(range(256)) * 8)
        damaged = self.root / "d.jsonl.gz"
        damaged.write_bytes(b"\x1f\x8b" + b"x" * 100)
        for task, flag in (("mmlu", "--data"), ("gsm8k", "--data"), ("humaneval", "--data"),
                           ("regress", "--prompts"), ("sampling", "--prompts")):
            both = () if flag == "--data" else ("--baseline", harness.MODEL)
            for path, words in ((empty, ["no rows"]), (wrong, ["1 broken row", "wrong.jsonl"]),
                                (binary, ["binary"]), (damaged, ["damaged"]),
                                (self.root / "nowhere", ["nowhere"])):
                self.refused(words, task, flag, path, *both)
        self.refused(["--shots", "subject_0"], "mmlu", "--data", mmlu, "--shots", 5)
        self.refused(["--few-shot"], "gsm8k", "--data", gsm8k, "--shots", 6)
        self.refused(["context is too small", "tokens"], "gsm8k", "--data", gsm8k, "--shots", 2,
                     "--max-model-len", 64)
        self.refused(["context is too small"], "mmlu", "--data", mmlu, "--shots", 2, "--max-model-len", 32)
        self.refused(["--samples", "--temperature"], "humaneval", "--data", human, "--samples", 2)
        self.refused(["--python"], "humaneval", "--data", human, "--python", "no-such-python")
        self.refused(["--baseline"], "regress", "--prompts", prompts)
        self.refused(["--temperatures", "hot"], "sampling", "--prompts", prompts, "--baseline",
                     harness.MODEL, "--temperatures", "hot")
        self.refused(["--text"], "needle")
        self.refused(["--lengths"], "needle", "--kind", "code", "--lengths", "20")
        nowhere = self.root / "no-model"
        code, _, log = harness.run("eval", "mmlu", nowhere, "--data", mmlu, "--shots", 0)
        self.assertEqual(code, 2, log)
        self.assertIn("no-model", log)
        kept = self.root / "kept.jsonl"
        self.refused(["no-model"], "mmlu", "--data", mmlu, "--shots", 0, "--baseline", nowhere,
                     "--resume", kept)
        self.assertEqual(kept.read_text(), "", "it is said before anything is asked")
        self.refused(["no file of answers"], "mmlu", "--data", mmlu, "--shots", 0, "--resume", gsm8k)


if __name__ == "__main__":
    unittest.main()
