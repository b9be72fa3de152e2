"""Start, stop, kill and restart."""
import json
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

import harness


def start_stream(server, **fields):
    connection = server.send_completion(model="octet-demo", prompt=[5], max_tokens=8000,
                                        ignore_eos=True, stream=True, **fields)
    assert b"200 OK" in connection.recv(100)
    return connection


def resident_mib(server):
    """Of its own; pages of mapped files come as they are read."""
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) / 1024


class Life(unittest.TestCase):
    def serve(self, *args, **options):
        server = harness.Server(*args, **options)
        self.addCleanup(server.close)
        return server

    def test_sigterm_when_idle(self):
        for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            server = self.serve()
            idle = server.connect()
            self.assertTrue(server.healthy_within(5))
            begin = time.monotonic()
            self.assertEqual(server.terminate(sig), 0)
            self.assertLess(time.monotonic() - begin, 2)
            idle.close()
            self.assertIn(f"http://127.0.0.1:{server.port}/v1", server.log())

    def test_memory_is_there_from_the_start(self):
        pool = 8
        server = self.serve("--populate-memory", "--kv-cache-memory", pool << 20, "--max-model-len", 1024)
        deadline = time.monotonic() + 30
        before, now = 0, resident_mib(server)
        while now > before and time.monotonic() < deadline:
            time.sleep(0.5)
            before, now = now, resident_mib(server)
        client = server.client()
        for first in range(0, 7200, 900):  # more tokens than the pool holds
            client.completions.create(model="octet-demo", prompt=list(range(first, first + 900)),
                                      max_tokens=2, extra_body={"ignore_eos": True})
            if first == 0:  # what kernels keep for a full step is there, too
                before = resident_mib(server)
        self.assertLess(resident_mib(server) - before, pool / 4)

    def test_what_happens_at_the_start_changes_no_answer(self):
        """Neither memory that is made resident, nor the kernels' self-test, nor requests of before."""
        def answer(server):
            return json.loads(server.request("POST", "/v1/completions", {
                "model": "octet-demo", "prompt": "def add(a, b):", "max_tokens": 24, "seed": 1,
                "temperature": 1, "logprobs": 3, "ignore_eos": True})[2])["choices"]

        plain = self.serve("--no-enable-prefix-caching")
        first = answer(plain)
        for prompt in ("import os", "class A:", [5] * 700):
            plain.client().completions.create(model="octet-demo", prompt=prompt, max_tokens=3)
        self.assertEqual(answer(plain), first)
        warm = self.serve("--populate-memory", "--no-enable-prefix-caching")
        self.assertEqual(answer(warm), first)

    def test_sigterm_during_streams(self):
        server = self.serve("--shutdown-grace", 1)
        streams = [start_stream(server) for _ in range(3)]
        time.sleep(0.3)
        begin = time.monotonic()
        self.assertEqual(server.terminate(), 0)
        self.assertLess(time.monotonic() - begin, 6)
        for stream in streams:
            text = b""
            while part := stream.recv(65536):
                text += part
            self.assertIn(b"shutting down", text[-400:])
            self.assertIn(b"data: [DONE]", text[-400:])
            stream.close()

    def test_sigterm_lets_short_requests_end(self):
        server = self.serve("--shutdown-grace", 60)
        answers = []
        client = server.client()
        asking = threading.Thread(target=lambda: answers.append(client.completions.create(
            model="octet-demo", prompt="def add(", max_tokens=30, temperature=0,
            extra_body={"ignore_eos": True})))
        asking.start()
        time.sleep(0.2)
        self.assertEqual(server.terminate(timeout=70), 0)
        asking.join()
        self.assertEqual(answers[0].usage.completion_tokens, 30)

    def test_second_signal_ends_at_once(self):
        server = self.serve("--shutdown-grace", 60)
        stream = start_stream(server)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        self.assertIsNone(server.process.poll())
        begin = time.monotonic()
        self.assertEqual(server.terminate(), 128 + signal.SIGTERM)
        self.assertLess(time.monotonic() - begin, 2)
        stream.close()

    def test_kill_and_restart_on_the_same_port(self):
        first = self.serve()
        stream = start_stream(first)
        first.process.kill()
        first.process.wait()
        stream.close()
        second = self.serve(port=first.port)
        self.assertTrue(second.healthy_within(5))

    def test_port_in_use(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            begin = time.monotonic()
            code, _, log = harness.run("serve", harness.MODEL, "--port", port)
        self.assertEqual(code, 2)
        self.assertIn(f"127.0.0.1:{port}", log)
        self.assertIn("in use", log)
        self.assertLess(time.monotonic() - begin, 2)  # before the model is loaded

    def test_all_addresses(self):
        server = self.serve("--host", "0.0.0.0")
        self.assertTrue(server.healthy_within(5))
        self.assertIn(f"http://127.0.0.1:{server.port}/v1", server.log())

    def test_ipv6(self):
        server = self.serve("--host", "::1")
        self.assertIn(f"http://[::1]:{server.port}/v1", server.log())
        with socket.create_connection(("::1", server.port), timeout=10) as connection:
            connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            self.assertIn(b"200 OK", connection.recv(1000))

    def test_a_host_that_is_not_ours(self):
        code, _, log = harness.run("serve", harness.MODEL, "--host", "203.0.113.7")
        self.assertEqual(code, 2)
        self.assertIn("203.0.113.7", log)


class Quantize(unittest.TestCase):
    def test_a_killed_quantize_leaves_nothing_that_loads(self):
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "fp8")
            command = [harness.BINARY, "quantize", harness.MODEL, "--out", out]
            killed = 0
            for delay in (0.03, 0.1, 0.2, 0.35, 0.5):
                process = subprocess.Popen(command, stdout=subprocess.DEVNULL,
                                           stderr=subprocess.DEVNULL)
                time.sleep(delay)
                process.kill()
                # The kill may come when all is done and in its place.
                if process.wait() == 0 or os.path.exists(out):
                    break
                killed += 1
                for left in pathlib.Path(folder).rglob("config.json"):
                    self.assertTrue(left.parent.name.startswith("."))
            self.assertGreater(killed, 0)
            if not os.path.exists(out):
                self.assertEqual(harness.run(*command[1:])[0], 0)
            self.assertEqual(os.listdir(folder), ["fp8"])  # what the kills left is gone
            before = pathlib.Path(out, "config.json").read_bytes()
            code, _, log = harness.run(*command[1:])
            self.assertEqual(code, 2)
            self.assertIn("exists", log)
            self.assertEqual(before, pathlib.Path(out, "config.json").read_bytes())
            code, text, log = harness.run("generate", out, "--prompt", "def", "--max-tokens", 3,
                                          "--json", "-")
            self.assertEqual(code, 0, log)
            json.loads(text)

    def test_an_interrupted_quantize_leaves_nothing_at_all(self):
        for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            with tempfile.TemporaryDirectory() as folder:
                process = subprocess.Popen(
                    [harness.BINARY, "quantize", harness.MODEL, "--out",
                     os.path.join(folder, "fp8")],
                    stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
                while not os.listdir(folder) and process.poll() is None:
                    time.sleep(0.001)
                process.send_signal(sig)
                log = process.communicate(timeout=60)[1].decode()
                self.assertEqual(process.returncode, 128 + sig, log)
                self.assertIn("interrupted", log)
                self.assertEqual(os.listdir(folder), [])
