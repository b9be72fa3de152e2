"""Devices: what doctor says of this machine, and what --device refuses."""
import json
import os
import re
import tempfile
import unittest

import harness


class Devices(unittest.TestCase):
    def doctor(self, *args):
        code, out, log = harness.run("doctor", *args, "--json", "-")
        self.assertEqual(code, 0, out + log)
        return json.loads(out)

    def test_cpu_works(self):
        report = self.doctor()
        self.assertTrue(report["cpu"]["ok"], report)
        self.assertLess(report["cpu"]["fp8_error"], 2e-3)
        # Whole models, with other kernels than the reference's: not equal, and nearly so.
        self.assertGreater(report["cpu"]["model_error"], 0)
        self.assertLess(report["cpu"]["model_error"], 0.05)
        self.assertGreaterEqual(report["cpu"]["threads"], 1)
        self.assertGreater(report["cpu"]["memory_free"], 0)
        self.assertGreaterEqual(report["cpu"]["numa_nodes"], 1)
        # INT8 is recommended where it alone has fast products.
        recommended = any("--scheme int8" in sentence for sentence in report["cpu"]["advice"])
        self.assertEqual(recommended, report["cpu"]["isa"] == "avx512_bf16")

    def test_no_driver(self):
        report = self.doctor("--nvml-library", "/no/such/libnvidia-ml.so")
        self.assertFalse(report["cuda"]["ok"])
        self.assertEqual(report["cuda"]["gpus"], [])
        self.assertIn("cannot open", report["cuda"]["problem"])
        code, text, _ = harness.run("doctor", "--nvml-library", "/no/such/libnvidia-ml.so")
        self.assertEqual(code, 0)
        self.assertIn("--device cpu runs every verb", text)

    def test_gpu_that_the_build_or_the_machine_lacks(self):
        if self.doctor()["cuda"]["ok"]:
            self.skipTest("there is a GPU here")
        code, _, log = harness.run("generate", harness.MODEL, "--prompt", "def", "--device", "cuda")
        self.assertEqual(code, 2, log)
        self.assertIn("--device", log)
        self.assertRegex(log, "cmake --preset cuda|driver|GPU")

    def test_unknown_device(self):
        code, _, log = harness.run("generate", harness.MODEL, "--prompt", "def", "--device", "tpu")
        self.assertEqual(code, 2, log)
        self.assertIn("cpu, cuda, cuda:N", log)

    def test_e5m2_is_warned_of_with_numbers(self):
        server = harness.Server("--kv-cache-dtype", "fp8_e5m2")
        self.addCleanup(server.close)
        found = re.search(r"off by ([\d.]+) % \(([\d.]+) dB\) in E5M2 and by ([\d.]+) % \(([\d.]+) dB\)",
                          server.log())
        self.assertIsNotNone(found, server.log())
        e5m2, e5m2_db, e4m3, e4m3_db = map(float, found.groups())
        # One bit of mantissa is a factor of two.
        self.assertAlmostEqual(e5m2 / e4m3, 2, delta=0.3)
        self.assertAlmostEqual(e5m2, 5.2, delta=1)
        self.assertAlmostEqual(e4m3_db - e5m2_db, 6, delta=1.5)
        other = harness.Server()
        self.addCleanup(other.close)
        self.assertNotIn("E5M2", other.log())

    def test_linears_are_timed_beside_bf16(self):
        code, out, log = harness.run("kernels", harness.MODEL, "--compute", "fp8", "--batches", "1,7",
                                     "--measure", "--json", "-")
        self.assertEqual(code, 0, out + log)
        measured = json.loads(out)["measured"]
        self.assertGreater(len(measured), 4)
        for row in measured:
            self.assertGreater(min(row["us"], row["bf16_us"]), 0)
            self.assertEqual(row["slower"], row["us"] > 1.05 * row["bf16_us"])
        _, text, _ = harness.run("kernels", harness.MODEL, "--compute", "fp8", "--batches", "1", "--measure")
        self.assertRegex(text, r"BF16 is faster by more than 5 % in \d+ of \d+")

    def test_throughput(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "result.json")
            code, out, log = harness.run(
                "bench", "throughput", harness.MODEL, "--batch", 3, "--prompt-len", 10,
                "--output-len", 4, "--chunk", 16, "--repeats", 1, "--json", path)
            self.assertEqual(code, 0, out + log)
            with open(path) as file:
                result = json.load(file)
        self.assertGreater(result["decode_tokens_per_s"], 0)
        self.assertGreater(result["prefill_tokens_per_s"], 0)
        self.assertGreater(result["memory"]["kv"], 0)

    def test_step_listing_adds_up(self):
        """What the ops of a step move is what the speed benchmarks count per token."""
        shape = os.path.join(os.path.dirname(harness.MODEL), "configs", "llama-3.2-1b")
        flags = [shape, "--random-weights", "--scheme", "fp8_channel", "--json", "-"]
        code, out, log = harness.run("kernels", *flags, "--step", 1, "--context", 100)
        self.assertEqual(code, 0, out + log)
        *lines, total = json.loads(out)["step"]
        for part in ("times", "weight_bytes", "cache_bytes", "activation_bytes"):
            self.assertEqual(total[part], sum(line[part] for line in lines), part)
        # 16 layers: 2048 wide, 8 KV heads of 64, an FFN of 8192; codes, a scale for each output,
        # and the head in BF16.
        inputs, outputs = 2048 * (2048 + 512 * 2 + 2 * 8192) + 2048 * 2048 + 8192 * 2048, (
            2048 + 512 * 2 + 2 * 8192 + 2048 + 2048)
        linears = 16 * (inputs + 4 * outputs) + 2 * 128256 * 2048
        self.assertEqual(sum(line["weight_bytes"] for line in lines if "linear" in line["op"]),
                         linears)
        attention = next(line for line in lines if line["op"].startswith("attention"))
        self.assertEqual(attention["cache_bytes"], 16 * 100 * 2 * 8 * 64)
