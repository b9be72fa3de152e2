"""scripts/demo.sh, with a stub in the place of the binary."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import harness

# Answers each verb as the script expects it, and notes which were run.
STUB = """#!/bin/sh
echo "$1" >>verbs
case $1 in
  quantize) mkdir -p build/models/octet-demo-fp8; echo codes >build/models/octet-demo-fp8/a.safetensors ;;
  eval) echo '{"perplexity_baseline": 2.0, "perplexity": 2.1, "kl_mean": 0.01, "kl_p99": 0.1,
               "tokens": 9, "top1_agreement": 0.9}' ;;
  bench) echo '{"decode_tokens_per_s": 10, "prefill_tokens_per_s": 20}' ;;
  --version) echo octet 0.1.0 ;;
esac
"""


class Demo(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.model = self.root / "models" / "octet-demo"
        for directory in ("scripts", "build/cpu", "models/octet-demo"):
            (self.root / directory).mkdir(parents=True)
        source = pathlib.Path(harness.MODEL).parents[1]
        shutil.copy(source / "scripts" / "demo.sh", self.root / "scripts")
        (self.model / "config.json").write_text("{}")
        (self.model / "model.safetensors").write_text("weights")
        self.build(STUB)

    def build(self, text):
        path = self.root / "build" / "cpu" / "octet"
        path.write_text(text)
        path.chmod(0o755)

    def quantized(self):
        """Whether a run of the demo made the checkpoint anew."""
        notes = self.root / "verbs"
        notes.unlink(missing_ok=True)
        done = subprocess.run([self.root / "scripts" / "demo.sh", "demo"], capture_output=True,
                              timeout=60)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        verbs = notes.read_text().split()
        self.assertIn("generate", verbs)
        return "quantize" in verbs

    def test_a_change_of_what_made_it_makes_the_checkpoint_anew(self):
        self.assertTrue(self.quantized())
        self.assertFalse(self.quantized())
        self.build(STUB + "# a build of the same version that quantizes otherwise\n")
        self.assertTrue(self.quantized())
        self.assertFalse(self.quantized())
        for name in os.listdir(self.model):
            with open(self.model / name, "a") as file:
                file.write(" ")
            self.assertTrue(self.quantized(), name)
            self.assertFalse(self.quantized(), name)


if __name__ == "__main__":
    unittest.main()
