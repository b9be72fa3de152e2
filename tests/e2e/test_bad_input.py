"""Broken checkpoints and prompts: exit code 2, and a message that says what and where."""
import json
import os
import pathlib
import shutil
import struct
import tempfile
import unittest

import harness


def read(path):
    """(header, data) of a safetensors file."""
    raw = pathlib.Path(path).read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8:8 + size]), raw[8 + size:]


def write(path, header, data):
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def put(path, name, raw):
    """Overwrites the first bytes of a tensor."""
    with open(path, "r+b") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        begin = json.loads(file.read(size))[name]["data_offsets"][0]
        file.seek(8 + size + begin)
        file.write(raw)


NAN, INFINITY = b"\xc0\x7f", b"\x80\x7f"  # in BF16


class BadInput(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.fp8 = os.path.join(cls.folder.name, "fp8")
        code, _, log = harness.run("quantize", harness.MODEL, "--out", cls.fp8)
        assert code == 0, log

    def copy(self, source):
        """A copy whose files may be replaced; links as long as they are not."""
        target = os.path.join(tempfile.mkdtemp(dir=self.folder.name), "model")
        shutil.copytree(source, target)
        return target

    def shard_with(self, model, suffix):
        """The path of a shard, and the name of a tensor in it that ends so."""
        for path in sorted(pathlib.Path(model).glob("*.safetensors")):
            for name in read(path)[0]:
                if name.endswith(suffix):
                    return path, name
        self.fail(f"no tensor ends with {suffix}")

    def refused(self, model, *expected, args=(), prompt=("--prompt", "def")):
        code, out, log = harness.run("generate", model, *prompt, "--max-tokens", 2, *args)
        self.assertEqual(code, 2, out + log)
        for text in expected:
            self.assertIn(text, log)

    def test_good_ones_run(self):
        for model in (harness.MODEL, self.fp8):
            code, _, log = harness.run("generate", model, "--prompt", "def", "--max-tokens", 2)
            self.assertEqual(code, 0, log)

    def test_truncated(self):
        model = self.copy(harness.MODEL)
        path = os.path.join(model, "model-00002-of-00003.safetensors")
        os.truncate(path, os.path.getsize(path) - 1000)
        self.refused(model, "model-00002-of-00003.safetensors")
        os.truncate(path, 5)
        self.refused(model, "model-00002-of-00003.safetensors", "too short")

    def test_header_of_2_to_the_63(self):
        model = self.copy(harness.MODEL)
        path = os.path.join(model, "model-00001-of-00003.safetensors")
        with open(path, "r+b") as file:
            file.write(struct.pack("<Q", 1 << 63))
        self.refused(model, "model-00001-of-00003.safetensors", "9223372036854775808")

    def test_overlap(self):
        model = self.copy(harness.MODEL)
        path = os.path.join(model, "model-00003-of-00003.safetensors")
        header, data = read(path)
        names = sorted((n for n in header if n != "__metadata__"),
                       key=lambda n: header[n]["data_offsets"])
        first, second = next((a, b) for a, b in zip(names, names[1:])
                             if header[a]["shape"] == header[b]["shape"])
        header[second]["data_offsets"] = header[first]["data_offsets"]
        write(path, header, data)
        self.refused(model, "model-00003-of-00003.safetensors", second)

    def test_missing_shard(self):
        model = self.copy(harness.MODEL)
        os.remove(os.path.join(model, "model-00002-of-00003.safetensors"))
        self.refused(model, "missing", "model-00002-of-00003.safetensors")

    def test_scale_of_the_wrong_shape(self):
        model = self.copy(self.fp8)
        path, name = self.shard_with(model, "q_a_proj.weight_scale")
        header, data = read(path)
        header[name]["shape"] = header[name]["shape"][::-1] + [1]
        write(path, header, data)
        self.refused(model, "scale", "q_a_proj")

    def test_ignored_layer_with_fp8_bytes(self):
        model = self.copy(self.fp8)
        path = os.path.join(model, "config.json")
        config = json.loads(pathlib.Path(path).read_text())
        config["quantization_config"]["ignore"].append("re:.*o_proj$")
        pathlib.Path(path).write_text(json.dumps(config))
        self.refused(model, "ignore", "o_proj")

    def test_layer_without_its_scale(self):
        model = self.copy(self.fp8)
        path, name = self.shard_with(model, "o_proj.weight_scale")
        header, data = read(path)
        header[name + "_gone"] = header.pop(name)
        write(path, header, data)
        index = pathlib.Path(model, "model.safetensors.index.json")
        if index.exists():
            index.write_text(index.read_text().replace(f'"{name}"', f'"{name}_gone"'))
        self.refused(model, "no scale", name.removesuffix("_scale"))

    def test_nan_in_weights_is_the_models_fault(self):
        model = self.copy(harness.MODEL)
        put(*self.shard_with(model, "model.norm.weight"), NAN)
        self.refused(model, "NaN", "step 1", "inspect MODEL --scan")
        code, _, log = harness.run("eval", "perplexity", model, "--max-tokens", 64, "--text",
                                   os.path.join(harness.MODEL, "eval_code.txt"))
        self.assertEqual(code, 2, log)
        self.assertIn("inspect MODEL --scan", log)
        self.assertNotIn("internal error", log)

    def test_quantize_says_what_is_not_finite(self):
        model = self.copy(harness.MODEL)
        put(*self.shard_with(model, "embed_tokens.weight"), NAN + INFINITY)
        out = os.path.join(self.folder.name, "broken")
        code, _, log = harness.run("quantize", model, "--out", out)
        self.assertEqual(code, 0, log)
        self.assertIn("'model.embed_tokens.weight' holds 1 NaN and 1 infinite", log)

        put(*self.shard_with(model, "o_proj.weight"), INFINITY)
        code, _, log = harness.run("quantize", model, "--out", out, "--overwrite")
        self.assertEqual(code, 2, log)
        for text in ("o_proj.weight", "0 NaN and 1 infinite", "--allow-nonfinite"):
            self.assertIn(text, log)
        self.refused(model, "o_proj.weight", "0 NaN and 1 infinite",
                     args=("--scheme", "fp8_channel"))
        code, _, log = harness.run("quantize", model, "--out", out, "--overwrite",
                                   "--allow-nonfinite")
        self.assertEqual(code, 0, log)
        self.assertIn("o_proj.weight' holds 0 NaN and 1 infinite", log)

    def test_unknown_architecture(self):
        model = self.copy(harness.MODEL)
        path = pathlib.Path(model, "config.json")
        path.write_text(path.read_text().replace("DeepseekV3ForCausalLM", "MysteryForCausalLM")
                        .replace("deepseek_v3", "mystery"))
        self.refused(model, "MysteryForCausalLM", "config.json")

    def test_prompts(self):
        prompts = os.path.join(self.folder.name, "prompts.json")
        for content, expected in (({"empty": []}, ["no tokens", "empty"]),
                                  ({"long": "word " * 30000}, ["8192", "long"]),
                                  ({"odd": [9999]}, ["9999", "odd"])):
            pathlib.Path(prompts).write_text(json.dumps(content))
            self.refused(harness.MODEL, *expected, prompt=("--prompt-file", prompts))

    def test_json_target_is_refused_before_the_work(self):
        file = os.path.join(self.folder.name, "file")
        pathlib.Path(file).write_text("kept")
        text = os.path.join(harness.MODEL, "eval_code.txt")
        out = os.path.join(self.folder.name, "never")
        for verb in (["generate", harness.MODEL, "--prompt", "def"],
                     ["quantize", harness.MODEL, "--out", out],
                     ["eval", "perplexity", harness.MODEL, "--text", text],
                     ["eval", "compare", harness.MODEL, "--baseline", self.fp8, "--text", text],
                     ["eval", "needle", harness.MODEL, "--text", text],
                     ["inspect", harness.MODEL], ["kernels", harness.MODEL],
                     ["bench", "latency", harness.MODEL]):
            for target in (self.folder.name, os.path.join(file, "result.json")):
                code, shown, log = harness.run(*verb, "--json", target)
                self.assertEqual((code, shown), (2, ""), log)
                self.assertIn(target, log)
        self.assertFalse(os.path.exists(out))
        self.assertEqual(pathlib.Path(file).read_text(), "kept")

    def test_no_model(self):
        self.refused(os.path.join(self.folder.name, "nowhere"), "nowhere")
        code, _, log = harness.run("serve", os.path.join(self.folder.name, "nowhere"),
                                   "--port", 0)
        self.assertEqual(code, 2, log)


if __name__ == "__main__":
    unittest.main()
