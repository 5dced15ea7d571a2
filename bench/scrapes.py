#!/usr/bin/env python3
"""What scrapes of a run's metrics cost: CPU time of the leading process, and steps, with scrapes and without, in turn.

    bench/scrapes.py target/release/dtrain --pairs 10 --seconds 3 --rate 200

One scrape a second would be lost in the noise: many are made, and their cost is divided by their number.
"""

import argparse
import os
import re
import signal
import socket
import statistics
import subprocess
import tempfile
import time

TICK = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def scrape(address):
    with socket.create_connection(address) as stream:
        stream.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: application/openmetrics-text\r\n\r\n")
        text = b""
        while part := stream.recv(65536):
            text += part
    return text.decode()


def step(text):
    return float(re.search(r"^dtrain_step\{.*\} (\S+)$", text, re.M)[1])


def window(pid, address, seconds, rate):
    begun, cpu, first = time.monotonic(), cpu_seconds(pid), step(scrape(address))
    scrapes = 0
    while (passed := time.monotonic() - begun) < seconds:
        if rate and scrapes < passed * rate:
            scrape(address)
            scrapes += 1
        else:
            time.sleep(0.001)
    last = scrape(address)
    took = time.monotonic() - begun
    return {"cpu": (cpu_seconds(pid) - cpu) / took, "steps": (step(last) - first) / took, "scrapes": scrapes / took, "bytes": len(last)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dtrain")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rate", type=float, default=200)
    parser.add_argument("--keys", default="ranks=2")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        keys = ["epochs=1000000", "checkpoint.every=none", "metrics.listen=127.0.0.1:0", *given.keys.split()]
        command = [os.path.abspath(given.dtrain), "train", *keys]
        run = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        while not (found := re.search(r"http://([\d.]+):(\d+)/metrics", run.stderr.readline())):
            pass
        os.set_blocking(run.stderr.fileno(), False)
        address = (found[1], int(found[2]))
        time.sleep(3)
        costs, ratios, rates = [], [], []
        for _ in range(given.pairs):
            without = window(run.pid, address, given.seconds, 0)
            with_them = window(run.pid, address, given.seconds, given.rate)
            run.stderr.read()
            costs.append((with_them["cpu"] - without["cpu"]) / with_them["scrapes"])
            ratios.append(with_them["steps"] / without["steps"])
            rates.append(with_them["scrapes"])
        run.send_signal(signal.SIGINT)
        run.wait()
    cores = os.cpu_count()
    middle, least, most = statistics.median(costs), min(costs), max(costs)
    print(f"a scrape of {with_them['bytes']} bytes: {middle * 1e6:.0f} us of CPU time [{least * 1e6:.0f} to {most * 1e6:.0f}]")
    print(f"one a second: {middle / cores * 100:.4f} % of the compute time of {cores} cores, {middle * 3600:.2f} s an hour")
    print(f"steps a second at {statistics.median(rates):.0f} scrapes a second, by those without: {statistics.median(ratios):.3f} [{min(ratios):.3f} to {max(ratios):.3f}]")


if __name__ == "__main__":
    main()
