"""Scales of an FP8 KV cache: calculated before anybody is served, or by groups of tokens."""
import json
import pathlib
import shutil
import tempfile
import unittest

import harness

PROMPT = "def add(a, b):\n    return a + b\n" * 8


class KvScales(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        """A tiny Llama with random weights and the demo model's tokenizer."""
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.root = pathlib.Path(folder.name)
        cls.model = cls.root / "tiny"
        cls.model.mkdir()
        demo = pathlib.Path(harness.MODEL)
        golden = demo.parents[1] / "tests" / "golden" / "llama_gqa_rope3"
        config = json.loads((golden / "config.json").read_text())
        config |= {"vocab_size": json.loads((demo / "config.json").read_text())["vocab_size"],
                   "max_position_embeddings": 2048}
        config.pop("rope_scaling", None)
        (cls.model / "config.json").write_text(json.dumps(config))
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(demo / file, cls.model)
        cls.text = cls.root / "text.jsonl"
        cls.text.write_text("".join(json.dumps({"text": text}) + "\n" for text in (PROMPT, PROMPT[:90])))

    def serve(self, *args):
        server = harness.Server("--random-weights", "--enable-prompt-tokens-details", *args, model=str(self.model))
        self.addCleanup(server.close)
        return server

    def warmed_up(self, text=None):
        return self.serve("--calculate-kv-scales", "--warmup", text or self.text)

    def complete(self, server):
        status, _, body = server.request("POST", "/v1/completions", {
            "prompt": PROMPT, "max_tokens": 8, "temperature": 0, "ignore_eos": True, "logprobs": 3})
        self.assertEqual(status, 200, body)
        answer = json.loads(body)
        return answer["choices"][0]["logprobs"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    def refused(self, *args, model=None):
        code, out, log = harness.run("serve", model or self.model, "--port", 0, *args)
        self.assertEqual(code, 2, out + log)
        self.assertNotIn("internal error", log)
        return log

    def test_scales_of_a_warm_up_are_in_force(self):
        server = self.warmed_up()
        self.assertIn("KV scales are fixed, one a head: K 0.", server.log())
        self.assertIn("2 samples", server.log())
        self.assertIn("KV scales: warm-up", server.log())
        answer, cached = self.complete(server)
        # What warmed up left no page: those of the server are all of these scales.
        self.assertEqual(cached, 0)
        again, cached = self.complete(server)
        self.assertGreater(cached, 0)
        self.assertEqual(again, answer)
        _, _, metrics = server.request("GET", "/metrics")
        self.assertRegex(metrics.decode(), 'octet_config_info.*kv_scales="warm-up"')
        # The same text, the same scales, the same answer; without them another.
        self.assertEqual(self.complete(self.warmed_up())[0], answer)
        plain = self.serve()
        self.assertIn("KV scales: block groups of 1024", plain.log())
        self.assertNotEqual(self.complete(plain)[0], answer)

    def test_a_flag_of_vllms_is_no_error(self):
        server = self.serve("--calculate-kv-scales")
        self.assertIn("passed over", server.log())
        self.assertIn("KV scales: block groups", server.log())

    def test_scales_by_token_and_head(self):
        plain = self.complete(self.serve())[0]
        for kind, name, attention in (("fp8_per_token_head", "e4m3", "fp8"), ("int8_per_token_head", "i8", "bf16")):
            server = self.serve("--kv-cache-dtype", kind)
            self.assertIn(f"KV cache {name} per token and head (as asked), attention {attention}", server.log())
            self.assertIn("KV scales: tokens and heads", server.log())
            answer, _ = self.complete(server)
            again, cached = self.complete(server)
            self.assertGreater(cached, 0)
            self.assertEqual(again, answer)
            self.assertNotEqual(answer, plain)
        fp8 = ("--random-weights", "--compute", "fp8", "--kv-cache-dtype")
        self.assertIn("--attention", self.refused(*fp8, "int8_per_token_head", "--attention", "fp8"))
        self.assertIn("share a scale", self.refused(*fp8, "fp8_per_token_head", "--kv-group-tokens", 512))
        log = self.refused(*fp8, "fp8_per_token_head", "--calculate-kv-scales", "--warmup", self.text)
        self.assertIn("e4m3 per token and head", log)
        for kind in ("fp8_per_token_head", "int8_per_token_head"):
            log = self.refused("--compute", "fp8", "--kv-cache-dtype", kind, model=harness.MODEL)
            self.assertIn("a latent has no heads", log)
            self.assertIn("int8_per_token_group", log)

    def test_a_latent_in_int8(self):
        server = harness.Server("--kv-cache-dtype", "int8_per_token_group", "--enable-prompt-tokens-details")
        self.addCleanup(server.close)
        self.assertIn("KV cache i8 per token and group (as asked), attention bf16", server.log())
        self.assertIn("KV scales: tokens", server.log())
        answer, _ = self.complete(server)
        again, cached = self.complete(server)
        self.assertGreater(cached, 0)
        self.assertEqual(again, answer)
        log = self.refused("--random-weights", "--compute", "fp8", "--kv-cache-dtype", "int8_per_token_group")
        self.assertIn("int8_per_token_head", log)

    def test_scales_by_dimension_of_a_calibration(self):
        calibration = self.root / "calibration.json"
        code, _, log = harness.run("calibrate", harness.MODEL, "--text", pathlib.Path(harness.MODEL) / "eval_code.txt",
                                   "--samples", 8, "--window", 64, "--out", calibration)
        self.assertEqual(code, 0, log)
        quantize = ("quantize", harness.MODEL, "--calibration-file", calibration, "--kv-scale-granularity")
        answers = []
        for granularity in ("group", "channel"):
            out = self.root / granularity
            code, _, log = harness.run(*quantize, granularity, "--out", out)
            self.assertEqual(code, 0, log)
            server = harness.Server("--enable-prompt-tokens-details", model=str(out))
            self.addCleanup(server.close)
            self.assertIn("KV scales: checkpoint, by dimension", server.log())
            answers.append(self.complete(server)[0])
        self.assertNotEqual(*answers)
        code, _, log = harness.run(*quantize, "head", "--out", self.root / "head")
        self.assertEqual(code, 2, log)
        self.assertIn("a latent has no heads", log)

    def test_what_cannot_be_warmed_up(self):
        calculate = ("--random-weights", "--compute", "fp8", "--calculate-kv-scales", "--warmup")
        self.assertIn("--calculate-kv-scales", self.refused("--random-weights", "--warmup", self.text))
        log = self.refused(*calculate, self.text, "--kv-cache-dtype", "bf16")
        self.assertIn("a cache in bf16", log)
        self.assertIn("token by token", self.refused("--calculate-kv-scales", "--warmup", self.text, "--compute", "fp8",
                                                     model=harness.MODEL))
        for name, text in (("none.txt", None), ("empty.jsonl", ""), ("short.txt", "x")):
            path = self.root / name
            if text is not None:
                path.write_text(text)
            self.assertIn(name, self.refused(*calculate, path))

    def test_groups_of_another_size(self):
        server = self.serve("--kv-group-tokens", 256)
        self.assertIn("KV scales: block groups of 256", server.log())
        fp8 = ("--random-weights", "--compute", "fp8")
        self.assertIn("--block-size", self.refused(*fp8, "--kv-group-tokens", 256, "--block-size", 24))
        self.assertIn("256", self.refused(*fp8, "--kv-group-tokens", 64))
        self.assertIn("--kv-group-tokens", self.refused("--compute", "fp8", "--kv-group-tokens", 512,
                                                        model=harness.MODEL))
        self.assertIn("--kv-group-tokens", self.refused(*fp8, "--kv-group-tokens", 512, "--kv-cache-dtype", "bf16"))


if __name__ == "__main__":
    unittest.main()
