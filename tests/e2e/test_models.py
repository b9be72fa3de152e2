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


if __name__ == "__main__":
    unittest.main()
