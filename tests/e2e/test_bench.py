"""The load tester, against our server and against one that misbehaves."""
import importlib.util
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import time
import unittest

import bench_figures
import harness
from mock_server import TLS, TOKENS, MockServer


def bench(*args, timeout=120):
    """`octet bench serve`: (exit code, its JSON or None, stdout and stderr)."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        code, out, err = harness.run("bench", "serve", *args, "--json", path, timeout=timeout)
        written = os.path.exists(path)
        return code, json.loads(pathlib.Path(path).read_text()) if written else None, out + err


class AgainstOurs(harness.ServerCase):
    LENGTHS = ("--input-len", 20, "--output-len", 8, "--ignore-eos")

    def bench(self, *args):
        code, result, text = bench("--base-url", self.server.url, "--tokenizer", harness.MODEL,
                                   *self.LENGTHS, *args)
        self.assertEqual(code, 0, text)
        return result, text

    def test_the_figures_are_those_of_the_requests(self):
        result, text = self.bench("--num-prompts", 24, "--max-concurrency", 4, "--save-detailed",
                                  "--random-range-ratio", 0.5, "--metadata", "machine=mine")
        self.assertEqual(result["completed"], 24)
        self.assertEqual(result["model_id"], "octet-demo")
        self.assertEqual(result["machine"], "mine")
        self.assertEqual(bench_figures.differences(result), {})
        self.assertLessEqual(result["max_concurrent_requests"], 4)
        for tokens, itls, length in zip(result["output_lens"], result["itls"],
                                        result["input_lens"]):
            self.assertTrue(4 <= tokens <= 12 and 10 <= length <= 30, (tokens, length))
            self.assertLessEqual(len(itls), tokens - 1)
        self.assertIn("Serving Benchmark Result", text)
        self.assert_idle()

    def test_a_seed_is_a_run(self):
        runs = [self.bench("--num-prompts", 4, "--save-detailed", "--seed", seed)[0]
                for seed in (5, 5, 6)]
        self.assertEqual(runs[0]["generated_texts"], runs[1]["generated_texts"])
        self.assertNotEqual(runs[0]["generated_texts"], runs[2]["generated_texts"])

    def test_requests_arrive_at_their_rate(self):
        result, _ = self.bench("--num-prompts", 20, "--request-rate", 20, "--burstiness", "inf",
                               "--save-detailed")
        starts = result["start_times"]
        for i, start in enumerate(starts):
            self.assertLess(abs(start - (i + 1) / 20), 0.5)  # late on a busy machine, not early
            self.assertGreater(start, (i + 1) / 20 - 0.001)
        self.assertEqual(result["request_rate"], 20)

    def test_all_layers_and_a_report(self):
        with tempfile.TemporaryDirectory() as folder:
            page = os.path.join(folder, "report.html")
            result, text = self.bench(
                "--layer", "all", "--num-prompts", 10, "--stress-concurrency", 4,
                "--stress-seconds", 1, "--short", "8:4", "--medium", "32:8", "--long", "64:16",
                "--goodput", "ttft:60000", "--save-detailed", "--html", page)
            html = pathlib.Path(page).read_text()
        layers = {layer["layer"]: layer for layer in result["layers"]}
        self.assertEqual(list(layers), ["baseline", "stress", "mixed"])
        self.assertEqual(layers["baseline"]["steps"][0]["max_concurrent_requests"], 1)
        self.assertEqual([step["max_concurrency"] for step in layers["stress"]["steps"][:3]],
                         [1, 2, 4])
        self.assertIn("P99 TTFT", layers["stress"]["knee"]["rule"])
        groups = layers["mixed"]["steps"][0]["by_group"]
        self.assertEqual({name: part["completed"] for name, part in groups.items()},
                         {"short": 7, "medium": 2, "long": 1})
        self.assertEqual(layers["baseline"]["steps"][0]["request_goodput"],
                         layers["baseline"]["steps"][0]["request_throughput"])
        self.assertIn("knee: concurrency", text)
        self.assertGreaterEqual(html.count("<svg"), 8)
        self.assertIsNone(re.search(r"<script|src=|<link|@import", html))

    def test_files_and_shared_prefixes(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "prompts.jsonl")
            pathlib.Path(path).write_text('{"prompt": "def f():", "output_tokens": 3}\n'
                                          '{"prompt": [100, 200, 300], "output_tokens": 4}\n')
            code, result, text = bench("--base-url", self.server.url, "--dataset-name", "custom",
                                       "--dataset-path", path, "--num-prompts", 2, "--ignore-eos",
                                       "--save-detailed")
            self.assertEqual(code, 0, text)
            self.assertEqual(result["output_lens"], [3, 4])
            self.assertEqual(result["input_lens"][1], 3)
        result, _ = self.bench("--dataset-name", "generated-shared-prefix", "--gsp-num-groups", 2,
                               "--gsp-prompts-per-group", 3, "--gsp-system-prompt-len", 40,
                               "--gsp-question-len", 5)
        self.assertEqual((result["completed"], result["total_input_tokens"]), (6, 6 * 45))

    def test_results_are_saved_by_vllms_names(self):
        with tempfile.TemporaryDirectory() as folder:
            self.bench("--num-prompts", 2, "--save-result", "--result-dir", folder)
            name, = os.listdir(folder)
            self.assertRegex(name, r"^openai-infqps-octet-demo-\d{8}-\d{6}\.json$")
            for _ in range(2):
                self.bench("--num-prompts", 2, "--append-result", "--result-dir", folder,
                           "--result-filename", "all.jsonl")
            lines = pathlib.Path(folder, "all.jsonl").read_text().splitlines()
            self.assertEqual([json.loads(line)["completed"] for line in lines], [2, 2])

    def test_a_key_is_sent(self):
        server = harness.Server("--api-key", "secret")
        self.addCleanup(server.close)
        args = ("--base-url", server.url, "--num-prompts", 2, *self.LENGTHS)
        code, _, text = bench(*args)
        self.assertEqual(code, 2)
        self.assertIn("--api-key", text)
        code, result, text = bench(*args, "--api-key", "secret")
        self.assertEqual((code, result["completed"]), (0, 2), text)


class AgainstMock(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.mock = MockServer("good")
        cls.addClassCleanup(cls.mock.close)

    def bench(self, how, *args):
        return bench("--base-url", self.mock.url, "--model", how, "--num-warmups", 0,
                     "--num-prompts", 6, "--input-len", 5, "--output-len", TOKENS, *args)

    def test_tokens_are_counted_by_usage_not_by_chunks(self):
        _, result, _ = self.bench("bundled", "--save-detailed")
        self.assertEqual(result["output_lens"], [TOKENS] * 6)
        self.assertEqual({len(itls) for itls in result["itls"]}, {1})
        self.assertEqual(result["input_lens"], [9] * 6)
        self.assertEqual(bench_figures.differences(result), {})

    def test_without_usage_chunks_are_counted(self):
        _, result, _ = self.bench("silent")
        self.assertEqual(result["total_output_tokens"], 6 * TOKENS)

    def test_a_usage_that_cannot_be_is_not_believed(self):
        for model in ("negative", "absurd"):
            _, result, _ = self.bench(model)
            self.assertEqual(result["total_output_tokens"], 6 * TOKENS, model)
            self.assertLess(result["total_input_tokens"], 1000)
            self.assertGreaterEqual(result["total_input_tokens"], 0)

    def test_figures_of_nothing_are_dashes(self):
        code, result, text = bench("--base-url", self.mock.url, "--model", "500", "--num-prompts", 2,
                                   "--num-warmups", 0)
        self.assertEqual((code, result["completed"]), (1, 0), text)
        self.assertIsNone(result["median_ttft_ms"])
        self.assertRegex(text, r"Median TTFT \(ms\): +-")

    def test_what_a_server_says_moves_no_cursor(self):
        for command in (("bench", "serve", "--base-url", self.mock.url, "--model", "escape"),
                        ("versus", self.mock.url, self.mock.url, "--left-model", "escape")):
            code, out, err = harness.run(*command)
            self.assertEqual(code, 2)
            self.assertIn("out", err)
            self.assertFalse({"\x1b", "\x07", "\x9b"} & set(out + err), out + err)

    def test_times_are_those_of_the_server(self):
        _, result, _ = self.bench("slow", "--save-detailed")
        for ttft, itls, latency in zip(result["ttfts"], result["itls"], result["latencies"]):
            self.assertGreater(ttft, 0.19)
            self.assertEqual(len(itls), TOKENS - 1)
            self.assertGreater(min(itls), 0.05)
            self.assertGreater(latency, 1.19)
            self.assertAlmostEqual(ttft + sum(itls), latency, places=6)

    def test_the_role_of_a_chat_is_no_first_token(self):
        _, result, _ = self.bench("good", "--endpoint", "/v1/chat/completions", "--save-detailed")
        self.assertGreater(min(result["ttfts"]), 0.1)
        self.assertEqual({len(itls) for itls in result["itls"]}, {TOKENS - 1})

    def test_failures_are_told_apart(self):
        for how, kind, words in (
                ("500", "http_status", "out of order"), ("cut", "broken_stream", "reading"),
                ("undone", "broken_stream", "DONE"), ("json", "invalid_answer", "event"),
                ("html", "invalid_answer", "text/html"), ("empty", "empty", "no token"),
                ("event", "error_event", "the model is gone")):
            with self.subTest(how):
                code, result, text = self.bench(how)
                self.assertEqual(code, 1, text)
                self.assertEqual(result["failures"], {kind: 6})
                self.assertEqual((result["completed"], result["total_output_tokens"]), (0, 0))
                self.assertIn(words, text)

    def test_a_hanging_server_is_a_timeout(self):
        begin = time.monotonic()
        code, result, _ = self.bench("hang", "--request-timeout", 0.5)
        self.assertEqual((code, result["failures"]), (1, {"timeout": 6}))
        self.assertLess(time.monotonic() - begin, 4)

    def test_a_server_that_never_comes_to_an_end_is_a_timeout(self):
        for how in ("headers", "lines", "dripping"):
            begin = time.monotonic()
            code, result, _ = self.bench(how, "--request-timeout", 0.5)
            self.assertEqual((code, result["failures"]), (1, {"timeout": 6}), how)
            self.assertLess(time.monotonic() - begin, 10, how)

    def test_some_failures_leave_the_others_counted(self):
        code, result, _ = self.bench("flaky", "--max-concurrency", 1, "--save-detailed")
        self.assertEqual(code, 1)
        self.assertEqual((result["completed"], result["failures"]), (3, {"http_status": 3}))
        self.assertEqual(bench_figures.differences(result), {})

    def test_a_first_request_that_fails_ends_it(self):
        code, result, text = bench("--base-url", self.mock.url, "--model", "500", "--num-prompts", 9)
        self.assertEqual((code, result), (2, None))
        self.assertIn("out of order", text)

    def test_headers_and_bodies_are_as_asked(self):
        self.mock.seen.clear()
        self.bench("good", "--header", "X-Team: green", "--header", "X-Run=7", "--api-key", "k",
                   "--top-p", 0.5, "--extra-body", '{"min_tokens": 3}', "--seed", 1)
        path, headers, body = self.mock.seen[-1]
        self.assertEqual((headers["X-Team"], headers["X-Run"]), ("green", "7"))
        self.assertEqual(headers["Authorization"], "Bearer k")
        self.assertEqual((body["top_p"], body["min_tokens"], body["temperature"]), (0.5, 3, 0))
        self.assertEqual(body["stream_options"], {"include_usage": True})

    def test_the_model_is_asked_for(self):
        for base in (self.mock.url, self.mock.url + "/", self.mock.url + "/v1"):
            code, result, text = bench("--base-url", base, "--num-prompts", 2, "--input-len", 3)
            self.assertEqual((code, result["model_id"]), (0, "good"), text)

    def test_over_tls(self):
        mock = MockServer("good", tls=True)
        self.addCleanup(mock.close)
        args = ("--base-url", mock.url, "--num-prompts", 3, "--input-len", 3)
        code, _, text = bench(*args)
        self.assertEqual(code, 2)
        self.assertIn("TLS", text)  # nobody vouches for the certificate
        code, result, text = bench(*args, "--ca-file", TLS / "cert.pem")
        self.assertEqual((code, result["completed"]), (0, 3), text)

    def test_many_streams_at_once(self):
        code, result, text = bench("--base-url", self.mock.url, "--model", "slow", "--num-prompts",
                                   150, "--num-warmups", 0, "--input-len", 5)
        self.assertEqual((code, result["completed"]), (0, 150), text)
        self.assertGreater(result["max_concurrent_requests"], 100)


class Interrupted(unittest.TestCase):
    """Signals, while requests are under way."""

    def run_until(self, ready, signal_, *args, folder):
        process = subprocess.Popen([harness.BINARY, *map(str, args)], stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True,
                                   env={**os.environ, "TMPDIR": folder})
        self.addCleanup(process.kill)
        deadline = time.monotonic() + 60
        while not ready():
            self.assertIsNone(process.poll(), "it ended by itself")
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        process.send_signal(signal_)
        begin = time.monotonic()
        text, _ = process.communicate(timeout=60)
        self.assertLess(time.monotonic() - begin, 20)
        return process.returncode, text

    def test_what_was_measured_is_reported(self):
        mock = MockServer("slow")
        self.addCleanup(mock.close)
        for signal_, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            for layer in ("plain", "all"):
                mock.seen.clear()
                with tempfile.TemporaryDirectory() as folder:
                    path = os.path.join(folder, "r.json")
                    # Four at a time and a few before them: at least one round of them has ended.
                    found, text = self.run_until(
                        lambda: len(mock.seen) > 13, signal_, "bench", "serve", "--base-url", mock.url,
                        "--num-prompts", 500, "--max-concurrency", 4, "--input-len", 4, "--layer",
                        layer, "--json", path, folder=folder)
                    result = json.loads(pathlib.Path(path).read_text())
                self.assertEqual(found, code, text)
                self.assertTrue(result["interrupted"])
                one = result if layer == "plain" else result["layers"][0]["steps"][0]
                self.assertTrue(4 <= one["completed"] <= 16, one)
                self.assertEqual(one["failed"], 0)
                self.assertGreater(one["median_ttft_ms"], 150)
                self.assertIn("Interrupted", text)

    def test_versus_ends_its_server_and_leaves_no_folder(self):
        mock = MockServer("slow")
        self.addCleanup(mock.close)
        with tempfile.TemporaryDirectory() as folder:
            code, text = self.run_until(lambda: len(mock.seen) > 5, signal.SIGTERM, "versus", mock.url,
                                        harness.MODEL, folder=folder)
            self.assertEqual(code, 143, text)
            self.assertEqual(os.listdir(folder), [])
            self.assertIn("right / left", text)


class WithoutServer(unittest.TestCase):
    def refuse(self, *args, words):
        code, result, text = bench(*args)
        self.assertEqual((code, result), (2, None), text)
        self.assertIn(words, text)
        self.assertNotIn("internal error", text)

    def test_nobody_there(self):
        with socket.create_server(("127.0.0.1", 0)) as held:
            port = held.getsockname()[1]
        self.refuse("--port", port, words="does not answer")
        self.refuse("--base-url", "http://no.such.name.invalid", words="looking up")

    def test_waits_for_a_server_that_is_starting(self):
        begin = time.monotonic()
        with socket.create_server(("127.0.0.1", 0)) as held:
            port = held.getsockname()[1]
        self.refuse("--port", port, "--ready-check-timeout-sec", 1, words="does not answer")
        self.assertGreater(time.monotonic() - begin, 1)

    def test_another_kind_of_server(self):
        mock = MockServer()
        self.addCleanup(mock.close)
        self.refuse("--base-url", mock.url, words="no OpenAI-compatible server")

    def test_bad_options(self):
        for args, words in (
                (("--base-url", "localhost:8000"), "--base-url"),
                (("--base-url", "ftp://x"), "--base-url"),
                (("--header", "nothing"), "--header"),
                (("--header", "a: b\r\nc: d"), "--header"),
                (("--goodput", "ttft"), "--goodput"),
                (("--request-rate", "0"), "--request-rate"),
                (("--request-rate", "fast"), "--request-rate"),
                (("--burstiness", "-1"), "--burstiness"),
                (("--request-rate", "3", "--ramp-up-strategy", "linear"), "--ramp-up-strategy"),
                (("--metric-percentiles", "99,101"), "--metric-percentiles"),
                (("--percentile-metrics", "speed"), "--percentile-metrics"),
                (("--short", "5"), "--short"),
                (("--stress-rate", "3", "--stress-rate", "2"), "--stress-rate"),
                (("--extra-body", "[1]", "--model", "x"), "--extra-body"),
                (("--extra-body", "{", "--model", "x"), "--extra-body"),
                (("--metadata", "=x"), "--metadata"),
                (("--result-dir", "/no/such/folder"), "--result-dir"),
                (("--dataset-name", "custom", "--model", "x"), "--dataset-path"),
                (("--dataset-name", "novels"), "--dataset-name"),
                (("--layer", "cake"), "--layer")):
            with self.subTest(args):
                self.refuse(*args, words=words)


def peers():
    """bench/peers/run.py, which is beside the product."""
    root = os.path.join(os.path.dirname(__file__), "..", "..")
    path = os.path.join(root, "bench", "peers", "run.py")
    spec = importlib.util.spec_from_file_location("peers", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Slices(unittest.TestCase):
    """`octet bench slices`, and what bench/peers makes of it."""

    def slices(self, text):
        code, out, err = harness.run("bench", "slices", harness.MODEL, "--threads", 1,
                                     "--max-length", 128, "--probe-mib", 64, text=text)
        return code, [json.loads(line) for line in out.splitlines()], err

    def test_one_answer_a_command(self):
        code, answers, err = self.slices("decode 2 8 0.05\nprefill 32 0.05\nprobe\ndecode 2 8 0.01\n")
        self.assertEqual((code, len(answers)), (0, 5), err)
        about, decode, prefill, probe, again = answers
        for one in (decode, prefill):
            self.assertGreaterEqual(one["seconds"], 0.05)
            self.assertLess(one["seconds"], 20)
        self.assertEqual(decode["tokens"] % (2 * 32), 0)
        self.assertEqual(prefill["tokens"] % 32, 0)
        # Two sequences touch more experts than one, and no more than twice as many.
        steps = decode["tokens"] / 2
        self.assertTrue(1 <= decode["weight_bytes"] / steps / about["weight_bytes_per_token"] < 2)
        self.assertGreater(min(probe["read_gb_s"], probe["compute_gflops"], again["tokens"]), 0)

    def test_what_is_no_command_is_refused(self):
        for text in ("", "decode", "decode 0 8 1", "decode 1 8 nan", "decode 1 200 1", "decode 1 8 -1",
                     "prefill 99999999999999999999 1", "prefill 8", "probes", "prefill 8 1e9"):
            code, answers, err = self.slices(text + "\n")
            self.assertEqual((code, len(answers)), (2, 1), text)
            self.assertIn("accepted:", err)

    def test_figures_of_slices(self):
        module = peers()
        probe = {"read_gb_s": 10.0, "compute_gflops": 100.0}

        def slices(*rates):
            return [{"tokens": rate, "seconds": 1.0, "weight_bytes": rate * 1e7,
                     "probes": [probe, {**probe, "read_gb_s": 30.0}]} for rate in rates]
        abouts = {name: {"prompt_flop_per_token": 5e7, "decode_flop_per_token": 1e8}
                  for name in ("octet-fp8", "llama-q8_0")}
        by_engine = {"octet-fp8": slices(20, 40, 60), "llama-q8_0": slices(10, 10, 40)}
        both = module.figures_of({"decode-1": by_engine, "prefill-128": by_engine}, abouts)
        found = both["decode-1"]
        prefill = both["prefill-128"]["engines"]["octet-fp8"]  # the head computes one token of it
        self.assertAlmostEqual(prefill["share_of_bf16_peak"]["median"], 0.02)
        ours = found["engines"]["octet-fp8"]
        self.assertEqual(ours["tokens_per_s"], {"median": 40, "q1": 30, "q3": 50})
        self.assertAlmostEqual(ours["share_of_read"]["median"], 0.02)
        self.assertAlmostEqual(ours["share_of_bf16_peak"]["median"], 0.04)
        # Of the slices of one round: 2, 4 and 1.5, not 40 / 10.
        self.assertAlmostEqual(found["ratios"]["octet-fp8 / llama-q8_0"]["median"], 2)
        table = module.markdown({"work": {"decode-1": found}, "start_s": {}})
        self.assertIn("| decode-1 | 2.00 (1.75 to 3.00) |", table)


class Versus(harness.ServerCase):
    def versus(self, *args):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "result.json")
            code, out, err = harness.run("versus", *args, "--json", path, timeout=300)
            self.assertEqual(code, 0, out + err)
            return json.loads(pathlib.Path(path).read_text()), out

    def test_a_server_against_itself(self):
        result, text = self.versus(self.server.url, self.server.url, "--num-prompts", 4,
                                   "--output-len", 8)
        fidelity = result["fidelity"]
        self.assertEqual(fidelity["same_answers"], 4)
        self.assertEqual(fidelity["kl_max"], 0)
        self.assertGreater(fidelity["places"], 8)
        self.assertEqual(result["left"]["completed"], 4)
        self.assertIn("right / left", text)

    def test_against_a_model_in_another_arithmetic(self):
        result, _ = self.versus(self.server.url, harness.MODEL, "--right-serve-arg=--compute=bf16",
                                "--num-prompts", 6, "--output-len", 12, "--logprobs", 8)
        fidelity = result["fidelity"]
        self.assertGreater(fidelity["kl_mean"], 0)
        self.assertLess(fidelity["kl_mean"], 0.5)
        self.assertGreater(fidelity["same_tokens"], fidelity["places"] / 2)
        self.assertGreater(fidelity["mean_covered_probability"], 0.5)
        self.assertEqual(len(fidelity["splits"]), 6 - fidelity["same_answers"])

    def test_what_cannot_be_compared_is_said(self):
        for args, words in (
                ((self.server.url, "/no/such/model"), "/no/such/model"),
                ((self.server.url, "http://127.0.0.1:1"), "does not answer"),
                ((self.server.url, self.server.url, "--left-serve-arg=--x"), "--left-serve-arg"),
                ((self.server.url, self.server.url, "--dataset-path", "/no/file"), "/no/file"),
                (("ftp://x",), "ftp://x")):
            code, out, err = harness.run("versus", *args)
            self.assertEqual(code, 2, out + err)
            self.assertIn(words, err)

    def test_a_server_without_log_probabilities(self):
        mock = MockServer("good")
        self.addCleanup(mock.close)
        result, text = self.versus(self.server.url, mock.url, "--num-prompts", 2)
        self.assertEqual(result["fidelity"]["places"], 0)
        self.assertEqual(result["right"]["completed"], 2)
        self.assertIn("not measured", text)
