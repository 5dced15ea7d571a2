"""A run of a program, seen from outside: its events, its processes, its end."""

import json
import os
import queue
import subprocess
import sys
import threading
import time
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "programs.py"
#: A run that says nothing for so long hangs. *Units*: seconds.
PATIENCE = 300
#: Tests that take long take turns where somebody asks for one, as CI does: `DTRAIN_TEST_TURN=2/4`. Otherwise it is everybody's.
TURN, TURNS = map(int, os.environ.get("DTRAIN_TEST_TURN", "1/1").split("/"))


def has_turn(number):
    return number % TURNS == TURN - 1


def in_turn(number):
    return unittest.skipUnless(has_turn(number), f"it is the turn of others ({TURN} of {TURNS})")


class Ended:
    """A run that is over."""

    def __init__(self, code, events, words):
        self.code, self.events, self.words = code, events, words

    def of(self, kind):
        return [event for event in self.events if event["event"] == kind]

    @property
    def summary(self):
        (summary,) = self.of("summary")
        return summary

    @property
    def digest(self):
        return self.summary["digest"]


class Run:
    """A run that goes on."""

    def __init__(self, folder, command, environment=None, before=()):
        env = {**os.environ, **(environment or {})}
        self.process = subprocess.Popen(
            [*before, sys.executable, *map(str, command)], cwd=folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.lines, self.events, self.words = queue.Queue(), [], []
        threads = [threading.Thread(target=self._read, daemon=True), threading.Thread(target=self._listen, daemon=True)]
        for thread in threads:
            thread.start()
        self.listener = threads[1]

    def _read(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def _listen(self):
        for line in self.process.stderr:
            self.words.append(line)

    def next(self):
        """The next event; none at the end."""
        line = self.lines.get(timeout=PATIENCE)
        if line is None:
            self.lines.put(None)
            return None
        event = json.loads(line)
        self.events.append(event)
        return event

    def until(self, wanted):
        while (event := self.next()) is not None:
            if wanted(event):
                return event
        raise AssertionError(f"the run ended before:\n{''.join(self.words)}")

    def pids(self):
        """The processes of the ranks, by member."""
        return {event["member"]: event["pid"] for event in self.events if event["event"] == "rank_started"}

    def end(self):
        while self.next() is not None:
            pass
        code = self.process.wait(PATIENCE)
        self.listener.join(PATIENCE)
        self.process.stdout.close()
        self.process.stderr.close()
        return Ended(code, self.events, "".join(self.words))


def train(folder, kind, *settings):
    """A whole run of one of the programs."""
    return Run(folder, [PROGRAMS, kind, "--json", *settings]).end()


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition, what):
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.02)
