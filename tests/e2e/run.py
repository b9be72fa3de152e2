"""Runs the end-to-end tests: run.py OCTET SOURCE_DIR [NAME...]

OCTET is the binary, SOURCE_DIR the repository; a NAME picks tests as `python -m unittest` does
("test_api", "test_api.Completions.test_stop_strings").
"""
import sys
import unittest

import harness

if __name__ == "__main__":
    harness.configure(binary=sys.argv[1], source=sys.argv[2])
    names = sys.argv[3:] or ["test_api", "test_fields", "test_chat", "test_load", "test_life",
                             "test_bad_input", "test_devices", "test_families", "test_demo", "test_pull",
                             "test_models"]
    suite = unittest.defaultTestLoader.loadTestsFromNames(names)
    result = unittest.TextTestRunner(verbosity=2, durations=5).run(suite) if sys.version_info >= (
        3, 12) else unittest.TextTestRunner(verbosity=2).run(suite)
    sys.exit(not result.wasSuccessful())
