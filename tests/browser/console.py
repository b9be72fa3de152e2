"""The console page in Chromium, against the real binary: console.py OCTET SOURCE_DIR CHROMIUM OUT

Prints what was checked, writes screenshots to OUT, and fails at the first thing that is wrong.
scripts/browser.sh installs what this needs and runs it.
"""
import contextlib
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

from playwright.sync_api import expect, sync_playwright

HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>&amp;"


class Server:
    """`octet serve` of the demo model in FP8, beside its 16-bit original."""

    def __init__(self, binary, source, *args):
        self.folder = tempfile.TemporaryDirectory()
        port_file = pathlib.Path(self.folder.name, "port")
        model = pathlib.Path(source, "models/octet-demo")
        template = pathlib.Path(source, "models/templates/plain.jinja")
        self.log = open(pathlib.Path(self.folder.name, "log"), "w+b")
        self.process = subprocess.Popen(
            [binary, "serve", model, "--scheme", "fp8_block", "--port", "0", "--port-file",
             port_file, "--chat-template", template, *args], stdout=self.log, stderr=self.log)
        deadline = time.monotonic() + 60
        while not port_file.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                raise RuntimeError(pathlib.Path(self.log.name).read_text(errors="replace"))
            time.sleep(0.05)
        self.url = f"http://127.0.0.1:{int(port_file.read_text())}"

    def close(self):
        self.process.terminate()
        code = self.process.wait(20)
        assert code == 0, f"the server ended with {code}"
        self.folder.cleanup()


class Watch:
    """Everything that a page must not do: errors in its console, requests to anybody else."""

    def __init__(self, page, url):
        self.origin, self.wrong, self.allowed = url, [], []
        page.on("console", self.said)
        page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (self.wrong.append("a dialog"), dialog.dismiss()))
        page.on("request", self.asked)

    def said(self, message):
        if message.type not in ("error", "warning"):
            return
        if any(re.search(pattern, message.text) for pattern in self.allowed):
            return
        self.wrong.append(f"console: {message.text} ({message.location.get('url')})")

    def asked(self, request):
        scheme = urllib.parse.urlparse(request.url).scheme
        if scheme in ("http", "https", "ws", "wss") and not request.url.startswith(self.origin + "/"):
            self.wrong.append(f"a request to {request.url}")


class Console:
    def __init__(self, browser, url, out):
        self.browser, self.url, self.out = browser, url, pathlib.Path(out)

    @contextlib.contextmanager
    def page(self, view="chat", allowed=(), **options):
        options = {"viewport": {"width": 1280, "height": 860}, **options}
        context = self.browser.new_context(**options)
        page = context.new_page()
        page.set_default_timeout(20_000)
        watch = Watch(page, self.url)
        watch.allowed = list(allowed)
        page.goto(f"{self.url}/#{view}")
        yield page
        context.close()
        assert not watch.wrong, watch.wrong

    def shot(self, page, name):
        page.screenshot(path=self.out / f"{name}.png", full_page=True)

    # --- the checks ------------------------------------------------------------------------------

    def opens(self):
        with self.page() as page:
            expect(page.locator("#model")).to_have_text("octet-demo")
            expect(page.get_by_role("tab", name="Microscope")).to_be_visible()
            self.shot(page, "chat-empty")

    def chat_streams(self):
        with self.page() as page:
            page.locator("[name=max_tokens]").fill("48")
            page.locator("[name=temperature]").fill("0")
            page.locator("#chat-input").fill("def add(a, b):\n    return")
            page.keyboard.press("Control+Enter")
            answer = page.locator(".message.assistant .text")
            expect(answer).to_have_attribute("aria-busy", "true")
            expect(page.locator("#chat-form .status")).to_contain_text("finished")
            assert len(answer.inner_text()) > 10
            tokens = page.locator(".message.assistant .token")
            assert tokens.count() > 10
            # The mouse shows what the model thought, and takes it away again.
            tokens.nth(3).hover()
            tip = page.locator("#tip")
            expect(tip).to_be_visible()
            expect(tip).to_contain_text("log-probability")
            assert tip.locator("tr").count() >= 5
            self.shot(page, "chat")
            page.locator("h1").hover()
            expect(tip).to_be_hidden()
            # A second turn, a retry, a new chat.
            page.locator("#chat-input").fill("And now subtract.")
            page.get_by_role("button", name="Send").click()
            expect(page.locator(".message")).to_have_count(4)
            expect(page.locator("#chat-form .status")).to_contain_text("finished")
            page.get_by_role("button", name="Retry").click()
            expect(page.locator("#chat-form .status")).to_contain_text("finished")
            expect(page.locator(".message")).to_have_count(4)
            page.get_by_role("button", name="New chat").click()
            expect(page.locator(".message")).to_have_count(0)

    def stops(self):
        for how in ("Escape", "button"):
            with self.page("completion") as page:
                page.locator("[name=max_tokens]").fill("1000")
                page.locator("#completion-input").fill("import os\n")
                page.keyboard.press("Control+Enter")
                page.locator("#completion-output .token").nth(5).wait_for(state="attached")
                if how == "Escape":
                    page.keyboard.press("Escape")
                else:
                    page.locator("#completion-form [data-role=stop]").click()
                expect(page.locator("#completion-form .status")).to_have_text("stopped")
                count = page.locator("#completion-output .token").count()
                page.wait_for_timeout(500)
                assert page.locator("#completion-output .token").count() == count
                # What was written goes on from where it stands.
                page.get_by_role("button", name="Append to the prompt").click()
                assert len(page.locator("#completion-input").input_value()) > len("import os\n")

    def keyboard_alone(self):
        with self.page("chat") as page:
            page.get_by_role("tab", name="Chat").focus()
            page.keyboard.press("ArrowRight")
            expect(page.get_by_role("tab", name="Completion")).to_be_focused()
            expect(page.locator("#panel-completion")).to_be_visible()
            self.tab_to(page, "#completion-input")
            page.keyboard.type("def fibonacci(n):")
            self.tab_to(page, "[name=max_tokens]")
            page.keyboard.press("Control+a")
            page.keyboard.type("24")
            self.tab_to(page, "#completion-input", back=True)
            page.keyboard.press("Control+Enter")
            expect(page.locator("#completion-form .status")).to_contain_text("finished")
            self.tab_to(page, "#completion-output .token:first-child")
            expect(page.locator("#tip")).to_be_visible()
            page.keyboard.press("ArrowRight")
            expect(page.locator("#completion-output .token").nth(1)).to_be_focused()
            expect(page.locator("#tip")).to_be_visible()
            outline = page.evaluate(
                "getComputedStyle(document.activeElement).outlineStyle")
            assert outline != "none", "no visible focus"
            self.shot(page, "keyboard")
            page.keyboard.press("End")
            expect(page.locator("#completion-output .token").last).to_be_focused()
            page.keyboard.press("Tab")
            assert not page.evaluate("document.activeElement.classList.contains('token')")

    @staticmethod
    def tab_to(page, selector, back=False):
        wanted = page.locator(selector).first
        for _ in range(40):
            page.keyboard.press("Shift+Tab" if back else "Tab")
            if wanted.evaluate("node => node === document.activeElement"):
                return
        raise AssertionError(f"{selector} cannot be reached with Tab")

    def hostile_text_is_text(self):
        with self.page() as page:
            page.route("**/v1/chat/completions", lambda route: route.fulfill(
                status=200, content_type="text/event-stream", body=stream_of(HOSTILE)))
            page.locator("#chat-input").fill(HOSTILE)
            page.keyboard.press("Control+Enter")
            expect(page.locator("#chat-form .status")).to_contain_text("finished")
            for role in ("user", "assistant"):
                assert page.locator(f".message.{role} .text").inner_text() == HOSTILE
            page.locator(".message.assistant .token").first.hover()
            assert page.locator("main img, main script, #tip img, #tip script").count() == 0

    def errors_are_the_servers(self):
        with self.page("completion", allowed=["400"]) as page:
            page.locator("[name=temperature]").fill("-1")
            page.locator("#completion-input").fill("x")
            page.keyboard.press("Control+Enter")
            expect(page.get_by_role("alert")).to_contain_text("temperature must be")
            self.shot(page, "error")
            # And the next request goes through.
            page.locator("[name=temperature]").fill("0")
            page.locator("[name=max_tokens]").fill("4")
            page.locator("#completion-input").press("Control+Enter")
            expect(page.locator("#completion-form .status")).to_contain_text("finished")
            expect(page.get_by_role("alert")).to_be_hidden()

    def microscope(self):
        with self.page("microscope") as page:
            page.locator("[name=max_tokens]").fill("40")
            page.locator("#microscope-input").fill("def fibonacci(n):\n")
            page.keyboard.press("Control+Enter")
            expect(page.locator("#microscope-summary")).to_contain_text("mean KL")
            expect(page.locator("#microscope-form .status")).to_have_text("done")  # exact tokens
            tokens = page.locator("#microscope-output .heated")
            assert tokens.count() >= 30, tokens.count()
            assert len(page.locator("#baseline-output").inner_text()) > 10
            heats = tokens.evaluate_all(
                "all => all.map(node => Number(node.style.getPropertyValue('--heat')))")
            assert max(heats) > 0.1 and len(set(heats)) > 5, heats
            hottest = heats.index(max(heats))
            tokens.nth(hottest).click()
            detail = page.locator("#microscope-detail")
            expect(detail.locator(".parts tr")).not_to_have_count(0)
            expect(detail).to_contain_text("Most of the difference")
            expect(detail).to_contain_text("layer 0 attention")
            self.shot(page, "microscope")
            # By keyboard, too.
            tokens.nth(hottest).press("ArrowLeft")
            page.keyboard.press("Enter")
            expect(detail.locator("h2")).not_to_contain_text("undefined")
            expect(detail.locator(".parts tr")).not_to_have_count(0)
            # A conversation goes through the template.
            page.locator("#microscope-chat").check()
            page.get_by_role("button", name="Compare").click()
            expect(page.locator("#microscope-form .status")).to_have_text("done")
            assert page.locator("#microscope-output .heated").count() >= 10
            page.emulate_media(color_scheme="dark")
            page.locator("#microscope-output .heated").nth(3).click()
            expect(detail.locator(".parts tr")).not_to_have_count(0)
            self.shot(page, "microscope-dark")

    def dashboard(self):
        with self.page("dashboard", allowed=["404"]) as page:
            clock = [0]

            def metrics(route):
                clock[0] += 1
                route.fulfill(status=200, content_type="text/plain", body=scrape(clock[0]))
            page.route("**/metrics", metrics)
            page.get_by_role("tab", name="Chat").click()
            page.get_by_role("tab", name="Dashboard").click()
            card = page.locator(".card", has_text="Output")
            expect(card.locator(".figure")).to_contain_text("tokens/s")
            expect(page.locator(".card", has_text="KV cache").locator(".figure")).to_have_text("25 %")
            expect(page.locator(".card", has_text="Waiting").locator(".figure")).to_have_text("3")
            expect(page.locator(".card", has_text="Preemptions").locator(".figure")).to_have_text("–")
            expect(page.locator(".heat-row")).to_have_count(8)
            page.wait_for_timeout(3500)
            expect(page.locator(".card", has_text="P50").first.locator(".figure")).to_contain_text("ms")
            self.shot(page, "dashboard-made-up")

    def real_metrics(self):
        """What the server itself tells, if it does."""
        with self.page("dashboard", allowed=["404"]) as page:
            page.evaluate("""() => fetch("/v1/completions", {method: "POST",
                headers: {"Content-Type": "application/json"},
                body: JSON.stringify({prompt: "import os", max_tokens: 300, ignore_eos: true})})""")
            page.wait_for_timeout(3500)
            self.shot(page, "dashboard")

    def phone(self):
        for view in ("chat", "completion", "microscope", "dashboard"):
            with self.page(view, allowed=["404"], viewport={"width": 360, "height": 720},
                           has_touch=True, is_mobile=True) as page:
                expect(page.locator("#model")).to_have_text("octet-demo")
                if view in ("completion", "microscope"):
                    page.locator("[name=max_tokens]").fill("24")
                    page.locator(f"#{view}-input").fill("def fibonacci(n):\n")
                    page.locator(f"#{view}-form [type=submit]").tap()
                    expect(page.locator(f"#{view}-form .status")).to_contain_text(
                        re.compile("finished|done"))
                if view == "microscope":
                    expect(page.locator("#microscope-form .status")).to_contain_text("done")
                    page.locator("#microscope-output .heated").nth(4).tap()
                    expect(page.locator("#microscope-detail .parts tr")).not_to_have_count(0)
                wide = page.evaluate("document.documentElement.scrollWidth")
                self.shot(page, f"phone-{view}")
                assert wide <= 360, f"{view} is {wide} px wide"

    def themes(self):
        grounds = {}
        for scheme in ("light", "dark"):
            with self.page("completion", color_scheme=scheme) as page:
                page.locator("[name=max_tokens]").fill("32")
                page.locator("#completion-input").fill("class Stack:\n")
                page.keyboard.press("Control+Enter")
                expect(page.locator("#completion-form .status")).to_contain_text("finished")
                page.locator("#completion-output .token").nth(6).hover()
                self.shot(page, f"completion-{scheme}")
                ground = "getComputedStyle(document.body).backgroundColor"
                grounds[scheme] = page.evaluate(ground)
                # The switch wins over the system, and stays.
                other = "dark" if scheme == "light" else "light"
                while other not in page.locator("#theme").inner_text():
                    page.locator("#theme").click()
                switched = page.evaluate(ground)
                page.reload()
                assert page.evaluate(ground) == switched != grounds[scheme]
        assert grounds["light"] != grounds["dark"]

    def parsers(self):
        """The modules that have no page of their own."""
        with self.page() as page:
            found = page.evaluate("""async () => {
              const { EventParser } = await import("/console/api.js");
              const { parseMetrics, quantile, growth, byLayer } = await import("/console/metrics.js");
              const bytes = new TextEncoder().encode('data: {"a":"é"}\\n\\ndata: [DONE]\\r\\n\\r\\n');
              const cuts = [];
              for (let at = 0; at <= bytes.length; ++at) {
                const parser = new EventParser();
                cuts.push([...parser.push(bytes.slice(0, at)), ...parser.push(bytes.slice(at))].join("|"));
              }
              const text = (n) => `# HELP x y\\nt_bucket{le="0.1"} ${n}\\nt_bucket{le="1"} ${3 * n}\\n` +
                `t_bucket{le="+Inf"} ${4 * n}\\nc_total ${5 * n} 1700000000\\n` +
                `s{layers="10",k="a\\\\"b}"} 1\\ns{layer="2"} 2.5e-3\\n`;
              const before = parseMetrics(text(10)), after = parseMetrics(text(30));
              return { cuts: [...new Set(cuts)], half: quantile(before, after, 0.5, "t"),
                last: quantile(before, after, 0.99, "t"), none: quantile(after, after, 0.5, "t"),
                growth: growth(before, after, "c_total"), restart: growth(after, before, "c_total"),
                missing: growth(before, after, "d_total"), layers: [...byLayer(after, "s")],
                label: after.get("s")[0].labels.k };
            }""")
        assert found["cuts"] == ['{"a":"é"}|[DONE]'], found["cuts"]
        # 20 in all up to 0.1, 60 up to 1: the 40th is half way between.
        assert abs(found["half"] - 0.55) < 1e-9, found
        assert found["last"] == 1 and found["growth"] == 100 and found["restart"] == 50, found
        assert found["none"] != found["none"] and found["missing"] != found["missing"], found
        assert found["layers"] == [["2", 0.0025], ["10", 1]], found
        assert found["label"] == 'a"b}', found

    def headers(self):
        with urllib.request.urlopen(self.url + "/") as answer:
            policy = answer.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy and "unsafe" not in policy, policy
            etag = answer.headers["ETag"]
        request = urllib.request.Request(self.url + "/", headers={"If-None-Match": etag})
        try:
            urllib.request.urlopen(request)
            raise AssertionError("no 304")
        except urllib.error.HTTPError as error:
            assert error.code == 304, error.code


def stream_of(text):
    """A chat answer of one token that is `text`."""
    top = [{"token": text, "logprob": -0.1, "bytes": list(text.encode())}]
    one = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": "stop",
                        "logprobs": {"content": [{**top[0], "top_logprobs": top}]}}]}
    return f"data: {json.dumps(one)}\n\ndata: [DONE]\n\n"


def scrape(n):
    """Metrics as they might be after n seconds."""
    lines = [f"vllm:generation_tokens_total {850 * n + 90 * (n % 3)}",
             f"vllm:prompt_tokens_total {4000 * n}", "vllm:kv_cache_usage_perc 0.25",
             "vllm:num_requests_running 12", "vllm:num_requests_waiting 3",
             f"vllm:prefix_cache_queries_total {400 * n}", f"vllm:prefix_cache_hits_total {120 * n}"]
    for name in ("time_to_first_token_seconds", "inter_token_latency_seconds"):
        for bound, count in (("0.01", 5 * n), ("0.1", 25 * n), ("1", 29 * n), ("+Inf", 30 * n)):
            lines.append(f'vllm:{name}_bucket{{le="{bound}"}} {count}')
    for layer in range(8):
        lines.append(f'octet_kv_sampled_values_total{{layer="{layer}"}} {100000 * n}')
        lines.append(f'octet_kv_saturated_values_total{{layer="{layer}"}} {layer ** 3 * n}')
    return "\n".join(lines) + "\n"


def needs_a_key(browser, binary, source, out):
    server = Server(binary, source, "--api-key", "secret")
    try:
        console = Console(browser, server.url, out)
        with console.page(allowed=["401"]) as page:
            expect(page.get_by_role("alert")).to_contain_text("API key")
            page.locator("#key").fill("secret")
            page.keyboard.press("Enter")
            expect(page.locator("#model")).to_have_text("octet-demo")
            expect(page.get_by_role("alert")).to_be_hidden()
            # No baseline, no microscope.
            expect(page.get_by_role("tab", name="Microscope")).to_be_hidden()
            assert page.evaluate("localStorage.getItem('octet-api-key')") is None
            page.locator("[name=max_tokens]").fill("4")
            page.locator("#chat-input").fill("x")
            page.locator("#chat-input").press("Control+Enter")
            expect(page.locator("#chat-form .status")).to_contain_text("finished")
    finally:
        server.close()


def main():
    binary, source, chromium, out = sys.argv[1:5]
    wanted = sys.argv[5:]
    pathlib.Path(out).mkdir(parents=True, exist_ok=True)
    server = Server(binary, source, "--baseline", str(pathlib.Path(source, "models/octet-demo")))
    failed = 0
    expect.set_options(timeout=30_000)  # a busy machine is no failure
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        console = Console(browser, server.url, out)
        checks = [console.headers, console.parsers, console.opens, console.chat_streams,
                  console.stops, console.keyboard_alone, console.hostile_text_is_text,
                  console.errors_are_the_servers, console.microscope, console.dashboard,
                  console.real_metrics, console.phone, console.themes]
        checks.append(lambda: needs_a_key(browser, binary, source, out))
        checks[-1].__name__ = "needs_a_key"
        for check in checks:
            if wanted and check.__name__ not in wanted:
                continue
            try:
                check()
                print(f"ok      {check.__name__}", flush=True)
            except Exception as error:  # the others still tell something
                failed += 1
                print(f"FAILED  {check.__name__}: {error}", flush=True)
        browser.close()
    server.close()
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
