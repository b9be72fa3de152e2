"""Precision by evidence: octet eval sensitivity, and quantize --auto, which goes by it."""
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest

import harness

TEXT = os.path.join(harness.MODEL, "eval_code.txt")
WINDOWS = ("--text", TEXT, "--windows", 2, "--window", 128)


class Precision(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.out = self.root / "result.json"
        self.model = harness.MODEL

    def run_octet(self, *args, code=0):
        done, _, log = harness.run(*args)
        self.assertEqual(done, code, log)
        self.assertNotIn("internal error", log)
        return log

    def sensitivity(self, *args):
        self.run_octet("eval", "sensitivity", harness.MODEL, *WINDOWS, *args, "--json", self.out)
        return json.loads(self.out.read_text())

    def refused(self, words, *args):
        log = self.run_octet(*args, code=2)
        for word in words:
            self.assertIn(word, log)

    def test_sensitivity_is_sorted_and_taken_up_again(self):
        kept, page = self.root / "kept.jsonl", self.root / "page.html"
        args = ("--by", "role", "--high-roles", "--resume", kept, "--html", page)
        first = self.sensitivity(*args)
        costs = [part["cost"] for part in first["parts"]]
        self.assertEqual(costs, sorted(costs, reverse=True))
        kinds = {part["kind"] for part in first["parts"]}
        self.assertEqual(kinds, {"linear", "cache", "router", "embedding", "lm_head"})
        self.assertTrue(all(part["kl"] > 0 for part in first["parts"]))
        # All together cost more than any of them alone.
        self.assertGreater(first["everything"]["kl"], max(p["kl"] for p in first["parts"] if p["kind"] == "linear"))
        self.assertNotIn("http", page.read_text())
        lines = kept.read_text().splitlines()
        self.assertEqual(len(lines), len(first["parts"]) + 2)
        kept.write_text("\n".join(lines[:5]) + "\n" + lines[5][:20])
        self.assertEqual(self.sensitivity(*args), first)
        # Another format is another question.
        self.assertNotEqual(self.sensitivity(*args, "--scheme", "fp8_w8a16")["parts"], first["parts"])

    def test_sensitivity_the_other_way(self):
        result = self.sensitivity("--by", "layer", "--leave-one-out")
        for part in result["parts"]:
            self.assertAlmostEqual(part["cost"], result["everything"]["kl"] - part["kl"], places=12)

    def test_ladder(self):
        page = self.root / "page.html"
        self.run_octet("ladder", harness.MODEL, *WINDOWS, "--prompt-len", 32, "--output-len", 4, "--repeats", 1,
                       "--json", self.out, "--html", page)
        rungs = json.loads(self.out.read_text())["rungs"]
        self.assertEqual([rung["name"] for rung in rungs],
                         ["BF16", "+ FP8 KV cache", "+ FP8 weights", "+ FP8 activations", "+ FP8 attention"])
        self.assertEqual(rungs[0]["kl"], 0)
        self.assertTrue(all(rung["kl_error"] is not None for rung in rungs))
        self.assertEqual(len({rung["kl"] for rung in rungs}), 5)
        bytes_of = [(rung["weight_bytes"], rung["cache_bytes_per_token"]) for rung in rungs]
        self.assertLess(bytes_of[1][1], bytes_of[0][1])
        self.assertLess(bytes_of[2][0], 0.7 * bytes_of[1][0])
        self.assertEqual(bytes_of[2], bytes_of[4])
        self.assertTrue(all(rung["decode_tokens_per_s"]["median"] > 0 for rung in rungs))
        self.assertNotIn("http", page.read_text())
        # The last rung, over the whole text, is what --scheme alone computes.
        self.run_octet("eval", "perplexity", harness.MODEL, "--scheme", "fp8_channel", "--text", TEXT, "--window",
                       128, "--json", self.out)
        whole = json.loads(self.out.read_text())["perplexity"]
        self.run_octet("ladder", harness.MODEL, "--text", TEXT, "--windows", 1000, "--window", 128, "--prompt-len",
                       8, "--output-len", 1, "--repeats", 1, "--json", self.out)
        self.assertAlmostEqual(json.loads(self.out.read_text())["rungs"][-1]["perplexity"], whole, places=9)
        self.refused(["--prompt-len"], "ladder", harness.MODEL, *WINDOWS, "--prompt-len", 100000)

    def test_a_ladder_ends_at_once_and_goes_on(self):
        kept = self.root / "kept.jsonl"
        args = ("ladder", harness.MODEL, "--text", TEXT, "--windows", 1, "--window", 128, "--scheme", "int8",
                "--prompt-len", 32, "--output-len", 4, "--resume", kept, "--json", self.out)
        # Long passes of one rung: what is measured stands between two signals' checks for minutes.
        slow = subprocess.Popen([harness.BINARY, *map(str, args), "--repeats", "100000"], stderr=subprocess.DEVNULL)
        time.sleep(3)
        slow.send_signal(signal.SIGINT)
        self.assertEqual(slow.wait(5), -signal.SIGINT)
        self.assertFalse(self.out.exists())

        self.run_octet(*args, "--repeats", 1)
        first = json.loads(self.out.read_text())
        self.assertEqual([rung["name"] for rung in first["rungs"]],
                         ["BF16", "+ FP8 KV cache", "+ INT8 weights", "+ INT8 activations", "+ FP8 attention"])
        # One window does not tell how windows differ.
        self.assertTrue(all(rung["kl_error"] is None for rung in first["rungs"]))
        lines = kept.read_text().splitlines()
        self.assertEqual(len(lines), 5)
        kept.write_text("\n".join(lines[:3]) + "\n" + lines[3][:30])
        self.run_octet(*args, "--repeats", 1)
        again = json.loads(self.out.read_text())
        self.assertEqual(again["rungs"][:3], first["rungs"][:3])  # speed and all: it was not measured again
        for before, after in zip(first["rungs"], again["rungs"]):
            self.assertEqual(before["kl"], after["kl"])

    def quantize(self, budget, *args, code=0):
        return self.run_octet("quantize", self.model, "--out", self.root / "out", "--overwrite", "--auto",
                              "--budget", budget, *WINDOWS, *args, "--json", self.root / "q.json", code=code)

    def test_quantize_by_evidence(self):
        self.sensitivity("--by", "role")
        sensitivity = ("--sensitivity", self.out)
        self.quantize("kl=100", *sensitivity)
        chosen = json.loads((self.root / "q.json").read_text())["auto"]
        self.assertEqual(chosen["kept"], [])
        all_fp8 = chosen["all_fp8"]["kl"]
        self.assertEqual(chosen["written"]["kl"], all_fp8)

        log = self.quantize("kl=1e-9", *sensitivity, code=2)
        self.assertIn("no choice", log)
        self.assertIn("--min-fp8-share", log)
        least = float(log.split("a budget of ")[1].split(" or more")[0])
        self.assertLess(least, all_fp8)
        budget = (least + all_fp8) / 2
        self.quantize(f"kl={budget:.6f}", *sensitivity)
        report = json.loads((self.root / "q.json").read_text())
        chosen = report["auto"]
        self.assertTrue(chosen["kept"])
        self.assertLessEqual(chosen["written"]["kl"], budget)
        self.assertGreaterEqual(chosen["fp8_share_of_linear_bytes"], 0.8)
        config = json.loads((self.root / "out" / "config.json").read_text())
        ignored = config["quantization_config"]["ignore"]
        for part in chosen["kept"]:
            self.assertLessEqual(set(part["modules"]), set(ignored))
        # What was written is what was measured: its own comparison on the whole text agrees with it.
        self.run_octet("eval", "compare", self.root / "out", "--baseline", harness.MODEL, "--baseline-compute",
                       "fp32", "--text", TEXT, "--max-kl", 2 * all_fp8)

        size = report["bytes_before"] // 4 * 3
        self.quantize(f"bytes={size}", *sensitivity)
        report = json.loads((self.root / "q.json").read_text())
        self.assertLessEqual(report["bytes_after"], size)
        self.assertTrue(report["auto"]["kept"])

    def test_sensitivities_outlive_a_budget_that_fails(self):
        kept, self.model = self.root / "out.sensitivity.jsonl", harness.tiny_llama(self.root / "tiny")
        log = self.quantize("kl=1e-9", code=2)
        self.assertIn("no choice", log)
        self.assertFalse((self.root / "out").exists())
        lines = kept.read_text().splitlines()
        self.assertEqual(len(lines), 2 * 7 + 2 + 2)  # linears, caches, as stored, everything
        # What a killed run left of a line, and one figure less.
        kept.write_text("\n".join(lines[:-1]) + "\n" + lines[-1][:20])
        self.quantize("kl=100")
        self.assertEqual([line for line in kept.read_text().splitlines() if line in lines], lines)
        # Bytes are counted before anything is measured.
        kept.unlink()
        self.quantize("bytes=1000", code=2)
        self.assertFalse(kept.exists())

    def test_weights_and_inputs_alone(self):
        both = self.sensitivity("--by", "role")
        inputs, weights = ({part["name"]: part["kl"] for part in
                            self.sensitivity("--by", "role", "--operand", operand)["parts"]}
                           for operand in ("input", "weight"))
        self.assertEqual(set(inputs), {part["name"] for part in both["parts"] if part["kind"] == "linear"})
        self.assertEqual(set(inputs), set(weights))
        self.assertEqual(inputs["*.self_attn.kv_b_proj"], 0)  # whose input is the latent
        self.assertGreater(inputs["*.self_attn.o_proj"], 0)
        self.assertGreater(weights["*.self_attn.kv_b_proj"], 0)
        self.assertNotEqual(inputs["*.self_attn.o_proj"], weights["*.self_attn.o_proj"])
        sensitivity = ("eval", "sensitivity", self.model, *WINDOWS, "--operand", "input")
        self.refused(["--operand", "--high-roles"], *sensitivity, "--high-roles")
        self.refused(["--operand", "inputs"], *sensitivity, "--scheme", "fp8_w8a16")

    def test_inputs_that_stay_in_16_bits(self):
        self.model = harness.tiny_llama(self.root / "tiny")
        share = ("--min-fp8-input-share", 0.6)
        self.quantize("bytes=1e9", *share)
        chosen = json.loads((self.root / "q.json").read_text())["auto"]
        self.quantize("kl=1e-9", *share, "--min-fp8-share", 1, code=2)
        budget = chosen["all_fp8"]["kl"] * 0.99
        self.quantize(f"kl={budget:.8f}", *share)
        chosen = json.loads((self.root / "q.json").read_text())["auto"]
        self.assertLessEqual(chosen["written"]["kl"], budget)
        self.assertTrue(chosen["weight_only"])
        self.assertLessEqual(chosen["weight_only_share_of_linear_bytes"], 0.4)
        config = json.loads((self.root / "out" / "config.json").read_text())
        self.assertEqual(sorted(config["octet"]["weight_only"]),
                         sorted(name for part in chosen["weight_only"] for name in part["modules"]))
        # What every verb then runs is what was measured.
        self.assertIn("recorded to stay 16-bit", harness.run("inspect", self.root / "out")[1])
        self.refused(["--min-fp8-input-share", "inputs"], "quantize", self.model, "--out", self.root / "no",
                     "--auto", "--budget", "kl=1", *WINDOWS, *share, "--scheme", "fp8_w8a16")

    def test_searched_scales(self):
        tiny = harness.tiny_llama(self.root / "tiny")

        def mean_error(*args):
            self.run_octet("quantize", tiny, "--out", self.root / "out", "--overwrite", *args, "--json",
                           self.root / "q.json")
            tensors = json.loads((self.root / "q.json").read_text())["worst_first"]
            return sum(10 ** (-tensor["sqnr_db"] / 10) for tensor in tensors) / len(tensors)
        self.assertLess(mean_error("--weight-scale", "mse"), 0.98 * mean_error())

    def test_preset(self):
        self.run_octet("quantize", harness.MODEL, "--out", self.root / "out", "--preset", "first-last-bf16")
        ignored = json.loads((self.root / "out" / "config.json").read_text())["quantization_config"]["ignore"]
        layers = {name.split(".")[2] for name in ignored if name.endswith("o_proj")}
        self.assertEqual(layers, {"0", "7"})

    def test_hot_experts_stay_in_16_bits(self):
        args = ("--scheme", "fp8_block", "--calibration", TEXT, "--calibration-tokens", 1024)
        log = self.run_octet("quantize", harness.MODEL, "--out", self.root / "out", "--expert-policy", "hot=0.25",
                             *args)
        self.assertIn("experts of 7 layers stay in 16 bits", log)
        config = json.loads((self.root / "out" / "config.json").read_text())
        ignored = config["quantization_config"]["modules_to_not_convert"]
        experts = {name.rsplit(".", 1)[0] for name in ignored if ".experts." in name}
        self.assertEqual(len(experts), 7 * 4)
        self.assertEqual(sum(".experts." in name for name in ignored), 3 * len(experts))

        # Experts of both precisions in one layer compute, and fast kernels what the exact ones do.
        def perplexity(model, *flags):
            self.run_octet("eval", "perplexity", model, "--text", TEXT, "--window", 64, "--max-tokens", 126, *flags,
                           "--json", self.out)
            return json.loads(self.out.read_text())["perplexity"]
        fast = perplexity(self.root / "out")
        self.assertLess(abs(fast / perplexity(self.root / "out", "--kernels", "exact") - 1), 0.01)
        self.assertLess(abs(fast / perplexity(harness.MODEL) - 1), 0.1)
        self.assertNotEqual(fast, perplexity(harness.MODEL, "--scheme", "fp8_block"))
        # Both at once, and what says nothing.
        self.run_octet("quantize", harness.MODEL, "--out", self.root / "both", "--expert-policy", "hot=0.1",
                       "--rounding", "compensated", *args)
        quantize = ("quantize", harness.MODEL, "--out", self.root / "no")
        for policy in ("hot", "hot=", "hot=0", "hot=2", "cold=0.5", "hot=x"):
            self.refused(["--expert-policy", "hot=SHARE"], *quantize, "--expert-policy", policy, *args)
        self.refused(["--calibration"], *quantize, "--expert-policy", "hot=0.5")
        dense = pathlib.Path(harness.MODEL).parents[1] / "tests" / "golden" / "llama_mha"
        self.refused(["no experts"], "quantize", dense, "--out", self.root / "no", "--expert-policy", "hot=0.5", *args)

    def test_refuses_what_says_nothing(self):
        quantize = ("quantize", harness.MODEL, "--out", self.root / "out")
        for budget in ("", "kl", "kl=", "kl=-1", "kl=nan", "bits=3", "bytes=1x"):
            self.refused(["--budget"], *quantize, "--auto", "--text", TEXT, "--budget", budget)
        self.refused(["--text"], *quantize, "--auto", "--budget", "kl=0.01")
        self.refused(["--budget", "--auto"], *quantize, "--budget", "kl=0.01")
        self.refused(["or more"], *quantize, "--auto", "--budget", "bytes=10", *WINDOWS)
        for flag, value in (("--windows", 8), ("--window", 100), ("--seed", 1), ("--min-fp8-share", 0.8),
                            ("--min-fp8-input-share", 0.8)):
            self.refused([flag, "--auto"], *quantize, flag, value)
        self.refused(["--min-fp8-share", "kl=X"], *quantize, "--auto", "--budget", "bytes=1e9", *WINDOWS,
                     "--min-fp8-share", 0.5)
        self.refused(["--kv-cache-dtype", "as asked"], *quantize, "--attention", "fp8", "--kv-cache-dtype", "bf16")
        self.refused(["--baseline-attention", "--baseline-compute bf16"], "eval", "compare", harness.MODEL,
                     "--baseline", harness.MODEL, "--baseline-attention", "fp8", "--text", TEXT)
        self.assertFalse((self.root / "out").exists())
        other = self.root / "other.json"
        for content, word in (("{}", "parts"), ("[]", "object"), ("", "empty")):
            other.write_text(content)
            self.refused(["other.json"], *quantize, "--auto", "--budget", "kl=0.01", *WINDOWS, "--sensitivity",
                         other)
        result = self.sensitivity("--by", "role")
        other.write_text(json.dumps({**result, "model_hash": "0"}))
        self.refused(["another model"], *quantize, "--auto", "--budget", "kl=0.01", *WINDOWS, "--sensitivity",
                     other)
        for place, change in (("$.everything.kl", {"everything": {**result["everything"], "kl": 1e308}}),
                              ("$.parts[1].kl", {"parts": [result["parts"][0], {**result["parts"][1], "kl": -1}]}),
                              ("$.parts[0].kind", {"parts": [{**result["parts"][0], "kind": "knob"}]}),
                              ("$.parts[1].name", {"parts": [result["parts"][0]] * 2}),
                              ("$.by", {"by": "colour"}), ("$.operand", {"operand": "some"}), ("$.scheme", {"scheme": "fp7"}),
                              ("$.perplexity", {"perplexity": 0.5})):
            other.write_text(json.dumps({**result, **change}))
            self.refused([f"other.json, {place}"], *quantize, "--auto", "--budget", "kl=0.01", *WINDOWS,
                         "--sensitivity", other)
        other.write_text(json.dumps({**result, "parts": result["parts"][:2]}))
        self.refused(["lack a linear"], *quantize, "--auto", "--budget", "kl=0.01", *WINDOWS, "--sensitivity",
                     other)
        self.refused(["none.txt"], "eval", "sensitivity", harness.MODEL, "--text", self.root / "none.txt")


if __name__ == "__main__":
    unittest.main()
