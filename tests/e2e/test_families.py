"""Every family from its files to tokens, and what the command line changes in a configuration."""
import json
import os
import pathlib
import shutil
import tempfile
import unittest

import harness

PROMPT = [[(7 * i + 3) % 60 for i in range(30)]]


class Families(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.root = pathlib.Path(harness.MODEL).parents[1]
        cls.prompts = os.path.join(cls.folder.name, "prompts.json")
        pathlib.Path(cls.prompts).write_text(json.dumps(PROMPT))

    def golden(self, name):
        return self.root / "tests" / "golden" / name

    def shape(self, name):
        return self.root / "models" / "configs" / name

    def generate(self, model, *args):
        """(ids, log) of a greedy completion."""
        code, out, log = harness.run("generate", model, "--prompt-file", self.prompts, "--max-tokens",
                                     8, "--ignore-eos", "--json", "-", *args)
        self.assertEqual(code, 0, log)
        tokens = json.loads(out)[0]["token_ids"]
        self.assertEqual(len(tokens), 8)
        return tokens, log

    def refused(self, *args):
        code, out, log = harness.run(*args)
        self.assertEqual(code, 2, out + log)
        return log

    def inspect(self, name, *args):
        code, out, log = harness.run("inspect", self.shape(name), "--random-weights", *args)
        self.assertEqual(code, 0, log)
        return out

    def test_quantize_then_generate(self):
        for name in ("mistral_window", "mixtral_window", "qwen2_window", "qwen3_norms",
                     "qwen3_moe_sparse", "llama_longrope"):
            with self.subTest(name):
                out = os.path.join(self.folder.name, name)
                code, _, log = harness.run("quantize", self.golden(name), "--out", out)
                self.assertEqual(code, 0, log)
                written, _ = self.generate(out)
                at_load, _ = self.generate(self.golden(name), "--scheme", "fp8_channel")
                self.assertEqual(written, at_load)

    def test_prefix_hits_and_chunks_in_a_window(self):
        """The same prompts twice in one run, cut in chunks shorter than the window."""
        twice = os.path.join(self.folder.name, "twice.json")
        pathlib.Path(twice).write_text(json.dumps(PROMPT * 2))
        whole, _ = self.generate(self.golden("mistral_window"), "--scheme", "fp8_block")
        code, out, log = harness.run("generate", self.golden("mistral_window"), "--scheme",
                                     "fp8_block", "--prompt-file", twice, "--max-tokens", 8,
                                     "--ignore-eos", "--max-num-seqs", 1,
                                     "--max-num-batched-tokens", 3, "--json", "-")
        self.assertEqual(code, 0, log)
        for completion in json.loads(out):
            self.assertEqual(completion["token_ids"], whole)

    def test_each_family_serves_in_fp8(self):
        """The shapes of the golden cases with random weights and the demo model's tokenizer."""
        demo = pathlib.Path(harness.MODEL)
        vocab = json.loads((demo / "config.json").read_text())["vocab_size"]
        for name in ("mistral_window", "mixtral_window", "qwen2_window", "qwen3_norms",
                     "qwen3_moe_window", "llama_dynamic"):
            with self.subTest(name):
                folder = pathlib.Path(self.folder.name, f"serve_{name}")
                folder.mkdir()
                config = json.loads((self.golden(name) / "config.json").read_text())
                config |= {"vocab_size": vocab, "max_position_embeddings": 128}
                (folder / "config.json").write_text(json.dumps(config))
                for file in ("tokenizer.json", "tokenizer_config.json"):
                    shutil.copy(demo / file, folder)
                server = harness.Server("--random-weights", "--scheme", "fp8_block", model=str(folder))
                try:
                    answers = [self.complete(server) for _ in range(2)]
                    self.assertEqual(answers[0], answers[1])  # the second hits the prefix
                    self.assertEqual(answers[0]["usage"]["completion_tokens"], 12)
                finally:
                    server.close()

    def complete(self, server):
        status, _, body = server.request("POST", "/v1/completions", {
            "prompt": "def add(a, b):\n    return a + b\n" * 3, "max_tokens": 12, "temperature": 0,
            "ignore_eos": True, "logprobs": 1})
        self.assertEqual(status, 200, body)
        answer = json.loads(body)
        answer["usage"].pop("prompt_tokens_details", None)
        return {"choices": answer["choices"], "usage": answer["usage"]}

    def test_inspect_says_how_positions_and_windows_are(self):
        self.assertIn("RoPE default, base 10000; a window of 4096 tokens in 32 of 32 layers",
                      self.inspect("mistral-7b"))
        self.assertIn("RoPE yarn x 40, base 10000", self.inspect("deepseek-v2-lite"))

    def test_rope_flags(self):
        yarn = '{"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 32768}'
        out = self.inspect("qwen3-0.6b", "--rope-scaling", yarn)
        self.assertIn("RoPE yarn x 4, base 1e+06", out)
        self.assertIn("context 131072", out)
        self.assertIn("RoPE default, base 5e+06", self.inspect("qwen3-0.6b", "--rope-theta", "5e6"))
        self.assertIn("a window of 64 tokens in 4 of 28 layers", self.inspect(
            "qwen3-0.6b", "--hf-overrides",
            '{"use_sliding_window": true, "sliding_window": 64, "max_window_layers": 24}'))

        model = self.golden("llama_mha")
        before, _ = self.generate(model)
        self.assertNotEqual(self.generate(model, "--rope-theta", 20)[0], before)
        self.assertEqual(self.generate(model, "--rope-theta", 10000)[0], before)

    def test_frequencies_that_depend_on_the_length_are_mentioned(self):
        _, log = self.generate(self.golden("llama_longrope"))
        self.assertIn("long factors, as sequences of 48 tokens (--max-model-len)", log)
        _, log = self.generate(self.golden("llama_dynamic"), "--max-model-len", 40)
        self.assertIn("of 40 tokens (--max-model-len)", log)

    def test_bad_overrides(self):
        model = self.shape("qwen3-0.6b")
        for flag, value, expected in (
                ("--rope-scaling", "yarn", "--rope-scaling"),
                ("--rope-scaling", "[]", "not a JSON object"),
                ("--rope-scaling", '{"rope_type": "yarn"}', "factor"),
                ("--rope-scaling", '{"rope_type": "yarn", "factor": 2, "alpha": 1}', "alpha"),
                ("--rope-scaling", '{"rope_type": "magic", "factor": 2}', "magic"),
                ("--rope-theta", "-1", "--rope-theta"),
                ("--rope-theta", "0.5", "rope_theta"),
                ("--hf-overrides", '{"rope_thetta": 1e4}', "rope_thetta"),
                ("--hf-overrides", '{"hidden_size": "big"}', "hidden_size"),
                ("--hf-overrides", "{", "--hf-overrides")):
            with self.subTest(f"{flag} {value}"):
                self.assertIn(expected, self.refused("inspect", model, "--random-weights", flag, value))
        self.assertIn("given twice", self.refused(
            "inspect", model, "--random-weights", "--rope-theta", "1e4", "--hf-overrides",
            '{"rope_theta": 1e4}'))

    def test_what_a_family_cannot_be_is_refused(self):
        folder = pathlib.Path(self.folder.name)
        for name, changes, expected in (
                ("mistral-7b", {"sliding_window": 0}, "sliding_window"),
                ("qwen2.5-0.5b", {"use_sliding_window": True, "sliding_window": 64,
                                  "layer_types": ["full_attention"]}, "1 types for 24 layers"),
                ("qwen3-8b", {"head_dim": None}, "head_dim"),
                ("qwen3-30b-a3b", {"num_experts_per_tok": 129}, "1 to 128"),
                ("mixtral-8x7b", {"num_local_experts": 0}, "num_local_experts"),
                ("smollm2-135m", {"sliding_window": 64}, "no sliding-window attention"),
                ("smollm2-135m", {"architectures": ["Qwen2MoeForCausalLM"]}, "Qwen2MoeForCausalLM")):
            with self.subTest(f"{name} {changes}"):
                config = json.loads((self.shape(name) / "config.json").read_text()) | changes
                path = folder / "config.json"
                path.write_text(json.dumps(config))
                self.assertIn(expected, self.refused("inspect", path, "--random-weights"))


if __name__ == "__main__":
    unittest.main()
