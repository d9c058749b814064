# SPDX-License-Identifier: Apache-2.0
"""Where the time of `qkv train` goes, by operation, and the share of the multiply-add peak.

    scripts/measure/translator_time.py build/release/bin/qkv

Needs Linux's perf (Debian: linux-perf), allowed to see this user's programs, and a program with its
symbols. Pairs are random words, so that the work is known: two lengths from 4 to 20 for each pair,
padding counts as no work. One thread; perf counts its CPU time, the kernel's for it included, and
the peak is that of `qkv bench`, measured before and after in CPU time too. Reading the text, saving
and the parameters' first numbers are left out.
"""

import argparse
import collections
import json
import pathlib
import random
import subprocess
import tempfile

E, H, U, WORDS, SPECIALS = 128, 256, 128, 7996, 4  # 8,000 tokens on each side
C = 2 * H
V = WORDS + SPECIALS
FREQUENCY = 400  # samples a second
STACK = 65528  # bytes of it kept with a sample

# The first operation all of whose names are in the stack of a sample, and its multiply-adds by
# counts: S, T tokens of sources and targets, P pairs of them, N pairs of sentences.
OPERATIONS = {
    "encoder: steps": (["EncoderPass::forward", "gru_forward"], "2*S*3*H*(E+H)"),
    "encoder: gradients of steps": (["EncoderPass::backward", "gru_backward"], "2*S*3*H*(E+H)"),
    "encoder: gradients of weights": (
        ["EncoderPass::backward", "gru_parameter_gradients"], "2*S*3*H*(E+H)"),
    "encoder: start": (["EncoderPass::start"], "3*N*H*H"),
    "attention: keys": (["AdditiveSteps::project_keys"], "S*U*C"),
    "attention: steps": (["AdditiveSteps::attend"], "T*U*H + P*C"),
    "attention: gradients of steps": (["AdditiveSteps::undo"], "2*T*U*H + 2*P*C"),
    "attention: gradients of keys": (["AdditiveSteps::finish"], "2*S*U*C"),
    "decoder: steps": (["TranslatorPass::decode", "GruCell::Steps::forward"], "T*3*H*(C+E+H)"),
    "decoder: gradients of steps": (
        ["TranslatorPass::decode_backward", "GruCell::Steps::backward"], "T*3*H*(C+E+H)"),
    "decoder: gradients of weights": (
        ["TranslatorPass::decode_backward", "GruCell::parameter_gradients"], "T*3*H*(C+E+H)"),
    "readout: forward": (["TranslatorPass::read_out", "Linear::forward"], "T*2*H*(H+C+E)"),
    "readout: gradient of input": (
        ["TranslatorPass::read_out_backward", "linear_backward_input"], "T*2*H*(H+C+E)"),
    "readout: gradient of weight": (
        ["TranslatorPass::read_out_backward", "backward_parameters"], "T*2*H*(H+C+E)"),
    "output: logits": (["OutputPass::predict", "PackedLinear::forward"], "T*H*V"),
    "output: gradient of input": (["OutputPass::predict", "backward_input"], "T*H*V"),
    "output: gradient of weight": (
        ["OutputPass::predict", "backward_parameters"], "T*H*V"),
    "output: loss and its gradient": (["OutputPass::predict", "CrossEntropy"], "0"),
    "embeddings": (["::Embedding::"], "0"),
    "dropout": (["DropoutLayer"], "0"),
    "GRU weights packed": (["GruCell::Steps::Steps"], "0"),
    "weights packed": (["pack"], "0"),
    "sums of gradients over shards": (["sum_tree"], "0"),
    "norm of gradients": (["gradient_norm"], "0"),
    "Adam": (["Adam::step"], "0"),
}
LEFT_OUT = ["read_translation_data", "TrainingState::save", "write_model_file", "initialise",
            "Adam::Adam", "_dl_start", "zero_gradients"]


def write_pairs(path, pairs):
    """Random words, those of low rank more often; every word occurs. The counts S, T, P, N."""
    chosen = random.Random(1)
    unseen = {"a": list(range(WORDS)), "b": list(range(WORDS))}
    counts = dict.fromkeys("STPN", 0)

    def words(prefix, length):
        rest = unseen[prefix]
        first = [rest.pop() for _ in range(min(len(rest), length // 2))]
        ranks = [int(WORDS ** chosen.random()) for _ in range(length - len(first))]
        return " ".join(f"{prefix}{rank}" for rank in first + ranks)

    with open(path, "w", encoding="utf-8") as lines:
        for _ in range(pairs):
            length = chosen.randint(4, 20)
            other = max(2, length + chosen.randint(-2, 3))
            lines.write(f"{words('a', length)}\t{words('b', other)}\n")
            counts["S"] += length + 1  # and the end
            counts["T"] += other + 1
            counts["P"] += (length + 1) * (other + 1)
            counts["N"] += 1
    if any(unseen.values()):
        raise SystemExit(f"--pairs {pairs}: too few for {WORDS} words")
    return counts


def peak(program):
    """Multiply-adds a second of one thread."""
    command = [program, "bench", "dense", "--quick", "--json"]
    rows = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)["rows"]
    return max(row["base"]["best_rate"] for row in rows.values() if row["threads"] == 1) / 2


def record(program, folder, epochs):
    """The stacks of a training, each a text of its frames."""
    samples = folder / "perf.data"
    run = [program, "train", folder / "pairs.tsv", "-o", folder / "run", "--tokenize", "word",
           "--embedding", E, "--hidden", H, "--units", U, "--batch-tokens", 4096, "--threads", 1,
           "--after", f"{epochs}e", "--save-freq", "1000e", "--quiet"]
    perf = ["perf", "record", "-q", "-e", "cpu-clock", "-F", FREQUENCY, "--call-graph",
            f"dwarf,{STACK}", "-o", samples, "--"]
    subprocess.run([str(word) for word in perf + run], check=True, stdout=subprocess.DEVNULL)
    config = json.loads((folder / "run" / "config.json").read_text(encoding="utf-8"))
    text = subprocess.run(["perf", "script", "-i", samples, "--no-inline", "-F", "ip,sym"],
                          check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    return config, text.decode("utf-8").split("\n\n")


def operation_of(stack):
    if any(name in stack for name in LEFT_OUT):
        return None
    for operation, (names, _) in OPERATIONS.items():
        if all(name in stack for name in names):
            return operation
    return "the rest"


def table(samples, counts, rate):
    """Lines of Markdown."""
    sizes = {"E": E, "H": H, "U": U, "C": C, "V": V, **counts}
    every = sum(samples.values())
    lines = ["| operation | multiply-adds for a target token, thousands | of the time | of the peak |",
             "| --- | --- | --- | --- |"]
    work_of_all = 0
    for operation in [*OPERATIONS, "the rest"]:
        _, formula = OPERATIONS.get(operation, ([], "0"))
        work = eval(formula, {}, sizes)  # of the list above
        work_of_all += work
        share = samples[operation] / every
        seconds = samples[operation] / FREQUENCY
        line = f"| {operation} | {work / counts['T'] / 1000:,.0f} | {100 * share:.1f} % |"
        line += f" {100 * work / seconds / rate:.0f} % |" if work and seconds else "  |"
        lines.append(line)
    share = work_of_all / (every / FREQUENCY) / rate
    lines.append(f"| all | {work_of_all / counts['T'] / 1000:,.0f} | 100 % | {100 * share:.0f} % |")
    return lines


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    options.add_argument("program", type=pathlib.Path, help="qkv, with its symbols")
    options.add_argument("--pairs", type=int, default=6000)
    options.add_argument("--epochs", type=int, default=1)
    given = options.parse_args()
    program = given.program.resolve()
    samples = collections.Counter()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        counts = write_pairs(folder / "pairs.tsv", given.pairs)
        before = peak(program)
        config, stacks = record(program, folder, given.epochs)
        rate = max(before, peak(program))
        if config["target_tokens"] != V or config["source_tokens"] != V:
            raise SystemExit(f"the program's vocabularies are not of {V} tokens")
    for stack in stacks:
        operation = operation_of(stack) if stack.strip() else None
        if operation:
            samples[operation] += 1
    counts = {letter: count * given.epochs for letter, count in counts.items()}
    seconds = sum(samples.values()) / FREQUENCY
    print(f"{counts['T']} target tokens, {seconds:.1f} s of CPU time, "
          f"{counts['T'] / seconds:.0f} tokens a second; "
          f"peak {2 * rate / 1e9:.0f} GFLOP/s\n")
    print("\n".join(table(samples, counts, rate)))


if __name__ == "__main__":
    main()
