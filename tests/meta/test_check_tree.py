#!/usr/bin/env python3
"""Shows that every check of check_tree.py can fail, on small trees made for it."""

import pathlib
import tempfile
import unittest

import check_tree

LAYERS = "base :\nmodel : base\nbackends : base\ncli : *\n"


class CheckTree(unittest.TestCase):
    def found(self, files):
        """The check names and messages for a tree of {path: text} beside a good minimum."""
        with tempfile.TemporaryDirectory() as root:
            for path, text in {"src/LAYERS": LAYERS, **files}.items():
                file = pathlib.Path(root, path)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
            return {check.__name__: items for check, items in check_tree.violations(root)}

    def expect(self, files, check, *parts):
        """Exactly `check` fails, with one message that has all the parts."""
        found = self.found(files)
        self.assertEqual(list(found), [check], found)
        self.assertEqual(len(found[check]), 1, found)
        for part in parts:
            self.assertIn(part, found[check][0])

    def test_good_tree_passes(self):
        self.assertEqual(self.found({
            "src/base/a.h": "// text\n#pragma once\n#include <vector>\n",
            "src/model/m.cpp": '#include "base/a.h"\n#include "model/m.h"\n',
            "src/model/m.h": "#pragma once\n",
            "src/cli/main.cpp": '#include "model/m.h"\n',
            "docs/TOUR.md": "`model/m.cpp:include` `src/base/a.h:vector` [a](TOUR.md#x)\n",
            "build/x/bad.h": "getenv /home/me/x",
        }), {})

    def test_layers(self):
        a = {"src/base/a.h": "#pragma once\n"}
        m = {"src/model/m.h": "#pragma once\n"}
        self.expect({**a, **m, "src/base/b.cpp": '\n#include "model/m.h"\n'}, "check_layers",
                    "src/base/b.cpp:2", "base may not include model/m.h")
        self.expect({"src/base/b.cpp": '#include "a.h"\n'}, "check_layers", "no file below src/")
        self.expect({"src/new/b.cpp": ""}, "check_layers", "does not name the folder new")
        self.expect({"src/LAYERS": "a : b\nb : a\n"}, "check_layers", "a cycle")
        self.expect({"src/backends/cuda/k.h": "#pragma once\n",
                     "src/backends/cpu/k.cpp": '#include "backends/cuda/k.h"\n'},
                    "check_layers", "one backend may not include another")

    def test_headers(self):
        self.expect({"src/base/a.h": "int x;\n#pragma once\n"}, "check_headers", "src/base/a.h")

    def test_length(self):
        self.assertEqual(self.found({"src/base/a.cpp": "x\n" * 600}), {})
        self.expect({"src/base/a.cpp": "x\n" * 601}, "check_length", "601 lines")
        self.expect({"docs/CONTRACTS.md": "x\n" * 201}, "check_length", "at most 200")

    def test_tour(self):
        a = {"src/base/a.cpp": "void Pool::work() {}\n"}
        self.assertEqual(self.found({**a, "docs/TOUR.md": "`base/a.cpp:Pool::work`"}), {})
        self.expect({**a, "docs/TOUR.md": "\n`base/a.cpp:Pool::wor`"}, "check_tour",
                    "docs/TOUR.md:2", "has no wor")
        self.expect({"docs/TOUR.md": "`base/none.cpp:x`"}, "check_tour", "no file base/none.cpp")

    def test_environment(self):
        self.assertEqual(self.found({"src/base/a.cpp": '// getenv\nauto s = "getenv";\n'}), {})
        self.expect({"src/base/a.cpp": '\nstd::getenv("X");\n'}, "check_environment", "a.cpp:2")
        self.expect({"src/base/a.cpp": "extern char** environ;\n"}, "check_environment")

    def test_fast_math(self):
        self.assertEqual(self.found({"CMakeLists.txt": "# never -ffast-math\n"}), {})
        self.expect({"CMakeLists.txt": "\nadd_compile_options(-ffast-math)\n"}, "check_fast_math",
                    "CMakeLists.txt:2")
        self.expect({"src/base/a.cpp": '#pragma GCC optimize("fast-math")\n'}, "check_fast_math")
        self.expect({"cmake/x.cmake": "set(f --use_fast_math)\n"}, "check_fast_math")

    def test_machine_paths(self):
        self.assertEqual(self.found({"a.md": "https://a.b/home/x `src/work/x` ~/root/x"}), {})
        self.expect({"docs/a.md": "\nsee /home/me/model\n"}, "check_machine_paths", "docs/a.md:2")
        self.expect({"scripts/x.sh": 'cd "/root/octet"\n'}, "check_machine_paths", "/root/octet")

    def test_links(self):
        self.assertEqual(self.found({"a.md": "[x](docs) [y](https://z)\n```\n[x](no)\n```\n",
                                     "docs/b.md": "[up](../a.md)"}), {})
        self.expect({"docs/b.md": "[up](a.md)"}, "check_links", "docs/b.md:1", "a.md")

    def test_twins(self):
        block = "```sh\nmake serve   # {}\n```\n"
        self.assertEqual(self.found({"README.md": block.format("x"),
                                     "README.zh-CN.md": block.format("y")}), {})
        self.expect({"README.md": block, "README.zh-CN.md": "```sh\nmake test\n```\n"},
                    "check_twins", "make serve")


if __name__ == "__main__":
    unittest.main()
