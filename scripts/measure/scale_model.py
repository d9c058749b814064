#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Predicts the time of attention and of training over ranks, from the speed of one.

usage: scale_model.py                  predictions for 8, 64 and 1024 ranks (docs/scale.md)
       scale_model.py --check BUILD    comparison with two ranks on this machine, or on two hosts
                                       (--hosts one,two, as in rank_speed.py)

Attention: the simulator follows every message and every call of ring_attention and
ring_attention_backward. A call takes the time of its (query, key) pairs at the measured speed of
one rank; a message takes the latency and its bytes at the bandwidth, and begins when both ends are
ready, the sender sends no other message and the receiver receives none.
"""

import argparse
import collections
import statistics

import rank_speed

KEYS_OF_PIECE = 1024  # kPiece in src/ranks/ring_backward.cc
NUMBER = 4  # bytes of float32

Part = collections.namedtuple("Part", "begin end rank")
# The seconds of a (query, key) pair in all heads, forward and backward; the latency in seconds and
# the bandwidth in bytes per second of a message; the bytes of a row of keys and values.
Machine = collections.namedtuple("Machine", "forward backward latency bandwidth row_bytes")


def parts_of(length, ranks, zigzags):
    if zigzags == 0:
        rows = length // ranks
        return [Part(r * rows, (r + 1) * rows, r) for r in range(ranks)]
    rows = length // (2 * ranks * zigzags)
    order = [*range(ranks), *reversed(range(ranks))] * zigzags
    return [Part(n * rows, (n + 1) * rows, rank) for n, rank in enumerate(order)]


def pairs(queries, keys, causal):
    """The unmasked pairs of a call; on a causal diagonal, estimated from each 64th query."""
    n, m = queries.end - queries.begin, keys.end - keys.begin
    if not causal or keys.end <= queries.begin:
        return n * m
    if keys.begin >= queries.end:
        return 0
    return sum(min(max(i + 1 - keys.begin, 0), m) for i in range(queries.begin, queries.end, 64)) * min(64, n)


class Network:
    """When messages arrive. A message occupies the sender's output and the receiver's input."""

    def __init__(self, machine):
        self.machine = machine
        self.out = collections.defaultdict(float)
        self.into = collections.defaultdict(float)

    def arrival(self, source, target, size, ready):
        begin = max(ready, self.out[source], self.into[target])
        end = begin + size / self.machine.bandwidth
        self.out[source] = self.into[target] = end
        return end + self.machine.latency


def forward(machine, length, ranks, causal, zigzags=rank_speed.ZIGZAGS, tree=False):
    """The seconds of ring_attention; with `tree`, as if keys were broadcast in a binomial tree."""
    parts = parts_of(length, ranks, zigzags)
    own = [[part for part in parts if part.rank == rank] for rank in range(ranks)]
    network = Network(machine)
    # For each rank: when its last call ends, and when it asked for the next keys.
    done, asked = [0.0] * ranks, [0.0] * ranks
    for keys in parts:
        for rank in range(ranks):
            count = sum(pairs(queries, keys, causal) for queries in own[rank])
            if count == 0:
                continue
            begin = done[rank]
            if keys.rank != rank:
                size = (keys.end - keys.begin) * machine.row_bytes
                if tree:
                    hops = ((rank - keys.rank) % ranks).bit_length()
                    begin = max(begin, asked[rank] + hops * (size / machine.bandwidth + machine.latency))
                else:
                    begin = max(begin, network.arrival(keys.rank, rank, size, asked[rank]))
            asked[rank] = begin
            done[rank] = begin + count * machine.forward
    return max(done)


def backward(machine, length, ranks, causal, zigzags=rank_speed.ZIGZAGS):
    """The seconds of ring_attention_backward.

    Pieces of the keys go from station to station. A station is a part of the queries; a piece
    visits those with which it has pairs, in order.
    """
    parts = parts_of(length, ranks, zigzags)
    pieces = [Part(n, min(n + KEYS_OF_PIECE, part.end), part.rank)
              for part in parts for n in range(part.begin, part.end, KEYS_OF_PIECE)]
    paths = [[n for n, part in enumerate(parts) if pairs(part, piece, causal) > 0] for piece in pieces]
    tasks = sorted((piece + station, piece, station) for piece, path in enumerate(paths) for station in path)
    network = Network(machine)
    clock, asked = [0.0] * ranks, [0.0] * ranks
    left = {}  # when a piece left the station that it visited last
    for _, piece, station in tasks:
        rank, keys = parts[station].rank, pieces[piece]
        place = paths[piece].index(station)
        source = keys.rank if place == 0 else parts[paths[piece][place - 1]].rank
        ready = 0.0 if place == 0 else left[piece]
        if source != rank:
            # From its second station on, a piece also carries the gradients of its keys and values.
            size = (keys.end - keys.begin) * machine.row_bytes * (1 if place == 0 else 2)
            ready = network.arrival(source, rank, size, max(ready, asked[rank]))
        begin = max(clock[rank], ready)
        asked[rank] = clock[rank]
        clock[rank] = left[piece] = begin + pairs(parts[station], keys, causal) * machine.backward
    ends = [left[n] for n in range(len(pieces))]
    return max(*clock, *ends) + machine.latency


def check(build):
    """Compares predictions for two ranks with a measurement."""
    T, H, D = rank_speed.SEQUENCE.values()
    worst = 0
    for causal in (1, 0):
        runs = {1: [], 2: []}
        for _ in range(3):
            for count, results in runs.items():
                results.append(rank_speed.ring(build, count, causal, 2))
        seconds = {count: {way: statistics.median(second for run in results for second in run[way])
                           for way in ("forward", "backward")} for count, results in runs.items()}
        count = T * (T + 1) / 2 if causal else T * T
        last = runs[2][-1]
        machine = Machine(seconds[1]["forward"] / count, seconds[1]["backward"] / count, last["latency"],
                          last["bytes_per_second"], 2 * H * D * NUMBER)
        for way, predict in (("forward", forward), ("backward", backward)):
            predicted = predict(machine, T, 2, bool(causal))
            error = predicted / seconds[2][way] - 1
            worst = max(worst, abs(error))
            print(f"{'causal' if causal else 'all pairs'}, {way}: measured {seconds[2][way]:.3f} s, predicted "
                  f"{predicted:.3f} s, {100 * error:+.1f} %")
    print(f"largest error {100 * worst:.1f} %")


def tables(pair_forward, pair_backward, cores):
    """Prints the table behind docs/scale.md. A rank is a server of `cores` cores.

    pair_forward and pair_backward are the seconds of a pair in the heads of SEQUENCE on one core.
    """
    H, D, split = 32, 128, 8
    scale = (H * D) / (rank_speed.SEQUENCE["H"] * rank_speed.SEQUENCE["D"]) / cores
    print("| ranks | rows | Gbit/s | forward | tree | heads split | backward |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for ranks in (8, 64, 1024):
        for rows in (2048, 16384):
            length = ranks * rows
            pairs_of_rank = length * (length + 1) / 2 / ranks
            zigzags = max(1, min(rank_speed.ZIGZAGS, rows // 1024))
            for gigabits in (25, 200):
                bandwidth = gigabits * 1e9 / 8
                machine = Machine(pair_forward * scale, pair_backward * scale, 10e-6, bandwidth, 2 * H * D * NUMBER)
                ideal = pairs_of_rank * machine.forward
                direct = forward(machine, length, ranks, True, zigzags)
                tree = forward(machine, length, ranks, True, zigzags, tree=True)
                # With heads split, a rank has all rows of `split` ranks in 1/split of the heads.
                # Ranks exchange rows of q, k, v and out.
                exchange = 4 * rows * H * D * NUMBER * (split - 1) / split / bandwidth
                part = machine._replace(forward=machine.forward / split, row_bytes=machine.row_bytes / split)
                heads = exchange + forward(part, length, ranks // split, True, rank_speed.ZIGZAGS)
                back = ""
                if ranks * rows <= 64 * 16384:
                    second = backward(machine, length, ranks, True, zigzags)
                    back = f"{second:.2f} s, {100 * pairs_of_rank * machine.backward / second:.0f} %"
                shown = [f"{second:.2f} s, {100 * ideal / second:.0f} %" for second in (direct, tree, heads)]
                print(f"| {ranks} | {length:,} | {gigabits} | {' | '.join(shown)} | {back} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", metavar="BUILD")
    parser.add_argument("--hosts", type=lambda names: names.split(","), default=[])
    parser.add_argument("--pair", nargs=2, type=float, default=(9.8e-9, 24e-9), metavar="SECONDS",
                        help="of a (query, key) pair with 8 heads of 64 channels, forward and backward, on one core")
    parser.add_argument("--cores", type=int, default=64)
    options = parser.parse_args()
    rank_speed.hosts.extend(options.hosts)
    if options.check:
        check(options.check)
    else:
        tables(*options.pair, options.cores)


if __name__ == "__main__":
    main()
