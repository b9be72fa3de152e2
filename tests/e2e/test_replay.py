"""Requests of a log, computed again."""
import json
import os
import pathlib
import shutil
import tempfile
import unittest

import harness

SAMPLING = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 7, "logprobs": -1,
            "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
            "logit_bias": [], "allowed": [], "bad_words": []}


def line(request_id, prompt, output, **fields):
    """A line of the log as docs/SERVING.md has it."""
    sampling = {**SAMPLING, **fields.pop("sampling", {})}
    return {"version": 1, "id": request_id, "path": "/v1/completions", "created": 1, "model": "m",
            "body": {"prompt": "x"}, "prompts": [prompt], "n": 1, "sampling": sampling,
            "generation": {"max_tokens": 8, "min_tokens": 0, "stop_ids": [], "ignore_eos": False},
            "choices": [{"index": 0, "seed": sampling["seed"], "output_ids": output,
                         "finish_reason": "length"}], **fields}


def flip(path, at):
    """Changes one byte of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


class Replay(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.log = os.path.join(self.folder.name, "requests.jsonl")
        self.result = os.path.join(self.folder.name, "result.json")

    def write(self, *lines):
        pathlib.Path(self.log).write_text("".join(json.dumps(one) + "\n" for one in lines))

    def replay(self, *args):
        code, out, err = harness.run("replay", self.log, harness.MODEL, "--compute", "fp8", *args,
                                     "--json", self.result)
        written = os.path.exists(self.result)
        return code, json.loads(pathlib.Path(self.result).read_text()) if written else None, out + err

    def truth(self, prompts, **options):
        """What `octet generate` makes of prompts of ids."""
        path = os.path.join(self.folder.name, "prompts.json")
        out = os.path.join(self.folder.name, "out.json")
        pathlib.Path(path).write_text(json.dumps(prompts))
        flags = [word for key, value in options.items()
                 for word in ("--" + key.replace("_", "-"), value)]
        code, _, err = harness.run("generate", harness.MODEL, "--compute", "fp8", "--prompt-file",
                                   path, "--max-tokens", 8, "--json", out, *flags)
        self.assertEqual(code, 0, err)
        return [one["token_ids"] for one in json.loads(pathlib.Path(out).read_text())]

    def test_equal_and_different(self):
        prompts = [[100, 200, 300], [7, 8, 9, 10]]
        first, second = self.truth(prompts)
        changed = second[:3] + [second[3] + 1] + second[4:]
        self.write(line("a", prompts[0], first), line("b", prompts[1], changed))
        code, result, text = self.replay()
        self.assertEqual(code, 1)
        self.assertEqual([one["equal"] for one in result["replays"]], [True, False])
        self.assertEqual(result["replays"][1]["first_difference"], 3)
        self.assertIn("b choice 0: DIFFERENT at token 3", text)
        self.assertIn("1 of 2 equal", text)
        code, result, _ = self.replay("--id", "a")
        self.assertEqual((code, result["replayed"], result["equal"]), (0, 1, 1))

    def test_sampled_tokens_too(self):
        prompt = [100, 200, 300]
        output, = self.truth([prompt], temperature=1.5, seed=11)
        self.assertNotEqual(output, self.truth([prompt])[0])
        self.write(line("a", prompt, output, sampling={"temperature": 1.5, "seed": 11}))
        self.assertEqual(self.replay()[0], 0)
        self.write(line("a", prompt, output, sampling={"temperature": 1.5, "seed": 12}))
        self.assertEqual(self.replay()[0], 1)

    def test_against_a_baseline(self):
        prompt = [100, 200, 300]
        output, = self.truth([prompt])
        self.write(line("a", prompt, output))
        code, result, text = self.replay("--baseline", harness.MODEL, "--baseline-compute", "fp32")
        self.assertEqual(code, 0, text)
        places = result["replays"][0]["baseline"]["places"]
        self.assertEqual([place["token"] for place in places], output)
        self.assertGreater(max(place["kl"] for place in places), 0)
        self.assertEqual([place["best"] for place in places], output)  # greedy
        code, result, _ = self.replay("--baseline", harness.MODEL, "--baseline-compute", "fp8")
        self.assertEqual(max(place["kl"] for place in result["replays"][0]["baseline"]["places"]), 0)

    def test_what_a_server_logged(self):
        server = harness.Server("--request-log", self.log)
        self.addCleanup(server.close)
        client = server.client()
        asked = [dict(temperature=0), dict(temperature=1.3, seed=5, top_p=0.9, n=2),
                 dict(temperature=0.8, presence_penalty=1, frequency_penalty=0.5),
                 dict(temperature=1, logit_bias={"100": 5}, stop=["e"]),
                 dict(temperature=1, extra_body={"top_k": 7, "min_p": 0.01, "min_tokens": 4,
                                                 "repetition_penalty": 1.2})]
        for options in asked:
            client.completions.create(model="octet-demo", prompt=["def f(x):", "import os"],
                                      max_tokens=12, **options)
        stream = client.completions.create(model="octet-demo", prompt="class A:", max_tokens=3000,
                                           stream=True, extra_body={"ignore_eos": True})
        for number, _ in enumerate(stream):
            if number == 5:
                break
        stream.close()
        self.assertEqual(server.terminate(), 0)
        code, result, text = self.replay()
        self.assertEqual(code, 0, text)
        self.assertEqual(result["replayed"], result["equal"])
        self.assertGreaterEqual(result["replayed"], 12)

    def test_what_cannot_be_replayed_is_said(self):
        self.write(line("a", [5, 6], [1, 2],
                        body={"response_format": {"type": "json_object"}}))
        code, result, text = self.replay()
        self.assertEqual((code, result["replayed"]), (0, 0))
        self.assertEqual(result["skipped"][0]["id"], "a")
        self.assertIn("response_format", text)

    def test_a_log_that_was_cut(self):
        prompt = [100, 200, 300]
        output, = self.truth([prompt])
        self.write(line("a", prompt, output), line("b", prompt, output))
        whole = pathlib.Path(self.log).read_text()
        first = whole.index("\n") + 1
        for end in (first + 1, first + 200, len(whole) - 2):
            pathlib.Path(self.log).write_text(whole[:end])
            code, result, text = self.replay()
            self.assertEqual((code, result["replayed"]), (0, 1), text)
            self.assertIn("cut while", text)
        for end in (first, len(whole) - 1):  # nothing of it, and all but its end
            pathlib.Path(self.log).write_text(whole[:end])
            code, result, text = self.replay()
            self.assertEqual((code, result["replayed"]), (0, 1 if end == first else 2), text)
            self.assertNotIn("cut while", text)
        pathlib.Path(self.log).write_text(whole[:first - 20] + "\n" + whole[first:])
        code, result, text = self.replay()  # a server that began again wrote on behind it
        self.assertEqual((code, result["replayed"]), (0, 1), text)
        self.assertIn("cut while", text)

    def test_another_model_is_noticed(self):
        server = harness.Server("--request-log", self.log)
        self.addCleanup(server.close)
        server.client().completions.create(model="octet-demo", prompt="a", max_tokens=2, temperature=0)
        self.assertEqual(server.terminate(), 0)
        code, result, text = self.replay()
        self.assertEqual((code, result["other_model"]), (0, False), text)
        logged = json.loads(pathlib.Path(self.log).read_text())
        self.assertRegex(logged["model_hash"], "^[0-9a-f]{16}$")
        copy = os.path.join(self.folder.name, "copy")
        shutil.copytree(harness.MODEL, copy)
        shard = sorted(pathlib.Path(copy).glob("*.safetensors"))[0]
        middle = shard.stat().st_size * 2 // 5 + 3
        for change, other in ((lambda: None, False), (lambda: flip(shard, middle), True)):
            change()
            code, out, err = harness.run("replay", self.log, copy, "--compute", "fp8", "--json",
                                         self.result)
            self.assertEqual(json.loads(pathlib.Path(self.result).read_text())["other_model"], other)
        self.write({**logged, "model_hash": "0" * 16})
        code, result, text = self.replay()
        self.assertTrue(result["other_model"])

    def test_bad_lines(self):
        good = line("a", [5, 6], [1, 2])
        for change, words in (
                ({"version": 2}, "version"), ({"id": 5}, "id"), ({"choices": None}, "choices"),
                ({"prompts": [["x"]]}, "prompts"), ({"n": 0}, "$.n"), ({"sampling": {}}, "sampling"),
                ({"choices": [{"index": 1, "seed": 1, "output_ids": [1], "finish_reason": "x"}]},
                 "index"),
                ({"choices": [{"index": 0, "seed": "x", "output_ids": [1], "finish_reason": "x"}]},
                 "seed"),
                ({"prompts": [[10 ** 7]]}, "10000000"), ({"prompts": [[-1]]}, "-1")):
            with self.subTest(change):
                self.write(good, {**good, **change})
                code, result, text = self.replay()
                self.assertEqual((code, result), (2, None), text)
                self.assertIn(words, text)
                self.assertNotIn("internal error", text)
        pathlib.Path(self.log).write_text("")
        self.assertIn("no request", self.replay()[2])
        self.write(good)
        self.assertIn("no such request", self.replay("--id", "zzz")[2])
        self.assertEqual(harness.run("replay", "/no/such/log", harness.MODEL)[0], 2)
