"""The console's files, and the microscope behind it."""
import json
import math
import pathlib
import shutil
import signal
import tempfile
import threading
import time
import unittest

import harness


class Page(harness.ServerCase):
    ARGS = ("--api-key", "secret")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = cls.server.client(api_key="secret")

    def test_files_need_no_key_and_are_cached(self):
        status, headers, body = self.server.request("GET", "/")
        self.assertEqual(status, 200)
        self.assertIn("text/html", headers["Content-Type"])
        self.assertIn("default-src 'none'", headers["Content-Security-Policy"])
        self.assertNotIn("unsafe", headers["Content-Security-Policy"])
        self.assertEqual(headers["X-Content-Type-Options"], "nosniff")
        self.assertIn(b"/console/main.js", body)
        status, other, script = self.server.request("GET", "/console/main.js")
        self.assertEqual((status, other["Content-Type"]), (200, "text/javascript; charset=utf-8"))
        for tag in (headers["ETag"], f'W/"x", {headers["ETag"]}'):
            status, again, body = self.server.request("GET", "/", headers={"If-None-Match": tag})
            self.assertEqual((status, body), (304, b""))
            self.assertEqual(again["ETag"], headers["ETag"])
        status, _, _ = self.server.request("GET", "/", headers={"If-None-Match": '"other"'})
        self.assertEqual(status, 200)
        status, head, body = self.server.request("HEAD", "/console/main.js")
        self.assertEqual((status, body), (200, b""))
        self.assertEqual(int(head["Content-Length"]), len(script))
        self.assertEqual(self.server.request("POST", "/", "{}")[0], 405)
        self.assertEqual(self.server.request("GET", "/console/none.js")[0], 401)  # no route, no news
        key = {"Authorization": "Bearer secret"}
        self.assertEqual(self.server.request("GET", "/console/none.js", headers=key)[0], 404)

    def test_data_needs_the_key(self):
        for path in ("/v1/octet/baseline", "/v1/octet/microscope"):
            self.assertEqual(self.server.request("POST", path, {})[0], 401)
        key = {"Authorization": "Bearer secret"}
        status, _, body = self.server.request("GET", "/v1/octet/baseline", headers=key)
        self.assertEqual((status, json.loads(body)["baseline"]), (200, None))
        status, _, body = self.server.request("POST", "/v1/octet/microscope", {}, headers=key)
        self.assertEqual(status, 404)
        self.assertIn("--baseline", json.loads(body)["error"]["message"])


class Microscope(harness.ServerCase):
    PROMPT = "def fibonacci(n):\n"

    @classmethod
    def setUpClass(cls):
        cls.ARGS = ("--baseline", harness.MODEL, "--microscope-tokens", "512")
        super().setUpClass()

    def post(self, path, **body):
        status, _, answer = self.server.request("POST", f"/v1/octet/{path}", body)
        return status, json.loads(answer)

    def view(self, **body):
        status, answer = self.post("microscope", **body)
        self.assertEqual(status, 200, answer)
        return answer

    def test_describes_itself(self):
        _, _, body = self.server.request("GET", "/v1/octet/baseline")
        self.assertEqual(json.loads(body), {"object": "octet.baseline", "baseline": "octet-demo",
                                            "max_tokens": 512, "parts": True})
        self.assertIn("octet-demo is the baseline", self.server.log())

    def test_agrees_with_what_is_served(self):
        answer = self.client.completions.create(model="octet-demo", prompt=self.PROMPT, temperature=0,
                                                max_tokens=24, logprobs=0)
        choice = answer.choices[0]
        view = self.view(prompt=self.PROMPT, completion=choice.text)
        self.assertEqual(view["prompt_tokens"], answer.usage.prompt_tokens)
        tokens = view["tokens"][view["prompt_tokens"] - 1:]
        # The same tokens, if the text is cut as it was made; then the served model's
        # log-probabilities are those that it answered with.
        self.assertEqual("".join(token["text"] for token in tokens), choice.text)
        if [token["token"] for token in tokens] == choice.logprobs.tokens:
            for token, logprob in zip(tokens, choice.logprobs.token_logprobs):
                self.assertAlmostEqual(token["logprob"], logprob, delta=1e-4)
        self.assertEqual([token["index"] for token in view["tokens"]],
                         list(range(1, len(view["tokens"]) + 1)))
        self.assertTrue(all(token["kl"] >= 0 for token in tokens))
        self.assertGreater(view["mean_kl"], 0)
        self.assertAlmostEqual(view["mean_kl"], sum(t["kl"] for t in tokens) / len(tokens))
        for token in tokens:
            for one in token["alternatives"]:
                self.assertLessEqual(one["logprob"], 0)
                self.assertLessEqual(one["baseline_logprob"], 0)

    def test_parts_of_one_position(self):
        view = self.view(tokens=[5, 6, 7, 8, 9, 10], position=4)
        parts = view["parts"]
        layers = max(part["layer"] for part in parts) + 1
        self.assertEqual(len(parts), 2 * layers + 1)
        self.assertEqual([part["part"] for part in parts],
                         ["embedding"] + ["attention", "mlp"] * layers)
        self.assertAlmostEqual(sum(part["share"] for part in parts), 1, places=6)
        self.assertTrue(all(math.isfinite(part["difference"]) for part in parts))

    def test_the_baseline_goes_on(self):
        status, answer = self.post("baseline", prompt=self.PROMPT, max_tokens=12)
        self.assertEqual(status, 200)
        self.assertLessEqual(len(answer["token_ids"]), 12)
        self.assertGreater(len(answer["text"]), 0)
        self.assertIn(answer["finish_reason"], ("stop", "length"))
        again = self.post("baseline", prompt=self.PROMPT, max_tokens=12)[1]
        self.assertEqual(answer, again)

    def test_bad_requests(self):
        long = list(range(5, 105)) * 6
        for path, body, field in (
                ("microscope", {}, "tokens"), ("microscope", {"tokens": long}, "tokens"),
                ("microscope", {"prompt": "x " * 5000}, "prompt"),
                ("microscope", {"prompt": "x", "completion": "y " * 5000}, "completion"),
                ("microscope", {"tokens": [5, 6], "position": 2}, "position"),
                ("baseline", {"tokens": [-1]}, "tokens"),
                ("baseline", {"tokens": [5], "max_tokens": 0}, "max_tokens")):
            status, answer = self.post(path, **body)
            self.assertEqual((status, answer["error"]["param"]), (400, field), answer)
        status, _, _ = self.server.request("POST", "/v1/octet/microscope", "{")
        self.assertEqual(status, 400)
        status, headers, _ = self.server.request("GET", "/v1/octet/microscope")
        self.assertEqual((status, headers["Allow"]), (405, "POST, OPTIONS"))

    def test_one_at_a_time_and_bounded(self):
        """Requests wait for one another; too many are told so, and none holds up /health."""
        body = {"tokens": list(range(5, 105)) * 5, "max_tokens": 1}
        results = []

        def ask():
            results.append(self.server.request("POST", "/v1/octet/microscope", body)[0])
        threads = [threading.Thread(target=ask) for _ in range(24)]
        for thread in threads:
            thread.start()
        self.assertTrue(self.server.healthy_within(2))
        for thread in threads:
            thread.join()
        self.assertEqual(set(results) - {200, 503}, set())
        self.assertGreaterEqual(results.count(200), 8)

    def test_a_client_that_goes(self):
        request = json.dumps({"tokens": [5] * 100, "max_tokens": 400}).encode()
        for _ in range(5):
            with self.server.connect() as connection:
                connection.sendall(b"POST /v1/octet/baseline HTTP/1.1\r\nHost: x\r\n"
                                   b"Content-Length: %d\r\n\r\n" % len(request) + request)
                time.sleep(0.05)
        begin = time.monotonic()
        self.view(tokens=[5, 6, 7])  # behind them
        self.assertLess(time.monotonic() - begin, 5)


class Baselines(unittest.TestCase):
    def test_what_is_no_baseline(self):
        with tempfile.TemporaryDirectory() as folder:
            fp8 = pathlib.Path(folder, "fp8")
            code, _, err = harness.run("quantize", harness.MODEL, "--out", fp8, "--scheme",
                                       "fp8_channel")
            self.assertEqual(code, 0, err)
            other = pathlib.Path(folder, "other")
            shutil.copytree(harness.MODEL, other)
            tokenizer = json.loads((other / "tokenizer.json").read_text())
            vocab = tokenizer["model"]["vocab"]
            first, second = [word for word, at in vocab.items() if at in (300, 301)]
            vocab[first], vocab[second] = vocab[second], vocab[first]
            (other / "tokenizer.json").write_text(json.dumps(tokenizer))
            for baseline, message in ((fp8, "this one is quantized"),
                                      (other, "another tokenizer"),
                                      (pathlib.Path(folder, "nothing"), "nothing")):
                code, _, err = harness.run("serve", harness.MODEL, "--port", "0", "--baseline",
                                           baseline)
                self.assertEqual(code, 2, err)
                self.assertIn(message, err)

    def test_a_signal_while_it_works(self):
        server = harness.Server("--baseline", harness.MODEL, "--shutdown-grace", "0")
        try:
            request = json.dumps({"tokens": [5] * 100, "max_tokens": 1900}).encode()
            with server.connect() as connection:
                connection.sendall(b"POST /v1/octet/baseline HTTP/1.1\r\nHost: x\r\n"
                                   b"Content-Length: %d\r\n\r\n" % len(request) + request)
                time.sleep(0.3)
                begin = time.monotonic()
                self.assertEqual(server.terminate(signal.SIGTERM), 0)
                self.assertLess(time.monotonic() - begin, 10)
        finally:
            server.close()


if __name__ == "__main__":
    unittest.main()
