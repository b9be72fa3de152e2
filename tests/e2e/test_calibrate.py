"""octet calibrate: a file that quantize takes, a run that goes on where it was stopped, and what is
wrong with samples and with calibrations."""
import json
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest

import harness


def text_of(words):
    return " ".join(f"word{i % 97} = {i}" for i in range(words))


class Calibrate(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.text = self.write("it.txt", text_of(400))
        self.out = self.root / "calibration.json"

    def write(self, name, content):
        path = self.root / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def calibrate(self, text, *args, out=None, code=0, model=None):
        done, _, log = harness.run("calibrate", model or harness.MODEL, "--text", text, "--out",
                                   out or self.out, "--samples", 5, "--window", 48, *args)
        self.assertEqual(done, code, log)
        self.assertNotIn("internal error", log)
        return log

    def test_says_what_it_saw(self):
        page = self.root / "page.html"
        log = self.calibrate(self.text, "--html", page)
        self.assertIn("5 calibration samples are few", log)
        self.assertIn("input of self_attn.o_proj", page.read_text())
        self.assertIn("latent", page.read_text())
        self.assertNotIn("http", page.read_text())
        found = json.loads(self.out.read_text())
        self.assertEqual((found["samples"], found["tokens"]), (5, 5 * 48))
        self.assertRegex(found["model_hash"], "^[0-9a-f]{16}$")
        q = found["inputs"]["model.layers.0.self_attn.q_proj"] if (
            "model.layers.0.self_attn.q_proj" in found["inputs"]) else next(
                iter(found["inputs"].values()))
        self.assertLessEqual(q["p99_9"], q["p99_99"])
        self.assertLessEqual(q["p99_99"], max(q["max"], -q["min"]))
        self.assertEqual(q["histogram"]["count"], 5 * 48 * len(q["channel_absmax"]))
        latent = found["caches"]["model.layers.0.self_attn"]["latent"]
        self.assertTrue(all(group["max"] > 0 for group in latent.values()))
        self.assertFalse((self.root / "calibration.json.part").exists())
        log = self.calibrate(self.text, code=2)  # it exists
        self.assertIn("calibration.json", log)

    def test_goes_on_where_it_was_stopped(self):
        whole = self.root / "whole.json"
        args = ("--samples", 12, "--save-every", 1)
        command = [harness.BINARY, "calibrate", harness.MODEL, "--text", str(self.text), "--window",
                   "48", "--out"]
        done, _, log = harness.run(*command[1:], whole, *args)
        self.assertEqual(done, 0, log)
        part = self.root / "calibration.json.part"
        with subprocess.Popen([*command, str(self.out), *map(str, args)],
                              stderr=subprocess.PIPE) as process:
            deadline = time.monotonic() + 60
            while not part.exists() and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.005)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
        if process.returncode == 130:  # else it was done before
            self.assertFalse(self.out.exists())
            left = json.loads(part.read_text())
            self.assertLess(left["samples"], left["samples_in_all"])
            log = self.refused_by_quantize(part)
            self.assertIn("interrupted", log)
            done, _, log = harness.run(*command[1:], self.out, *args)
            self.assertEqual(done, 0, log)
            self.assertIn(f"goes on after {left['samples']} of", log)
        self.assertEqual(json.loads(self.out.read_text()), json.loads(whole.read_text()))
        self.assertFalse(part.exists())

    def test_takes_lines_of_json(self):
        lines = [{"text": text_of(9)}, {"messages": [{"role": "user", "content": "Hello"}]},
                 {"text": 7}, {"other": "x"}]
        broken = "{\"text\": \n" + "\n".join(map(json.dumps, lines)) + "\n\n[1]\n"
        log = self.calibrate(self.write("it.jsonl", broken))
        found = json.loads(self.out.read_text())
        # The demo model has no chat template, so its messages are a line that cannot be used.
        self.assertEqual(found["samples"], 1)
        self.assertIn("5 lines are passed over, 1 are used", log)
        self.assertIn("it.jsonl:1", log)
        log = self.calibrate(self.write("long.jsonl", json.dumps({"text": text_of(99)})),
                             out=self.root / "long.json")
        self.assertIn("1 samples are longer than 48 tokens", log)

    def test_a_model_writes_its_own_samples(self):
        self.calibrate("model")
        first = json.loads(self.out.read_text())
        self.assertEqual(first["tokens"], 5 * 48)
        self.calibrate("model", "--overwrite", "--threads", 1)
        self.assertEqual(json.loads(self.out.read_text()), first)

    def test_refuses_what_is_no_text(self):
        for name, data in {"empty.txt": b"", "short.txt": b"x", "binary.txt": bytes(range(256)) * 9,
                           "empty.jsonl": b"", "blank.jsonl": b"\n\n \n",
                           "binary.jsonl": bytes(range(256)) * 9, "array.jsonl": b"[1]\n"}.items():
            log = self.calibrate(self.write(name, data), code=2)
            self.assertIn(name, log)
        self.calibrate(self.root / "none.txt", code=2)
        self.assertEqual([p.name for p in self.root.iterdir() if "calibration" in p.name], [])

    def refused_by_quantize(self, calibration, *args, model=None):
        out = self.root / "none"
        done, _, log = harness.run("quantize", model or harness.MODEL, "--out", out, "--calibration-file",
                                   calibration, *args)
        self.assertEqual(done, 2, log)
        self.assertNotIn("internal error", log)
        self.assertFalse(out.exists())
        return log

    def test_quantize_refuses_choices_of_scales_without_it(self):
        for flags in (["--kv-scale-method", "mse"], ["--kv-scale-granularity", "head"],
                      ["--input-scale-method", "p99.9"], ["--any-calibration"]):
            out = self.root / "fp8"
            done, _, log = harness.run("quantize", harness.MODEL, "--out", out, *flags)
            self.assertEqual(done, 2, log)
            self.assertIn(flags[0], log)
            self.assertIn("--calibration-file", log)
            self.assertFalse(out.exists())

    def config(self, model):
        return json.loads((pathlib.Path(model) / "config.json").read_text())

    def findings(self, model, *flags):
        _, out, log = harness.run("inspect", model, "--no-scan", "--json", "-", *flags)
        self.assertNotEqual(out, "", log)
        return {f["check"]: (f["severity"], f["what"]) for f in json.loads(out)["findings"]}

    def test_what_was_measured_is_recorded_and_compared_with_what_is_served(self):
        # As many tokens as every expert needs to be chosen once.
        done, _, log = harness.run("calibrate", harness.MODEL, "--text",
                                   pathlib.Path(harness.MODEL) / "eval_code.txt", "--out", self.out,
                                   "--samples", 60, "--window", 48)
        self.assertEqual(done, 0, log)
        model = self.root / "static"
        done, _, log = harness.run("quantize", harness.MODEL, "--out", model, "--scheme",
                                   "fp8_tensor_static", "--calibration-file", self.out)
        self.assertEqual(done, 0, log)
        source = self.config(harness.MODEL)
        record = self.config(model)["octet"]["calibration"]
        seen = json.loads(self.out.read_text())
        self.assertEqual({key: record[key] for key in ("for", "longest", "samples", "tokens")},
                         {"for": ["inputs"], "longest": 48, "samples": seen["samples"],
                          "tokens": seen["tokens"]})
        for key, value in record["positions"].items():
            self.assertEqual(value, source[key])

        self.assertEqual(self.findings(model, "--max-model-len", 48), {})
        found = self.findings(model)
        self.assertEqual(list(found), ["calibration_length"])
        self.assertIn(f"sequences of up to {source['max_position_embeddings']} are served",
                      found["calibration_length"][1])
        found = self.findings(model, "--max-model-len", 48, "--rope-theta", 12345)
        self.assertEqual(list(found), ["calibration_rope"])
        self.assertIn("base 12345 is served", found["calibration_rope"][1])
        self.assertEqual(self.findings(model, "--compute", "bf16", "--rope-theta", 12345), {})

        server = harness.Server(model=str(model))
        self.addCleanup(server.close)
        self.assertIn("samples of at most 48 tokens, and sequences of up to", server.log())

        changed = {**self.config(model), "rope_theta": 54321}
        (model / "config.json").write_text(json.dumps(changed))
        found = self.findings(model, "--max-model-len", 48, "--twin", harness.MODEL)
        self.assertEqual(found["twin_rope"][0], "wrong")
        self.assertIn("RoPE", found["twin_rope"][1])

    def test_compensated_rounding_is_recorded_too(self):
        model = self.root / "compensated"
        done, _, log = harness.run("quantize", harness.MODEL, "--out", model, "--rounding",
                                   "compensated", "--calibration", self.write("c.txt", text_of(2500)),
                                   "--calibration-tokens", 1024)
        self.assertEqual(done, 0, log)
        record = self.config(model)["octet"]["calibration"]
        self.assertEqual((record["for"], record["tokens"]), (["rounding"], 1024))
        self.assertEqual(self.findings(model), {})
        self.assertIn("calibration_rope", self.findings(model, "--rope-theta", 12345))

    def test_scales_that_are_delayed(self):
        dense = harness.tiny_llama(self.root / "tiny")  # no expert that 5 samples do not see
        self.calibrate(self.text, model=dense)
        found = json.loads(self.out.read_text())
        history = next(iter(found["inputs"].values()))["amax_history"]
        self.assertEqual(len(history), 5)  # of each sample
        quantize = ("quantize", dense, "--scheme", "fp8_tensor_static", "--calibration-file", self.out,
                    "--overwrite", "--out", self.root / "fp8")
        for flags in (["--amax-history-len", 2], ["--amax-compute-algo", "most_recent"], ["--scale-margin", 1]):
            done, _, log = harness.run(*quantize, "--input-scale-method", "delayed", "--kv-scale-method", "delayed",
                                       *flags)
            self.assertEqual(done, 0, log)
            done, _, log = harness.run(*quantize, *flags)
            self.assertEqual(done, 2, log)
            self.assertIn(flags[0], log)
        first = next(iter(found["inputs"].values()))
        first["amax_history"][0] = -1
        self.assertIn("amax_history", self.refused_by_quantize(self.write("o.json", json.dumps(found))))
        for part in (*found["inputs"].values(),):
            part.pop("amax_history")
        log = self.refused_by_quantize(self.write("old.json", json.dumps(found)), "--scheme", "fp8_tensor_static",
                                       "--input-scale-method", "delayed", model=dense)
        self.assertIn("amax_history", log)

    def test_quantize_takes_it_and_refuses_others(self):
        self.calibrate(self.text)
        good = json.loads(self.out.read_text())
        self.assertEqual((good["longest"], good["positions"]["max_position_embeddings"]),
                         (48, self.config(harness.MODEL)["max_position_embeddings"]))
        done, _, log = harness.run("quantize", harness.MODEL, "--out", self.root / "ok",
                                   "--calibration-file", self.out)
        self.assertEqual(done, 0, log)
        # Scales of a latent are chosen token by token, and those of inputs by this scheme: nothing
        # in the checkpoint comes from the calibration.
        self.assertNotIn("octet", self.config(self.root / "ok"))
        for change in ({"model_hash": "0" * 16}, {"octet_calibration": 2}, {"inputs": []},
                       {"samples": "5"}, {"caches": None}):
            log = self.refused_by_quantize(self.write("other.json", json.dumps({**good, **change})))
            self.assertIn("other model" if "model_hash" in change else "other.json", log)
        for text in ("", "{", "[]", "{}", "\0"):
            self.assertIn("broken.json", self.refused_by_quantize(self.write("broken.json", text)))
        first = next(iter(good["inputs"].values()))
        first["histogram"]["buckets"][0] = -1
        self.assertIn("buckets", self.refused_by_quantize(self.write("o.json", json.dumps(good))))


if __name__ == "__main__":
    unittest.main()
