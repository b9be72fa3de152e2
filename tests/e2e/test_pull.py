"""`octet pull` against a hub of our own that cuts, lies, redirects, refuses and dawdles."""
import hashlib
import http.server
import json
import os
import pathlib
import signal
import ssl
import subprocess
import tempfile
import threading
import time
import unittest

import harness

TLS = pathlib.Path(__file__).parent / "tls"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
WEIGHTS = bytes((i * 7 + i // 251) % 256 for i in range(3_000_000))
FILES = {
    "config.json": b'{"architectures": ["LlamaForCausalLM"]}',
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": b"never wanted",
    "sub/notes.txt": b"in a folder",
}


class Hub:
    """A hub whose `before` may answer a request itself: it gets the handler and returns True then."""

    def __init__(self, files=None, listing=None, before=None, tls=False):
        self.files, self.listing, self.before = files or FILES, listing, before
        self.requests = []  # (path, Range, Authorization)
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *args):
                pass

            def do_GET(self):
                hub.requests.append((self.path, self.headers.get("Range"),
                                     self.headers.get("Authorization")))
                try:
                    if not (hub.before and hub.before(self)):
                        hub.answer(self)
                except (BrokenPipeError, ConnectionResetError):
                    pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *args: None  # a client that hangs up is part of the test
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True,
                                                     do_handshake_on_connect=False)
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, handler):
        path = handler.path.split("?")[0]
        if path == "/api/models/org/tiny":
            body = self.listing or json.dumps({
                "sha": COMMIT, "siblings": [{"rfilename": name} for name in self.files]}).encode()
            self.send(handler, 200, body)
        elif path.startswith(f"/org/tiny/resolve/{COMMIT}/"):
            self.send_file(handler, self.files.get(path.split(COMMIT + "/")[1]))
        else:
            self.send(handler, 404, b"no such thing")

    def send_file(self, handler, data, etag=None, cut=None):
        if data is None:
            return self.send(handler, 404, b"no such file")
        etag = etag or hashlib.sha256(data).hexdigest()
        begin = 0
        if handler.headers.get("Range"):
            begin = int(handler.headers["Range"].removeprefix("bytes=").removesuffix("-"))
        headers = {"ETag": f'"{etag}"'}
        if begin:
            headers["Content-Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
        return self.send(handler, 206 if begin else 200, data[begin:], headers, cut)

    @staticmethod
    def send(handler, status, body, headers=None, cut=None):
        """`cut`: so many bytes of the body, then the end of the connection."""
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body if cut is None else body[:cut])
        return True

    def asked_for(self, name):
        return [r for r in self.requests if r[0].endswith("/" + name)]

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class Pull(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.out = self.root / "tiny"
        self.work = self.root / ".tiny.pull"

    def hub(self, **options):
        hub = Hub(**options)
        self.addCleanup(hub.close)
        return hub

    def pull(self, hub, *args, source="org/tiny"):
        return harness.run("pull", source, "--endpoint", hub.url, "--out", self.out, "--retry-wait",
                           "0.01", *args)

    def assert_pulled(self, result, names=("config.json", "model.safetensors", "sub/notes.txt")):
        code, _, err = result
        self.assertEqual(code, 0, err)
        found = {str(p.relative_to(self.out)) for p in self.out.rglob("*") if p.is_file()}
        self.assertEqual(found, set(names))
        for name in names:
            self.assertEqual((self.out / name).read_bytes(), FILES[name])
        self.assertFalse(self.work.exists())

    def assert_refused(self, result, *words):
        code, _, err = result
        self.assertEqual(code, 2, err)
        for word in words:
            self.assertIn(word, err)
        self.assertFalse(self.out.exists())

    def test_all_that_is_useful_comes(self):
        hub = self.hub()
        self.assert_pulled(self.pull(hub))
        self.assertFalse(hub.asked_for("pytorch_model.bin"))

    def test_include_and_exclude_choose(self):
        hub = self.hub()
        self.assert_pulled(self.pull(hub, "--include", "*.json", "--include", "*.txt"),
                           ["config.json", "sub/notes.txt"])
        code, _, err = self.pull(hub, "--exclude", "*")
        self.assertEqual(code, 2)  # the directory exists

    def test_address_of_a_page_and_of_a_file(self):
        hub = self.hub()
        self.assert_pulled(self.pull(hub, source=hub.url + "/org/tiny"))
        hub = self.hub(before=lambda h: h.path == "/a/config.json" and
                       Hub.send(h, 200, FILES["config.json"]))
        self.out = self.root / "one"
        code, _, err = harness.run("pull", hub.url + "/a/config.json", "--out", self.out)
        self.assertEqual(code, 0, err)
        self.assertEqual((self.out / "config.json").read_bytes(), FILES["config.json"])

    def test_a_cut_connection_is_continued(self):
        cuts = [100_000, 700_000, 1_500_000]
        hub = self.hub(before=lambda h: h.path.endswith("model.safetensors") and cuts and
                       hub.send_file(h, WEIGHTS, cut=cuts.pop(0)))
        self.assert_pulled(self.pull(hub))
        ranges = [r[1] for r in hub.asked_for("model.safetensors")]
        self.assertEqual(ranges, [None, "bytes=100000-", "bytes=800000-", "bytes=2300000-"])

    def test_a_server_without_ranges_begins_anew(self):
        cuts = [100_000, 700_000]

        def whole(h):
            if not h.path.endswith("model.safetensors"):
                return False
            return Hub.send(h, 200, WEIGHTS, cut=cuts.pop(0) if cuts else None)
        self.assert_pulled(self.pull(self.hub(before=whole)))

    def test_a_file_that_changed_meanwhile_begins_anew(self):
        old = b"x" * 1_000_000
        first = [True]

        def changing(h):
            if not h.path.endswith("model.safetensors") or not first:
                return False
            first.pop()
            return hub.send_file(h, old, cut=500_000)
        hub = self.hub(before=changing)
        self.assert_pulled(self.pull(hub))

    def test_a_wrong_checksum_is_fetched_once_more_and_then_refused(self):
        wrong = WEIGHTS[:-1] + b"!"
        bad = [1]
        etag = hashlib.sha256(WEIGHTS).hexdigest()
        hub = self.hub(before=lambda h: h.path.endswith("model.safetensors") and bad and
                       bad.pop() and hub.send_file(h, wrong, etag))
        self.assert_pulled(self.pull(hub))
        self.out, self.work = self.root / "other", self.root / ".other.pull"
        hub = self.hub(before=lambda h: h.path.endswith("model.safetensors") and
                       hub.send_file(h, wrong, etag))
        self.assert_refused(self.pull(hub), "not the one that was announced", etag)
        self.assertEqual(len(hub.asked_for("model.safetensors")), 2)

    def test_a_redirect_to_another_host_does_not_get_the_token(self):
        token = self.root / "token"
        token.write_text("secret\n")
        store = self.hub(before=lambda h: store.send_file(h, WEIGHTS, etag="other"))

        def redirect(h):
            if not h.path.endswith("model.safetensors"):
                return False
            return Hub.send(h, 302, b"", {
                "Location": store.url + "/store/blob?sig=a%2Fb",
                "X-Linked-Etag": f'"{hashlib.sha256(WEIGHTS).hexdigest()}"',
                "X-Linked-Size": str(len(WEIGHTS))})
        hub = self.hub(before=redirect)
        self.assert_pulled(self.pull(hub, "--token-file", token))
        self.assertEqual({r[2] for r in hub.requests}, {"Bearer secret"})
        self.assertEqual(store.requests, [("/store/blob?sig=a%2Fb", None, None)])

    def test_redirects_without_end_are_refused(self):
        hub = self.hub(before=lambda h: h.path.endswith("config.json") and
                       Hub.send(h, 302, b"", {"Location": h.path}))
        self.assert_refused(self.pull(hub), "redirects")

    def test_busy_servers_are_asked_again(self):
        for status in (429, 500, 503):
            with self.subTest(status=status):
                busy = [{"Retry-After": "0"}, {}]
                hub = self.hub(before=lambda h: busy and Hub.send(h, status, b"busy", busy.pop()))
                self.out = self.root / f"tiny{status}"
                self.work = self.root / f".tiny{status}.pull"
                self.assert_pulled(self.pull(hub))

    def test_a_server_that_stays_broken_ends_the_pull(self):
        hub = self.hub(before=lambda h: Hub.send(h, 503, b"busy"))
        self.assert_refused(self.pull(hub, "--retries", "2"), "HTTP 503", "3 attempts")
        self.assertEqual(len(hub.requests), 3)

    def test_what_does_not_exist_or_may_not_be_read_is_said_at_once(self):
        hub = self.hub()
        self.assert_refused(self.pull(hub, source="org/other"), "no such model", "HTTP 404")
        self.assertEqual(len(hub.requests), 1)
        for status in (401, 403):
            hub = self.hub(before=lambda h: Hub.send(h, status, b""))
            self.assert_refused(self.pull(hub), "--token-file", f"HTTP {status}")
            self.assertEqual(len(hub.requests), 1)

    def test_names_that_leave_the_directory_are_refused(self):
        for name in ("../evil", "/etc/evil", "a/../../evil", "a\\b", "a//b", ".", "a\nb", ""):
            with self.subTest(name=name):
                listing = json.dumps({"sha": COMMIT, "siblings": [{"rfilename": name}]}).encode()
                self.assert_refused(self.pull(self.hub(listing=listing)), "outside")
                self.assertFalse((self.root / "evil").exists())

    def test_answers_that_are_no_list_are_refused(self):
        for body in (b"<html>", b"[]", b"{}", b'{"siblings": 1}', b'{"siblings": [{}]}', b"\xff"):
            with self.subTest(body=body):
                self.assert_refused(self.pull(self.hub(listing=body)), "api/models/org/tiny")

    def test_a_server_that_falls_silent_is_left(self):
        slow = [True]

        def silent(h):
            if not h.path.endswith("model.safetensors") or not slow:
                return False
            slow.pop()
            hub.send_file(h, WEIGHTS, cut=1000)
            h.wfile.flush()
            time.sleep(3)
            return True
        hub = self.hub(before=silent)
        self.assert_pulled(self.pull(hub, "--idle-timeout", "1"))
        self.assertEqual(hub.asked_for("model.safetensors")[1][1], "bytes=1000-")

    def test_kill_and_continue(self):
        hold = threading.Event()
        first = [True]

        def half(h):
            if not h.path.endswith("model.safetensors") or not first:
                return False
            first.pop()
            hub.send_file(h, WEIGHTS, cut=1_000_000)
            h.wfile.flush()
            hold.wait(30)
            return True
        hub = self.hub(before=half)
        process = subprocess.Popen([harness.BINARY, "pull", "org/tiny", "--endpoint", hub.url,
                                    "--out", self.out], stderr=subprocess.DEVNULL)
        part = self.work / "parts" / "model.safetensors"
        deadline = time.monotonic() + 30
        while not (part.exists() and part.stat().st_size == 1_000_000):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)
        code, _, err = self.pull(hub)  # meanwhile nobody else may work there
        self.assertEqual(code, 2)
        self.assertIn("another process", err)
        process.send_signal(signal.SIGKILL)
        process.wait()
        hold.set()
        self.assertFalse(self.out.exists())
        self.assert_pulled(self.pull(hub))
        self.assertEqual(hub.asked_for("model.safetensors")[-1][1], "bytes=1000000-")
        self.assertEqual(len(hub.asked_for("config.json")), 1)  # it was whole

    def test_encryption_wants_a_certificate_that_is_trusted(self):
        hub = self.hub(tls=True)
        self.assert_refused(self.pull(hub), "TLS", "--ca-file")
        self.assertFalse(hub.requests)
        self.assert_pulled(self.pull(hub, "--ca-file", TLS / "cert.pem"))
        self.out = self.root / "other"
        self.assert_refused(self.pull(hub, "--ca-file", self.root / "none.pem"), "none.pem")
        plain = self.hub()
        hub = self.hub(tls=True, before=lambda h: Hub.send(h, 302, b"", {
            "Location": plain.url + h.path}))
        self.assert_refused(self.pull(hub, "--ca-file", TLS / "cert.pem"), "https to http")
        self.assertFalse(plain.requests)

    def test_bad_usage(self):
        hub = self.hub()
        for source in ("a/b/c", "../x", "", "ftp://x/y", "http://", "http://user:pw@x/y"):
            with self.subTest(source=source):
                self.assertEqual(self.pull(hub, source=source)[0], 2)
        token = self.root / "token"
        token.write_text("secret")
        code, _, err = harness.run("pull", "http://example.invalid/a/b", "--out", self.out,
                                   "--token-file", token)
        self.assertEqual(code, 2)
        self.assertIn("without encryption", err)
        os.mkdir(self.out)
        code, _, err = self.pull(hub)
        self.assertEqual(code, 2)
        self.assertIn("exists already", err)


if __name__ == "__main__":
    unittest.main()
