"""A server that speaks as much of OpenAI's API as a load tester hears, and misbehaves on request.

The `model` of a request says how: "good", "slow", "bundled" (three tokens a chunk), "cut" (the
connection ends in the stream), "undone" (no [DONE]), "500", "json" (other JSON), "html", "empty",
"event" (an error after the 200), "hang", "silent" (no usage), "flaky" (every second one a 503),
"negative" and "absurd" (a usage that cannot be), "escape" (an error that moves a terminal's cursor),
"headers" (one every 0.1 s), "lines" (of comments, as many as go), "dripping" (one every 0.1 s).
"""
import http.server
import json
import pathlib
import ssl
import threading
import time

TOKENS = 6
TLS = pathlib.Path(__file__).parent / "tls"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, text, kind="application/json"):
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def chunk(self, text):
        data = text.encode()
        # In two pieces, so that events come cut.
        for part in (data[: len(data) // 2], data[len(data) // 2:]):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.flush()

    def event(self, data):
        self.chunk(f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n")

    def do_GET(self):
        self.server.seen.append((self.path, dict(self.headers), None))
        if self.path == "/v1/models" and not self.server.models:
            return self.answer(200, "<html>hello</html>", "text/html")
        if self.path == "/v1/models":
            return self.answer(200, json.dumps({"object": "list", "data": [
                {"id": self.server.models[0], "object": "model"}]}))
        return self.answer(404, json.dumps({"error": {"message": "no such page"}}))

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append((self.path, dict(self.headers), body))
        if self.path not in ("/v1/completions", "/v1/chat/completions"):
            return self.answer(404, json.dumps({"error": {"message": "no such page"}}))
        how = body["model"]
        with self.server.lock:
            self.server.count += 1
            number = self.server.count
        if how == "500":
            return self.answer(500, json.dumps({"error": {"message": "out of order"}}))
        if how == "escape":
            return self.answer(500, json.dumps({"error": {"message": "\x1b]0;mine\x07\x9b2Jout"}}))
        if how == "flaky" and number % 2 == 0:
            return self.answer(503, json.dumps({"error": {"message": "too many requests"}}))
        if how == "json":
            return self.answer(200, json.dumps({"hello": "world"}))
        if how == "html":
            return self.answer(200, "<html></html>", "text/html")
        if how == "hang":
            return time.sleep(5)
        if how in ("headers", "lines", "dripping"):
            return self.endless(how)
        if not body.get("stream"):
            return self.answer(200, json.dumps({"choices": [{"text": "ab", "logprobs": None}]}))
        self.stream(how, chat="chat" in self.path)

    def endless(self, how):
        """What would go on for ever, for 20 s."""
        self.close_connection = True
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
        if how != "headers":
            self.wfile.write(b"\r\n")
        end = time.monotonic() + 20
        while time.monotonic() < end:
            self.wfile.write({"headers": b"X-More: yes\r\n", "lines": b": ping\n" * 1000,
                              "dripping": b": ping\n"}[how])
            time.sleep(0 if how == "lines" else 0.1)

    def stream(self, how, chat):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.chunk(": a comment\n\n")
        if chat:
            self.event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
            time.sleep(0.1)
        step = 3 if how == "bundled" else 1
        for i in range(0, 0 if how == "empty" else TOKENS, step):
            time.sleep(0.2 if how == "slow" else 0.005)
            text = "ab" * step
            choice = {"delta": {"content": text}} if chat else {"text": text}
            self.event({"choices": [choice]})
            if how == "cut":
                self.close_connection = True
                return self.connection.close()
            if how == "event":
                self.event({"error": {"message": "the model is gone", "code": 500}})
                break
        if how not in ("silent", "event"):
            usage = {"prompt_tokens": 9, "completion_tokens": 0 if how == "empty" else TOKENS}
            if how in ("negative", "absurd"):
                usage = dict.fromkeys(usage, -7 if how == "negative" else 10 ** 15)
            self.event({"choices": [], "usage": usage})
        if how != "undone":
            self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")


class MockServer(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, *models, tls=False):
        super().__init__(("127.0.0.1", 0), Handler)
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")
            self.socket = context.wrap_socket(self.socket, server_side=True,
                                              do_handshake_on_connect=False)
        self.models, self.seen, self.count = models, [], 0
        self.lock = threading.Lock()
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address):
        pass

    def close(self):
        self.shutdown()
        self.server_close()
