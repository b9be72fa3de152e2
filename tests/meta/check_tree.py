#!/usr/bin/env python3
"""Checks the habits of the tree that a compiler does not see: check_tree.py [ROOT].

Prints every violation under the name of its check, and fails if there is one.
"""

import pathlib
import re
import sys

CODE = {".h", ".cpp", ".cu", ".cuh"}
PROGRAM = CODE | {".py", ".sh", ".cmake", ".js", ".css", ".html"}
PROGRAM_NAMES = {"CMakeLists.txt", "Makefile", "run"}
PROSE = {".md"}
SKIPPED = {".git", ".cache", "build", "__pycache__", "corpus"}
MAX_LINES = {"default": 600, "docs/CONTRACTS.md": 200}


class Tree:
    """The files of a checkout, by path relative to its root."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.paths = sorted(self._walk(self.root))

    def _walk(self, folder):
        for entry in folder.iterdir():
            if entry.name in SKIPPED or entry.is_symlink():
                continue
            if entry.is_dir():
                yield from self._walk(entry)
            else:
                yield entry.relative_to(self.root).as_posix()

    def text(self, path):
        return (self.root / path).read_text(encoding="utf-8", errors="replace")

    def has(self, path):
        return (self.root / path).exists()

    def code(self, prefix=""):
        return [p for p in self.paths if p.startswith(prefix) and pathlib.Path(p).suffix in CODE]

    def programs(self):
        return [p for p in self.paths if pathlib.Path(p).suffix in PROGRAM
                or pathlib.Path(p).name in PROGRAM_NAMES]

    def prose(self):
        return [p for p in self.paths if pathlib.Path(p).suffix in PROSE]


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def blank(match):
    """Spaces in place of a match, with its line breaks, so that line numbers stay."""
    return re.sub(r"[^\n]", " ", match.group(0))


def without_comments(path, text):
    """The text with comments, and for C++ with string literals too, made blank."""
    if pathlib.Path(path).suffix in CODE:
        return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', blank, text, flags=re.S)
    return re.sub(r"(?m)(?:^|(?<=\s))#[^\n]*", blank, text)


def read_layers(tree):
    """The table of src/LAYERS: folder -> the folders that it may include, or None for all."""
    layers = {}
    for line in tree.text("src/LAYERS").splitlines():
        line = line.split("#")[0].strip()
        if line:
            folder, _, allowed = line.partition(":")
            names = allowed.split()
            layers[folder.strip()] = None if names == ["*"] else set(names)
    return layers


def check_layers(tree):
    """Includes obey src/LAYERS, and the table has no cycle."""
    layers = read_layers(tree)
    done = set()
    while len(done) < len(layers):
        ready = {f for f, below in layers.items()
                 if f not in done and (below is None or below <= done)}
        if not ready:
            yield f"src/LAYERS: a cycle, or an unknown name, among {sorted(set(layers) - done)}"
            break
        done |= ready
    for path in tree.code("src/"):
        parts = path.split("/")
        folder = parts[1]
        if folder not in layers:
            yield f"{path}: src/LAYERS does not name the folder {folder}"
            continue
        text = tree.text(path)
        for match in re.finditer(r'(?m)^[ \t]*#\s*include\s+"([^"]+)"', text):
            target = match.group(1)
            where = f"{path}:{line_of(text, match.start())}"
            other = target.split("/")[0]
            if not tree.has(f"src/{target}"):
                yield f"{where}: {target} is no file below src/"
            elif other != folder and layers[folder] is not None and other not in layers[folder]:
                yield f"{where}: {folder} may not include {target}"
            elif (other == folder == "backends" and parts[2] != target.split("/")[1]):
                yield f"{where}: one backend may not include another ({target})"


def check_headers(tree):
    """Every header starts with #pragma once (after its comment)."""
    for path in tree.code():
        if path.endswith((".h", ".cuh")):
            code = without_comments(path, tree.text(path)).split()
            if code[:2] != ["#pragma", "once"]:
                yield f"{path}: does not begin with #pragma once"


def check_length(tree):
    """Files stay short enough to be read in one go."""
    for path in tree.programs() + [p for p in MAX_LINES if tree.has(p)]:
        limit = MAX_LINES.get(path, MAX_LINES["default"])
        lines = tree.text(path).count("\n")
        if lines > limit:
            yield f"{path}: {lines} lines, at most {limit} are allowed"


def check_tour(tree):
    """Every `file:symbol` of docs/TOUR.md exists."""
    tour = "docs/TOUR.md"
    if not tree.has(tour):
        return
    text = tree.text(tour)
    for match in re.finditer(r"`([\w./-]+\.\w+):([^`\s]+)`", text):
        file, symbol = match.groups()
        where = f"{tour}:{line_of(text, match.start())}"
        path = file if tree.has(file) else f"src/{file}"
        if not tree.has(path):
            yield f"{where}: no file {file}"
            continue
        content = tree.text(path)
        for word in re.findall(r"~?\w+", symbol):
            if not re.search(rf"(?<!\w){re.escape(word)}(?!\w)", content):
                yield f"{where}: {file} has no {word} ({symbol})"


def check_environment(tree):
    """No environment variables: configuration is flags and files."""
    pattern = re.compile(r"\b(?:secure_getenv|getenv|setenv|putenv|environ)\b")
    for path in tree.code("src/"):
        text = without_comments(path, tree.text(path))
        for match in pattern.finditer(text):
            yield f"{path}:{line_of(text, match.start())}: {match.group(0)}"


def check_fast_math(tree):
    """No flag that lets a compiler change what is computed."""
    pattern = re.compile(r"-ffast-math|-Ofast|--?use_fast_math|-funsafe-math|fast-math|"
                         r"-ffp-contract=(?:fast|on)")
    for path in tree.programs() + ["CMakePresets.json"]:
        if path.startswith("tests/meta/") or not tree.has(path):
            continue
        text = tree.text(path)
        # A pragma has its flag in a string, which stays in.
        for match in pattern.finditer(re.sub(r"//[^\n]*", blank, text) if path in tree.code()
                                      else without_comments(path, text)):
            yield f"{path}:{line_of(text, match.start())}: {match.group(0)}"


def check_machine_paths(tree):
    """No path of somebody's machine."""
    pattern = re.compile(r"(?<![\w.:/~$}-])/(?:home|root|work|workspace|Users|mnt)/[\w.]")
    for path in tree.programs() + tree.prose() + ["CMakePresets.json"]:
        if path.startswith("tests/meta/") or not tree.has(path):
            continue
        text = tree.text(path)
        for match in pattern.finditer(text):
            line = line_of(text, match.start())
            yield f"{path}:{line}: {text.splitlines()[line - 1].strip()[:80]}"


def check_links(tree):
    """Relative links of the documentation lead to files."""
    for path in tree.prose():
        text = re.sub(r"(?ms)^```.*?^```", blank, tree.text(path))
        for match in re.finditer(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
            target = match.group(1)
            if "://" in target or target.startswith("mailto:"):
                continue
            if not (tree.root / path).parent.joinpath(target).exists():
                yield f"{path}:{line_of(text, match.start())}: no file {target}"


def check_twins(tree):
    """The two READMEs show the same commands."""
    names = ["README.md", "README.zh-CN.md"]
    if not all(map(tree.has, names)):
        return
    blocks = [re.findall(r"(?ms)^```sh\n(.*?)^```", tree.text(name)) for name in names]
    commands = [[re.sub(r"\s*#.*", "", line) for block in group for line in block.splitlines()]
                for group in blocks]
    if commands[0] != commands[1]:
        only = [line for line in commands[0] + commands[1]
                if (line in commands[0]) != (line in commands[1])]
        yield f"the commands of {' and '.join(names)} differ: {only or 'in their order'}"


CHECKS = [check_layers, check_headers, check_length, check_tour, check_environment,
          check_fast_math, check_machine_paths, check_links, check_twins]


def violations(root):
    """Pairs of a check and the list of what it found, for those that found something."""
    tree = Tree(root)
    found = [(check, list(check(tree))) for check in CHECKS]
    return [(check, items) for check, items in found if items]


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[2]
    found = violations(root)
    for check, items in found:
        print(f"{check.__name__}: {check.__doc__}")
        for item in items:
            print(f"  {item}")
    if found:
        sys.exit(1)
    print(f"{len(CHECKS)} checks passed")


if __name__ == "__main__":
    main()
