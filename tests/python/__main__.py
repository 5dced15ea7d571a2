"""All tests, some at a time: they wait for processes more than they compute. ``python tests/python [AT_A_TIME]``."""

import concurrent.futures
import sys
import time
import unittest
from pathlib import Path


def cases(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from cases(test)
        else:
            yield test


def run(case):
    begun, result = time.monotonic(), unittest.TestResult()
    case.run(result)
    for _, words in result.errors + result.failures:
        print(f"{case.id()}\n{words}", file=sys.stderr)
    for _, why in result.skipped:
        print(f"{case.id()} is skipped: {why}")
    print(f"{'ok' if result.wasSuccessful() else 'FAILED'}  {time.monotonic() - begun:5.1f} s  {case.id()}", flush=True)
    return result.wasSuccessful()


def main():
    at_a_time = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    tests = list(cases(unittest.defaultTestLoader.discover(str(Path(__file__).resolve().parent))))
    with concurrent.futures.ThreadPoolExecutor(at_a_time) as pool:
        good = list(pool.map(run, tests))
    print(f"{len(good)} tests, {good.count(False)} failed")
    sys.exit(0 if good and all(good) else 1)


if __name__ == "__main__":
    main()
