"""Runs the end-to-end tests: run.py OCTET SOURCE_DIR [NAME...]

OCTET is the binary, SOURCE_DIR the repository; a NAME picks tests as `python -m unittest` does
("test_api", "test_api.Completions.test_stop_strings").
"""
import pathlib
import sys
import unittest

import harness

if __name__ == "__main__":
    harness.configure(binary=sys.argv[1], source=sys.argv[2])
    here = pathlib.Path(__file__).parent
    names = sys.argv[3:] or sorted(path.stem for path in here.glob("test_*.py"))
    suite = unittest.defaultTestLoader.loadTestsFromNames(names)
    result = unittest.TextTestRunner(verbosity=2, durations=5).run(suite) if sys.version_info >= (
        3, 12) else unittest.TextTestRunner(verbosity=2).run(suite)
    sys.exit(not result.wasSuccessful())
