"""Starts the binary, and talks to it."""
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request

import openai

BINARY = None
MODEL = None


def configure(binary, source):
    global BINARY, MODEL
    BINARY = os.path.abspath(binary)
    MODEL = os.path.join(os.path.abspath(source), "models", "octet-demo")


def run(*args, timeout=60, text=""):
    """One command to its end, with `text` as its input: (exit code, stdout, stderr)."""
    words = [arg if isinstance(arg, bytes) else str(arg) for arg in args]
    done = subprocess.run([BINARY, *words], capture_output=True, timeout=timeout,
                          input=text.encode())
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def tiny_llama(folder):
    """A new checkpoint of two layers, whose weights are random, with the demo model's tokenizer."""
    demo = pathlib.Path(MODEL)
    folder.mkdir()
    vocab = json.loads((demo / "config.json").read_text())["vocab_size"]
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "vocab_size": vocab,
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16"}))
    shapes = {"model.embed_tokens": [vocab, 64], "model.norm": [64]}
    for layer in ("model.layers.0.", "model.layers.1."):
        shapes |= {layer + "input_layernorm": [64], layer + "post_attention_layernorm": [64],
                   layer + "self_attn.q_proj": [64, 64], layer + "self_attn.k_proj": [32, 64],
                   layer + "self_attn.v_proj": [32, 64], layer + "self_attn.o_proj": [64, 64],
                   layer + "mlp.gate_proj": [96, 64], layer + "mlp.up_proj": [96, 64],
                   layer + "mlp.down_proj": [64, 96]}
    numbers, header, data = random.Random(1), {}, bytearray()
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        values = bytearray(2 * count)  # BF16 of 1/8 to 1/4, and of either sign
        values[0::2] = numbers.randbytes(count)
        values[1::2] = bytes(0x3E | byte & 0x80 for byte in numbers.randbytes(count))
        header[name + ".weight"] = {"dtype": "BF16", "shape": shape,
                                    "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(demo / file, folder)
    return folder


class Server:
    """`octet serve` on a free port, ready when the constructor returns."""

    def __init__(self, *args, port=0, model=None):
        self.folder = tempfile.TemporaryDirectory()
        port_file = os.path.join(self.folder.name, "port")
        self.log_file = open(os.path.join(self.folder.name, "log"), "w+b")
        command = [BINARY, "serve", model or MODEL, "--compute", "fp8", "--port", str(port),
                   "--port-file", port_file, *map(str, args)]
        if "--populate-memory" not in args:  # many servers, each for a moment
            command.append("--no-populate-memory")
        self.process = subprocess.Popen(command, stdout=self.log_file, stderr=self.log_file)
        deadline = time.monotonic() + 60
        while not os.path.exists(port_file):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                raise RuntimeError("the server did not start:\n" + self.log())
            time.sleep(0.02)
        self.port = int(pathlib.Path(port_file).read_text())
        self.url = f"http://127.0.0.1:{self.port}"

    def name(self):
        """What it calls its model."""
        return json.loads(self.request("GET", "/v1/models")[2])["data"][0]["id"]

    def log(self):
        return pathlib.Path(self.log_file.name).read_text(errors="replace")

    def client(self, **options):
        options = {"api_key": "none", "max_retries": 0, "timeout": 120, **options}
        return openai.OpenAI(base_url=self.url + "/v1", **options)

    def request(self, method, path, body=None, headers=None, timeout=60):
        """(status, headers, body) without a client's help."""
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
        if isinstance(body, str):
            body = body.encode()
        request = urllib.request.Request(self.url + path, data=body, method=method,
                                         headers=headers or {})
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, error.read()

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def send_completion(self, **fields):
        """A raw connection on which a completion was asked for, nothing read."""
        body = json.dumps(fields).encode()
        connection = self.connect()
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
                           % len(body) + body)
        return connection

    def healthy_within(self, seconds):
        begin = time.monotonic()
        status, _, _ = self.request("GET", "/health", timeout=seconds)
        return status == 200 and time.monotonic() - begin < seconds

    def cpu_seconds(self):
        """What the process has computed so far."""
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def terminate(self, with_signal=signal.SIGTERM, timeout=20):
        """The exit code after a signal."""
        self.process.send_signal(with_signal)
        return self.process.wait(timeout)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.log_file.close()
        self.folder.cleanup()


class ServerCase(unittest.TestCase):
    """Tests that share one server; ends with a check that it is alive and idle."""
    ARGS = ()
    server = None

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.ARGS)
        cls.addClassCleanup(cls.server.close)
        cls.client = cls.server.client()

    @classmethod
    def complete(cls, prompt="def add(a, b):", **options):
        options = {"model": "octet-demo", "max_tokens": 16, "temperature": 0, **options}
        return cls.client.completions.create(prompt=prompt, **options)

    def assert_idle(self):
        """A request runs at once: nothing holds the engine up, nothing was leaked."""
        begin = time.monotonic()
        self.assertEqual(self.complete(max_tokens=2).usage.completion_tokens, 2)
        self.assertLess(time.monotonic() - begin, 10)


def join(stream):
    """The text, the last finish reason and the usage of a stream of one choice."""
    text, finish, usage = "", None, None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.text
            finish = choice.finish_reason or finish
    return text, finish, usage
