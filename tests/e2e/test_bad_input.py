"""Broken checkpoints and prompts: exit code 2, and a message that says what and where."""
import json
import math
import os
import pathlib
import resource
import shutil
import struct
import tempfile
import unittest

import openai

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

    def prompts(self, ids):
        """A prompt file with one prompt of these ids."""
        path = os.path.join(tempfile.mkdtemp(dir=self.folder.name), "prompts.json")
        pathlib.Path(path).write_text(json.dumps([ids]))
        return path

    def test_scales_that_span_a_batch_are_not_served(self):
        """An answer would depend on the requests beside it."""
        policy = os.path.join(os.path.dirname(harness.MODEL), "..", "scripts", "quality",
                              "channel_tensor.json")
        code, _, log = harness.run("serve", harness.MODEL, "--policy", policy, "--port", 0)
        self.assertEqual(code, 2, log)
        self.assertIn("--allow-batch-dependent-scales", log)
        server = harness.Server("--policy", policy, "--allow-batch-dependent-scales")
        try:
            self.assertIn("depend on what else is in the batch", server.log())
        finally:
            server.close()

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

    def test_a_server_says_once_that_its_model_is_broken(self):
        model = self.copy(harness.MODEL)
        put(*self.shard_with(model, "model.norm.weight"), NAN)
        server = harness.Server(model=model)
        self.addCleanup(server.close)
        client = server.client()
        for _ in range(5):
            with self.assertRaises(openai.InternalServerError) as caught:
                client.completions.create(model=server.name(), prompt="a", max_tokens=2)
            message = caught.exception.body["message"]
            self.assertIn("NaN", message)
            self.assertIn("inspect MODEL --scan", message)
            self.assertNotIn("\n", message)
        told = [line for line in server.log().splitlines() if "NaN" in line]
        self.assertEqual(len(told), 1, told)
        self.assertIn("inspect MODEL --scan", told[0])
        self.assertTrue(server.healthy_within(5))

    def test_the_part_of_the_model_where_it_begins_is_named(self):
        model = self.copy(harness.MODEL)
        put(*self.shard_with(model, "model.layers.3.post_attention_layernorm.weight"), NAN)
        server = harness.Server(model=model)
        self.addCleanup(server.close)
        with self.assertRaises(openai.InternalServerError) as caught:
            server.client().completions.create(model=server.name(), prompt="a b", max_tokens=2)
        self.assertIn("model.layers.3.mlp adds, at token 0", caught.exception.body["message"])
        self.assertIn("model.layers.3.mlp adds", server.log())

    def test_a_nan_logit_that_is_not_the_best_is_no_secret(self):
        model = self.copy(harness.MODEL)
        put(*self.shard_with(model, "lm_head.weight"), NAN)  # of token 0, which greedy never takes
        self.refused(model, "NaN", "step 1", "inspect MODEL --scan")
        self.refused(model, "NaN", "step 1", args=("--temperature", 1, "--top-k", 3))

    def test_calibration_texts(self):
        out = os.path.join(self.folder.name, "calibrated")
        texts = {"empty": b"", "short": b"def f(x):\n", "binary": bytes(range(256)) * 40}
        for name, data in texts.items():
            path = os.path.join(self.folder.name, f"{name}.txt")
            with open(path, "wb") as file:
                file.write(data)
            code, _, log = harness.run("quantize", harness.MODEL, "--out", out, "--rounding",
                                       "compensated", "--calibration", path)
            self.assertEqual(code, 2, name)
            self.assertIn(f"{name}.txt", log)
            self.assertFalse(os.path.exists(out))
        for flags in (["--rounding", "compensated"], ["--calibration", path]):
            code, _, log = harness.run("quantize", harness.MODEL, "--out", out, *flags)
            self.assertEqual(code, 2)
            self.assertIn("--calibration FILE together with --rounding compensated", log)

    def test_quantize_refuses_what_is_not_finite(self):
        out = os.path.join(self.folder.name, "broken")
        # Norms and the embedding are copied, not quantized; broken is broken all the same.
        for name in ("embed_tokens.weight", "model.norm.weight", "input_layernorm.weight",
                     "e_score_correction_bias"):
            model = self.copy(harness.MODEL)
            put(*self.shard_with(model, name), NAN + INFINITY)
            code, _, log = harness.run("quantize", model, "--out", out)
            self.assertEqual(code, 2, log)
            for text in (name, "NaN and", "--allow-nonfinite", "--scan"):
                self.assertIn(text, log)
            self.assertFalse(os.path.exists(out))

        model = self.copy(harness.MODEL)
        put(*self.shard_with(model, "embed_tokens.weight"), NAN + INFINITY)
        code, _, log = harness.run("quantize", model, "--out", out, "--allow-nonfinite")
        self.assertEqual(code, 0, log)
        self.assertIn("'model.embed_tokens.weight' holds 1 NaN and 1 infinite", log)
        # Loaded all the same (only a row that is asked for matters), it ends at the first NaN.
        self.refused(out, "NaN", "inspect MODEL --scan", prompt=("--prompt-file", self.prompts([0])))

        model = self.copy(harness.MODEL)
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

    def test_fp8_config_over_weights_that_are_not(self):
        model = self.copy(harness.MODEL)
        path = pathlib.Path(model, "config.json")
        config = json.loads(path.read_text())
        config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3",
                                         "activation_scheme": "dynamic",
                                         "weight_block_size": [128, 128]}
        path.write_text(json.dumps(config))
        self.refused(model, "no weight of it is", "quantization_config", "BF16", "octet quantize")

    def test_a_config_without_weights(self):
        config = pathlib.Path(harness.MODEL).parent / "configs" / "llama-3.2-1b"
        for verb in (["inspect"], ["kernels"], ["generate", "--prompt", "a"]):
            code, _, log = harness.run(verb[0], config, *verb[1:])
            self.assertEqual(code, 2, log)
            self.assertIn("--random-weights", log)
        self.assertEqual(harness.run("inspect", config, "--random-weights")[0], 0)

    def test_inspect_says_what_is_wrong_and_what_to_do(self):
        code, out, log = harness.run("inspect", self.fp8, "--twin", harness.MODEL, "--json", "-")
        self.assertEqual(code, 0, log)
        result = json.loads(out)
        self.assertEqual([f for f in result["findings"] if f["severity"] == "wrong"], [])
        self.assertLess(max(t["relative_rms"] for t in result["twin"]), 0.03)

        model = self.copy(self.fp8)
        path, name = self.shard_with(model, "o_proj.weight_scale")
        header, data = read(path)
        begin, end = header[name]["data_offsets"]
        scales = struct.unpack(f"<{(end - begin) // 4}f", data[begin:end])
        put(path, name, struct.pack(f"<{len(scales)}f", *(2 * s for s in scales)))
        code, out, log = harness.run("inspect", model, "--twin", harness.MODEL, "--json", "-")
        self.assertEqual(code, 1, log)
        finding, = [f for f in json.loads(out)["findings"] if f["severity"] == "wrong"]
        self.assertEqual(finding["check"], "twin")
        self.assertEqual(finding["where"] + ".weight_scale", name)
        self.assertIn("2.00", finding["what"])
        put(path, name, struct.pack("<f", 1e-39))
        code, out, log = harness.run("inspect", model)
        self.assertEqual(code, 1, log)
        self.assertIn(f"BROKEN: {name}: a scale of", out)
        self.assertIn("quantize the 16-bit one again", out)

    def test_a_twin_that_cannot_be_compared_with(self):
        for value in (b"\x00\x00", NAN):
            twin = self.copy(harness.MODEL)
            path, name = self.shard_with(twin, "layers.0.self_attn.o_proj.weight")
            begin, end = read(path)[0][name]["data_offsets"]
            put(path, name, value * ((end - begin) // 2))
            code, out, log = harness.run("inspect", self.fp8, "--twin", twin)
            self.assertEqual(code, 1, log)
            self.assertIn("o_proj: cannot be compared", out)
            self.assertIn(f"octet inspect {twin}", out)
            self.assertNotIn("nan", out)
            self.assertNotIn("inf %", out)

    def test_a_loop_of_links(self):
        for file in ("config.json", "tokenizer.json", "tokenizer_config.json"):
            model = self.copy(harness.MODEL)
            path = pathlib.Path(model, file)
            path.unlink(missing_ok=True)
            path.symlink_to(file)
            code, _, log = harness.run("generate", model, "--prompt", "a", "--max-tokens", 1)
            self.assertEqual(code, 2, log)
            self.assertIn(file, log)
            self.assertIn("Too many levels", log)

    def test_schemes_that_need_data_are_refused_where_there_is_none(self):
        out = os.path.join(self.folder.name, "static")
        code, _, log = harness.run("quantize", harness.MODEL, "--out", out, "--scheme",
                                   "fp8_tensor_static")
        self.assertEqual(code, 2, log)
        self.assertIn("measured on data", log)
        self.assertFalse(os.path.exists(out))
        self.refused(harness.MODEL, "calibrated", args=("--scheme", "fp8_tensor_static"))

    def test_every_scheme_runs(self):
        for scheme in ("fp8_group", "fp8_tensor", "fp8_w8a16", "mxfp8", "int8"):
            code, _, log = harness.run("generate", harness.MODEL, "--prompt", "def",
                                       "--max-tokens", 2, "--scheme", scheme)
            self.assertEqual(code, 0, scheme + log)

    def test_inspect_counts_every_parameter(self):
        golden = pathlib.Path(harness.MODEL).parents[1] / "tests" / "golden"
        models = [pathlib.Path(harness.MODEL), pathlib.Path(self.fp8)]
        models += [path.parent for path in sorted(golden.glob("*/model*.safetensors"))]
        for model in sorted(set(models)):
            code, out, log = harness.run("inspect", model, "--no-scan", "--json", "-")
            self.assertEqual(code, 0, log)
            result = json.loads(out)
            if any(t["name"].endswith(("qweight", "weight_packed")) for t in result["tensors"]):
                continue  # several numbers a word
            layers = json.loads((model / "config.json").read_text())["num_hidden_layers"]
            total = 0
            for tensor in result["tensors"]:
                name = tensor["name"]
                if f"layers.{layers}." in name or name.endswith(("_scale", "_scale_inv")):
                    continue  # multi-token prediction, which is not loaded; scales
                total += math.prod(tensor["shape"])
            self.assertEqual(result["parameters"], total, model.name)

    def test_unknown_architecture(self):
        model = self.copy(harness.MODEL)
        path = pathlib.Path(model, "config.json")
        path.write_text(path.read_text().replace("DeepseekV3ForCausalLM", "MysteryForCausalLM")
                        .replace("deepseek_v3", "mystery"))
        self.refused(model, "MysteryForCausalLM", "config.json")

    def test_prompts(self):
        prompts = os.path.join(self.folder.name, "prompts.json")
        for content, expected in (({"empty": []}, ["no tokens", "empty", "one token id or more"]),
                                  ({"long": "word " * 30000}, ["8192", "long"]),
                                  ({"huge": "word " * 5000000}, ["25000000 bytes", "huge"]),
                                  ({"odd": [9999]}, ["9999", "odd"])):
            pathlib.Path(prompts).write_text(json.dumps(content))
            self.refused(harness.MODEL, *expected, prompt=("--prompt-file", prompts))

    def test_an_overlong_prompt_costs_nothing(self):
        prompts = os.path.join(self.folder.name, "long.json")
        pathlib.Path(prompts).write_text(json.dumps(["a" * (32 << 20), "word " * 100000]))
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.refused(harness.MODEL, "longer than the model", prompt=("--prompt-file", prompts))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.assertLess(after.ru_utime - before.ru_utime, 5)

    def test_options(self):
        generate = ["generate", harness.MODEL, "--max-tokens", 1]
        for args, expected in (
                (["--prompt", b"ab\xffc"], ["UTF-8", "--prompt, byte 2", "0xFF"]),
                (["--prompt", "a", "--prompt", "b"], ["--prompt", "more than once"]),
                (["--prompt", "a", "--top-p", "0"], ["--top-p", "above 0 and at most 1"]),
                (["--prompt", "a", "--top-p", "nan"], ["--top-p", "found:    nan"]),
                (["--prompt", "a", "--temperature", "1e308"], ["0 to 1000000"]),
                (["--prompt", "a", "--compute", "fp8", "--attention", "fp8", "--kv-cache-dtype",
                  "bf16"], ["--attention", "bf16", "fp8_e4m3"]),
                (["--prompt", "a", "--compute", "bf16", "--attention", "fp8"],
                 ["--attention", "--compute"]),
                (["--prompt", "a", "--kv-scale", "unit"], ["--kv-scale", "FP8 latent"]),
                (["--prompt", "a", "--scheme", "fp8_block", "--compute", "bf16"],
                 ["--scheme", "fp8_block with --compute bf16"])):
            code, _, log = harness.run(*generate, *args)
            self.assertEqual(code, 2, (args, log))
            for text in expected + ["accepted:"]:
                self.assertIn(text, log)
        for args in (["--compute", "fp8", "--attention", "fp8"],
                     ["--compute", "fp8", "--kv-cache-dtype", "bf16"],
                     ["--compute", "fp8", "--kv-scale", "unit"]):
            self.assertEqual(harness.run(*generate, "--prompt", "a", *args)[0], 0, args)
        prompts = pathlib.Path(self.folder.name, "latin.json")
        prompts.write_bytes(b'["ab\xffc"]')
        self.refused(harness.MODEL, "UTF-8", "latin.json", prompt=("--prompt-file", prompts))

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
            nowhere = os.path.join(self.folder.name, "nope", "result.json")
            for target in (self.folder.name, os.path.join(file, "result.json"), nowhere):
                code, shown, log = harness.run(*verb, "--json", target)
                self.assertEqual((code, shown), (2, ""), log)
                self.assertIn(target, log)
            self.assertFalse(os.path.exists(os.path.dirname(nowhere)))
        self.assertFalse(os.path.exists(out))
        self.assertEqual(pathlib.Path(file).read_text(), "kept")

    def test_no_model(self):
        self.refused(os.path.join(self.folder.name, "nowhere"), "nowhere")
        code, _, log = harness.run("serve", os.path.join(self.folder.name, "nowhere"),
                                   "--port", 0)
        self.assertEqual(code, 2, log)


if __name__ == "__main__":
    unittest.main()
