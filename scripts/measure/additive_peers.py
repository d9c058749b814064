#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times additive attention of qkv beside PyTorch (eager, compiled), KeOps and Keras, on one thread.

usage: additive_peers.py ENVIRONMENTS [--ours PYTHON] [--T 1024] [--rounds 7] [--only NAME ...]
                         [--cases NAME ...] [-o RESULTS.json]

ENVIRONMENTS is a folder outside of the checkout: an environment for each package is created there
with pip, unless it exists. If the index has PyTorch's build for CUDA, which is gigabytes,
PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu has the one for CPUs. Packages that do not
install are named and left out. --ours is a Python that has qkv (default: the checkout's
.venv-python, where scripts/python_package.sh puts it).

Each package runs in a process of its own, alternating with the others, on the same arrays, in
bursts. Before timing, the first rows of out are compared with NumPy's, and all of dq with qkv's. If
a formula can be written in several ways, the fastest is used. Ratios of a package's time to qkv's
are medians over rounds, their spread half the interquartile range; a rate is B Tq Tk U over the
time of a call. "step" is a forward pass and all gradients. No array of tanh is larger than 256 MiB
except Keras's, which has two of 1 GiB at T = 1024.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import numpy as np
from reports import Report

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
FORMULAS = pathlib.Path(__file__).with_name("additive_formulas.py")
UNITS, WIDTH = 256, 64
BURST = 0.2  # seconds

# The packages that are installed in each environment.
PACKAGES = {
    "torch": ["torch==2.13.0", "numpy"],
    "keops": ["torch==2.13.0", "numpy", "pykeops"],
    "keras": ["torch==2.13.0", "numpy", "keras"],
}
# For the name of each formula, its label and its environment ("": the one that has qkv).
PEERS = {
    "qkv": ("qkv", ""),
    "eager": ("PyTorch, eager", "torch"),
    "compile": ("PyTorch, compiled", "torch"),
    "keops": ("KeOps", "keops"),
    "keops-factored": ("KeOps, factored by hand", "keops"),
    "keras": ("Keras, without projections", "keras"),
}


def shapes(T):
    """(B, Tq, Tk) of each case."""
    return {"square": (1, T, T), "translator": (64, 30, 30), "speech": (16, 1, 800),
            "pointer": (128, 100, 100)}


def arrays(B, Tq, Tk):
    random = np.random.default_rng(7)

    def normal(deviation, *shape):
        return random.normal(0, deviation, shape).astype(np.float32)

    return {"q": normal(1, B, Tq, WIDTH), "k": normal(1, B, Tk, WIDTH),
            "values": normal(1, B, Tk, WIDTH), "Wq": normal(WIDTH**-0.5, UNITS, WIDTH),
            "Wk": normal(WIDTH**-0.5, UNITS, WIDTH), "b": normal(0.1, UNITS),
            "v": normal(UNITS**-0.5, UNITS), "dout": normal(1, B, Tq, WIDTH)}


def first_rows(x, rows=8):
    """Computes out of the first queries of the first batch entry, in float64."""
    x = {name: array.astype(np.float64) for name, array in x.items()}
    a = x["q"][0, :rows] @ x["Wq"].T + x["b"]
    r = x["k"][0] @ x["Wk"].T
    s = np.tanh(a[:, None] + r) @ x["v"]
    w = np.exp(s - s.max(-1, keepdims=True))
    return (w / w.sum(-1, keepdims=True)) @ x["values"][0]


# ---- processes -----------------------------------------------------------------------------------


class Worker:
    def __init__(self, name, python, folder):
        self.name = name
        self.label = PEERS[name][0]
        environment = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1",
                           KEOPS_CACHE_FOLDER=str(folder / "keops-cache"),
                           TORCHINDUCTOR_CACHE_DIR=str(folder / "inductor-cache"))
        self.process = subprocess.Popen([python, FORMULAS, name], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                        env=environment, encoding="utf-8")
        self.versions = self.answer()["versions"]

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            return {"error": f"ended with status {self.process.wait()}", "versions": {}}
        return json.loads(line)

    def ask(self, **request):
        if self.process.poll() is not None:
            return {"error": "has ended"}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def environment_python(folder, name):
    """The Python of an environment, created if needed; None, and a message, if that fails."""
    python = folder / name / "bin/python"
    made = folder / name / "made-of"
    if made.exists() and made.read_text(encoding="ascii").split() == PACKAGES[name]:
        return python
    print(f"making {python.parents[1]}", file=sys.stderr)
    install = [python, "-m", "pip", "install", "--quiet", *PACKAGES[name]]
    for command in ([sys.executable, "-m", "venv", folder / name], install):
        done = subprocess.run(command, stderr=subprocess.PIPE, encoding="utf-8", check=False)
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no word"])[-1]
            print(f"not installed: {' '.join(PACKAGES[name])}: {last}")
            return None
    made.write_text(" ".join(PACKAGES[name]), encoding="ascii")
    return python


def start(options):
    workers = []
    for name, (label, environment) in PEERS.items():
        if name != "qkv" and options.only and name not in options.only:
            continue
        python = options.ours
        if environment:
            python = environment_python(options.environments, environment)
        if python is None:
            continue
        worker = Worker(name, python, options.environments)
        if name == "qkv" and "qkv" not in worker.versions:
            sys.exit(f"{python} does not run qkv; see scripts/python_package.sh")
        if not worker.versions:
            print(f"left out: {label}: does not start")
        else:
            workers.append(worker)
    return workers


# ---- one case ------------------------------------------------------------------------------------


def fault(results, x, ours):
    """How the results differ from NumPy's or qkv's, in words; "" if they do not."""
    want = first_rows(x)
    error = np.abs(results["out"][0, : len(want)] - want).max()
    if not error < 1e-4:
        return f"out is wrong by {error:.1e}"
    if "dq" in results and ours is not None:
        error = np.abs(results["dq"] - ours["dq"]).max() / np.abs(ours["dq"]).max()
        if not error < 1e-4:
            return f"dq differs from ours by {error:.1e} of the largest"
    return ""


def bound_workers(workers, which, x, folder):
    """[(worker, calls of a burst, way)] of the workers with correct results; reports the others.

    Ends the program if qkv is not among them, since all are compared with it."""
    inputs, results = folder / "inputs.npz", folder / "results.npz"
    np.savez(inputs, **x)
    bound, ours = [], None
    for worker in workers:
        answer = worker.ask(**{"pass": which, "inputs": str(inputs), "results": str(results)})
        if "absent" in answer:
            continue
        wrong = answer.get("error")
        if not wrong:
            found = dict(np.load(results))
            wrong = fault(found, x, ours)
            ours = found if worker.name == "qkv" else ours
        if wrong and worker.name == "qkv":
            sys.exit(f"{which}: {worker.label}: {wrong}")
        if wrong:
            print(f"  {worker.label}: left out: {wrong}")
            continue
        bound.append((worker, max(1, round(BURST / answer["seconds"])), answer["how"]))
    return bound


def half_interquartile_range(values):
    values = sorted(values)
    quarter = len(values) // 4
    return (values[len(values) - 1 - quarter] - values[quarter]) / 2


def measure(report, case, shape, which, workers, rounds):
    B, Tq, Tk = shape
    x = arrays(*shape)
    with tempfile.TemporaryDirectory() as folder:
        bound = bound_workers(workers, which, x, pathlib.Path(folder))
    times = {worker.name: [] for worker, _, _ in bound}
    for _ in range(rounds):
        for worker, calls, _ in bound:
            answer = worker.ask(calls=calls)
            if "error" in answer:
                sys.exit(f"{worker.label}: {answer['error']}")
            times[worker.name].append(answer["seconds"])
    ours = times["qkv"]
    ratios = {worker.label: [t / o for t, o in zip(times[worker.name], ours)]
              for worker, _, _ in bound if worker.name != "qkv"}
    seconds = statistics.median(ours)
    report.add(f"{case}-{which}", seconds=seconds, rate=B * Tq * Tk * UNITS / seconds,
               ratios={label: statistics.median(each) for label, each in ratios.items()},
               spreads={label: half_interquartile_range(each) for label, each in ratios.items()},
               ways={worker.label: how for worker, _, how in bound if how})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("environments", type=pathlib.Path)
    parser.add_argument("--ours", default=CHECKOUT / ".venv-python/bin/python")
    parser.add_argument("--T", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="+", choices=[*PEERS])
    parser.add_argument("--cases", nargs="+", choices=[*shapes(0)])
    parser.add_argument("-o", "--output", help="write the rows there, as JSON")
    options = parser.parse_args()
    options.environments = options.environments.resolve()
    options.environments.mkdir(parents=True, exist_ok=True)
    workers = start(options)
    versions = {name: text for worker in workers for name, text in worker.versions.items()}
    report = Report(threads=1, rounds=options.rounds, versions=versions, units=UNITS, width=WIDTH)
    for case, shape in shapes(options.T).items():
        for which in ("forward", "step"):
            if not options.cases or case in options.cases:
                measure(report, case, shape, which, workers, options.rounds)
    for worker in workers:
        worker.close()
    if options.output:
        report.write(options.output)


if __name__ == "__main__":
    main()
