#!/usr/bin/env python3
"""Compares what a server predicts for half and twice its pool with what it then measures.

Usage: scripts/pool-sizes.py PROGRAM [MIB ...]

For each size in MiB (default: 64 and 256) and each of ten loads, starts the program PROGRAM
(forebay), sets its memory, runs the load over NBD, and reads the prediction. Then it sets half and
twice the pool with `forebay set memory=`, runs the load on, and measures the share of accesses that
miss. Prints a table. Needs numpy, and half an hour.
"""

import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time

import numpy as np

LINE = 4096
DEPTH = 32
# Accesses per line of the pool before the figures count and while they count, and at least so many
# seconds.
WARM, COUNTED = 12, 6
REQUEST = np.dtype(
    [("magic", ">u4"), ("flags", ">u2"), ("type", ">u2"), ("cookie", ">u8"), ("offset", ">u8"),
     ("length", ">u4")])
WRITE = np.dtype(REQUEST.descr + [("payload", "V4096")])


class Client:
    """A connection to a volume that sends batches of requests for lines."""

    def __init__(self, path, volume):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        assert self.take(16) == b"NBDMAGICIHAVEOPT"
        self.take(2)
        name = volume.encode()
        self.socket.sendall(struct.pack(">I8sII", 3, b"IHAVEOPT", 1, len(name)) + name)
        self.take(10)
        self.buffer = bytearray(DEPTH * (16 + LINE))

    def take(self, count):
        data = bytearray(count)
        self.fill(memoryview(data))
        return bytes(data)

    def fill(self, view):
        while view:
            count = self.socket.recv_into(view)
            assert count, "the server has closed the connection"
            view = view[count:]

    def batch(self, lines, is_write):
        """Sends a batch of reads or of writes, and waits for the answers."""
        requests = np.zeros(len(lines), WRITE if is_write else REQUEST)
        requests["magic"], requests["type"] = 0x25609513, int(is_write)
        requests["offset"], requests["length"] = lines * LINE, LINE
        self.socket.sendall(requests.tobytes())
        reply = 16 if is_write else 16 + LINE
        view = memoryview(self.buffer)[:reply * len(lines)]
        self.fill(view)
        errors = np.frombuffer(view, np.uint8).reshape(len(lines), reply)[:, 4:8]
        assert not errors.any(), "a request has failed"


class Load:
    """Accesses to the lines of volumes. `pool` is the present size in lines."""

    def __init__(self, name, pool):
        self.name, self.pool, self.random = name, pool, np.random.default_rng(1)
        self.next, self.scanned = 0, 0
        self.order = self.random.permutation(pool * 3 // 2)
        self.places = self.random.permutation(4 * pool)
        self.streams = np.zeros(4, np.int64)

    def zipf(self, exponent, count):
        lines, power = 4 * self.pool, 1 - exponent
        ranks = (self.random.random(count) * (lines ** power - 1) + 1) ** (1 / power)
        return self.places[ranks.astype(np.int64) - 1]

    def loop(self, length, count):
        lines = (self.next + np.arange(count)) % length
        self.next = (self.next + count) % length
        return lines

    def batch(self):
        """The volume, the lines, and whether they are written."""
        pool, random = self.pool, self.random
        match self.name:
            case "zipf 0.8":
                return 0, self.zipf(0.8, DEPTH), False
            case "zipf 1.1":
                return 0, self.zipf(1.1, DEPTH), False
            case "hot set 80:10":
                hot = random.random(DEPTH) < 0.8
                lines = np.where(hot, random.integers(0, pool * 4 // 10, DEPTH),
                                 random.integers(pool * 4 // 10, pool * 4, DEPTH))
                return 0, self.places[lines], False
            case "shuffled loop":
                return 0, self.order[self.loop(len(self.order), DEPTH)], False
            case "loop of 1.2 pools":
                return 0, self.loop(pool * 6 // 5, DEPTH), False
            case "uniform":
                return 0, random.integers(0, pool * 3, DEPTH), False
            case "scan and hot set":
                lines = random.integers(0, pool * 3 // 4, DEPTH)
                lines = self.places[lines]
                scan = 4 * pool + (self.scanned + np.arange(DEPTH // 2)) % (4 * pool)
                self.scanned += DEPTH // 2
                lines[::2] = scan
                return 0, lines, False
            case "four streams":
                stream = random.integers(0, 4)
                first = self.streams[stream] % (2 * pool) + stream * 2 * pool
                self.streams[stream] += DEPTH
                return 0, first + np.arange(DEPTH), False
            case "two volumes":
                if random.random() < 0.5:
                    return 1, self.order[self.loop(len(self.order), DEPTH)], False
                return 0, self.zipf(0.9, DEPTH), False
            case "zipf 0.9, 30 % writes":
                return 0, self.zipf(0.9, DEPTH), random.random() < 0.3


LOADS = [
    "zipf 0.8", "zipf 1.1", "hot set 80:10", "shuffled loop", "loop of 1.2 pools", "uniform",
    "scan and hot set", "four streams", "two volumes", "zipf 0.9, 30 % writes",
]


class Server:
    """A server with two volumes in memory."""

    def __init__(self, program, directory, memory, mode):
        self.program, self.state = program, os.path.join(directory, "state")
        self.nbd = os.path.join(directory, "nbd")
        with open(os.path.join(directory, "log"), "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [program, "serve", "--keeper", "no", "--state", self.state, "--nbd",
                 f"unix:{self.nbd}", "--memory", str(memory),
                 "--volume", f"one=memory:4GiB,{mode}",
                 "--volume", f"two=memory:4GiB,{mode}"],
                stdout=log, stderr=log)
        while not os.path.exists(self.nbd):
            assert self.process.poll() is None, open(log.name, encoding="utf-8").read()
            time.sleep(0.05)
        time.sleep(0.2)

    def run(self, *arguments):
        command = [self.program, *arguments, "--state", self.state]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def status(self):
        return json.loads(self.run("status", "--json"))

    def stop(self):
        self.process.terminate()
        self.process.wait()


def figures(status, volume):
    """Accesses and misses of a volume."""
    counters = status["volumes"][volume]["counters"]
    accesses = counters["reads"] + counters["writes"]
    return np.array([accesses, accesses - counters["read_hits"] - counters["write_hits"]])


def drive(clients, load, count, seconds):
    end = time.monotonic() + seconds
    batches = count // DEPTH
    while batches > 0 or time.monotonic() < end:
        batches -= 1
        volume, lines, is_write = load.batch()
        clients[volume].batch(lines, is_write)


def compare(program, mib, name):
    """The rows of one load: a list of (name, predicted, measured)."""
    volumes = [0, 1] if name == "two volumes" else [0]
    mode = "mode=write-through"
    if "writes" in name:
        mode = "mode=write-back,protection=none,accept-loss=yes"
    with tempfile.TemporaryDirectory() as directory:
        server = Server(program, directory, 2 * mib << 20, mode)
        memory = server.status()["memory"]
        most, pool = memory["limit_bytes"], memory["pool_bytes"]
        load = Load(name, pool // 2 // LINE)
        clients = [Client(server.nbd, "one"), Client(server.nbd, "two")]
        predicted, measured = {}, {volume: {} for volume in volumes}
        for size, part in [("now", 0.5), ("half", 0.25), ("twice", 1.0)]:
            server.run("set", f"memory={int(most - pool * (1 - part))}")
            lines = load.pool * (2 if size == "twice" else 1)
            drive(clients, load, WARM * lines, WARM)
            before = server.status()
            drive(clients, load, COUNTED * lines, COUNTED)
            after = server.status()
            for volume in volumes:
                accesses, misses = figures(after, volume) - figures(before, volume)
                measured[volume][size] = misses / accesses
                if size == "now":
                    predicted[volume] = after["volumes"][volume]["curve"].get("outlook")
        server.stop()
        rows = []
        for volume in volumes:
            of = predicted[volume]
            label = name
            if len(volumes) > 1:
                label += ": " + ["zipf 0.9", "shuffled loop"][volume]
            ratios = [of[f"miss_ratio_{size}"] for size in ("half", "now", "twice")] if of else []
            rows.append((label, ratios, [measured[volume][it] for it in ("half", "now", "twice")]))
        return rows


def main():
    program = sys.argv[1]
    sizes = [int(size) for size in sys.argv[2:]] or [64, 256]
    for mib in sizes:
        print(f"| {mib} MiB | predicted: half, now, twice | measured | largest difference |")
        print("| --- | --- | --- | ---: |")
        for name in LOADS:
            for label, predicted, measured in compare(program, mib, name):
                errors = [abs(one - other) for one, other in zip(predicted, measured)]
                cells = [" ".join(f"{ratio:.3f}" for ratio in of) for of in (predicted, measured)]
                print(f"| {label} | {cells[0]} | {cells[1]} | {max(errors, default=1):.3f} |",
                      flush=True)


if __name__ == "__main__":
    main()
