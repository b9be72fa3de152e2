"""What MODEL may be, and how it is quantized when it is loaded. What is broken is said and ends with 2,
whichever verb meets it."""
import json
import pathlib
import tempfile
import unittest

import harness


def corpus():
    source = pathlib.Path(harness.MODEL).parent.parent
    return (source / "tests/fuzz/corpus/gguf/llama.gguf").read_bytes()


class BrokenGguf(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def write(self, data, name="m.gguf"):
        path = self.root / name
        path.write_bytes(data)
        return path

    def assert_refused(self, *args):
        code, out, err = harness.run(*args)
        self.assertEqual(code, 2, f"{args}: {out}{err}")
        self.assertIn("octet: ", err)
        self.assertNotIn("internal error", err)
        return err

    def test_every_verb_refuses_a_file_that_is_cut_off(self):
        whole = corpus()
        for length in (1, 23, 24, 100, 400, 700, len(whole) - 200):
            path = self.write(whole[:length])
            err = self.assert_refused("inspect", path)
            self.assertIn("m.gguf", err)
        for verb in (["generate", path, "--prompt", "x"], ["serve", path, "--port", "0"],
                     ["eval", "perplexity", path, "--text", path],
                     ["quantize", path, "--out", self.root / "out"],
                     ["convert", path, "--out", self.root / "out"], ["kernels", path],
                     ["bench", "latency", path]):
            self.assert_refused(*verb)
        self.assertEqual([p.name for p in self.root.iterdir()], ["m.gguf"])

    def test_a_model_that_is_not_whole_names_what_it_lacks(self):
        # The corpus' file has an embedding and half an attention.
        err = self.assert_refused("convert", self.write(corpus()), "--out", self.root / "out")
        self.assertIn("lacks a tensor", err)
        self.assertFalse((self.root / "out").exists())

    def test_a_file_by_another_name_is_known_by_its_first_bytes(self):
        err = self.assert_refused("inspect", self.write(corpus()[:40], "model.dat"))
        self.assertIn("model.dat", err)

    def test_counts_beyond_the_file(self):
        whole = corpus()
        for at in (8, 16):
            for value in (2**63, 2**64 - 1, 2**32, 10**6):
                path = self.write(whole[:at] + value.to_bytes(8, "little") + whole[at + 8:])
                self.assert_refused("inspect", path)


class Quantization(unittest.TestCase):
    def generate(self, *args):
        code, out, err = harness.run("generate", harness.MODEL, "--prompt", "def f(x):",
                                     "--max-tokens", "8", "--logprobs", "2", "--json", "-", *args)
        self.assertEqual(code, 0, err)
        return json.loads(out)

    def test_the_name_that_others_use_means_the_same(self):
        self.assertEqual(self.generate("--quantization", "fp8"),
                         self.generate("--scheme", "fp8_channel"))
        self.assertEqual(self.generate("--quantization", "fp8_block"),
                         self.generate("--scheme", "fp8_block"))
        self.assertNotEqual(self.generate("--quantization", "fp8"), self.generate())

    def test_two_wishes_at_once_are_refused(self):
        for extra in (["--scheme", "fp8_block"], ["--compute", "bf16"]):
            code, _, err = harness.run("generate", harness.MODEL, "--prompt", "x", "--quantization",
                                       "fp8", *extra)
            self.assertEqual(code, 2, err)


class RecordedArithmetic(unittest.TestCase):
    """What `octet quantize --attention` writes into config.json is what every verb takes, unless a
    flag says otherwise."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.root = pathlib.Path(folder.name)
        cls.plain, cls.recorded = cls.root / "plain", cls.root / "recorded"
        for out, flags in ((cls.plain, ()), (cls.recorded, ("--attention", "bf16",
                                                            "--kv-cache-dtype", "fp8"))):
            code, _, err = harness.run("quantize", harness.MODEL, "--out", out, *flags)
            assert code == 0, err

    def config(self, model):
        return json.loads((model / "config.json").read_text())

    def answer(self, model, *flags):
        code, out, err = harness.run("generate", model, "--prompt", "def f(x):", "--max-tokens", "8",
                                     "--logprobs", "2", "--json", "-", *flags)
        self.assertEqual(code, 0, err)
        return json.loads(out)

    def run_as(self, model, *flags):
        code, out, err = harness.run("inspect", model, "--no-scan", "--json", "-", *flags)
        self.assertEqual(code, 0, err)
        return json.loads(out)["run_as"]

    def test_the_file(self):
        self.assertNotIn("octet", self.config(self.plain))
        self.assertEqual(self.config(self.recorded)["octet"],
                         {"attention": "bf16", "kv_cache_dtype": "fp8"})
        rest = self.config(self.recorded)
        del rest["octet"]
        self.assertEqual(rest, self.config(self.plain))

    def test_what_is_recorded_is_what_the_flags_would_do(self):
        asked = ("--attention", "bf16", "--kv-cache-dtype", "fp8")
        self.assertEqual(self.answer(self.recorded), self.answer(self.plain, *asked))
        self.assertNotEqual(self.answer(self.recorded), self.answer(self.plain))

    def test_a_flag_wins(self):
        for flags in (("--attention", "fp8"), ("--attention", "bf16", "--kv-cache-dtype", "bf16"),
                      ("--compute", "bf16")):
            self.assertEqual(self.answer(self.recorded, *flags), self.answer(self.plain, *flags), flags)

    def test_what_is_in_force_is_printed_with_its_origin(self):
        recorded, default, asked = "(recorded in config.json)", "(default)", "(as asked)"
        self.assertEqual(self.run_as(self.recorded),
                         f"fp8, KV cache e4m3 {recorded}, attention bf16 {recorded}")
        self.assertEqual(self.run_as(self.plain),
                         f"fp8, KV cache e4m3 {default}, attention fp8 {default}")
        self.assertEqual(self.run_as(self.recorded, "--attention", "fp8"),
                         f"fp8, KV cache e4m3 {recorded}, attention fp8 {asked}")
        self.assertEqual(self.run_as(self.recorded, "--compute", "bf16"),
                         f"bf16, KV cache bf16 {default}, attention bf16 {default}")
        server = harness.Server(model=str(self.recorded))
        self.addCleanup(server.close)
        self.assertIn(f"attention bf16 {recorded}", server.log())

    def test_a_wrong_value_is_an_error(self):
        model = self.root / "wrong"
        model.mkdir()
        for file in self.recorded.iterdir():
            (model / file.name).symlink_to(file)
        (model / "config.json").unlink()
        for wrong in ("bf16", {"attention": "int4"}, {"attention": ["bf16"]}, {"speed": "high"},
                      {"attention": "fp8", "kv_cache_dtype": "bf16"}):
            (model / "config.json").write_text(json.dumps({**self.config(self.plain), "octet": wrong}))
            for verb in (["inspect"], ["generate", "--prompt", "a"], ["serve", "--port", "0"]):
                code, _, err = harness.run(verb[0], model, *verb[1:])
                self.assertEqual(code, 2, err)
                self.assertIn("$.octet", err)
        code, _, err = harness.run("quantize", harness.MODEL, "--out", self.root / "no", "--attention",
                                   "fp8", "--kv-cache-dtype", "bf16")
        self.assertEqual(code, 2, err)
        self.assertIn("FP8 attention", err)
        self.assertFalse((self.root / "no").exists())


if __name__ == "__main__":
    unittest.main()
