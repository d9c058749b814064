# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of translator_peers.py: answers requests from standard input on standard output.

Each request and each answer is a line of JSON.

usage: torch_worker.py eager|compiled THREADS
"""

import json
import os
import resource
import sys
import time
from pathlib import Path


class Worker:
    def __init__(self, way, threads):
        import torch  # imported here, so that if PyTorch is missing, an answer says so
        import torch_search
        import torch_translator

        torch.set_num_threads(threads)
        torch.manual_seed(1)
        self.torch, self.compiled = torch, way == "compiled"
        self.search, self.translators = torch_search, torch_translator

    def version(self):
        return self.torch.__version__

    def load(self, work, batch_tokens):
        from translator_data import Model, epoch_batches, read_pairs

        work = Path(work)
        self.begin, self.model = (
            Model(work / name / "model.safetensors") for name in ("begin", "model")
        )
        self.settings = json.loads((work / "model" / "config.json").read_text(encoding="utf-8"))
        train, test = (read_pairs(work / name) for name in ("train.tsv", "test.tsv"))
        self.model.check_tokens(train)
        encoded = self.model.encoded(train)
        self.batches = {n: epoch_batches(encoded, n, self.settings["seed"]) for n in batch_tokens}
        self.test = self.model.encoded(test)
        # The trained model and the one in training have different parameters and modes.
        make = self.translators.Translator
        self.trained, self.training = (make(self.model, self.compiled) for _ in range(2))
        self.searcher = self.search.Searcher(self.trained, self.compiled)
        self.adam = self.faster_adam()

    def faster_adam(self):
        """The name of the faster of PyTorch's two fast implementations of Adam."""
        seconds = {}
        for adam in ("fused", "foreach"):
            training = self.from_begin(adam)
            for parameter in self.training.parameters():
                parameter.grad = self.torch.zeros_like(parameter)
            for _ in range(5):
                begin = time.perf_counter()
                training.adam.step()
                seconds[adam] = min(time.perf_counter() - begin, seconds.get(adam, 1e9))
        return min(seconds, key=seconds.get)

    def from_begin(self, adam):
        self.training.load(self.begin)
        self.training.train()
        return self.translators.Training(self.training, self.settings, adam)

    def loss(self):
        """The loss per target token of the held-out pairs."""
        self.trained.eval()
        total = 0.0
        with self.torch.inference_mode():
            for first in range(0, len(self.test), 64):
                batch = self.translators.Batch(self.test[first : first + 64])
                total += self.trained.loss(batch).item()
        return total / sum(len(pair.target) for pair in self.test)

    def follow(self, updates):
        """The mean loss per token over the first `updates` updates, without dropout."""
        training = self.from_begin(self.adam)
        dropout, self.training.dropout = self.training.dropout, 0.0
        first = next(iter(self.batches.values()))[:updates]
        losses = [training.update(batch) for batch in first]
        self.training.dropout = dropout
        return sum(loss.item() * n for loss, n in losses) / sum(n for _, n in losses)

    def train(self, batch_tokens, updates):
        """Times the first `updates` updates, each call from the same parameters."""
        training = self.from_begin(self.adam)
        begin = time.perf_counter()
        tokens = sum(training.update(batch)[1] for batch in self.batches[batch_tokens][:updates])
        return {"tokens": tokens, "seconds": time.perf_counter() - begin}

    def translate(self, beam):
        sources = [pair.source for pair in self.test]
        begin = time.perf_counter()
        found = self.searcher.translate(sources, beam)
        seconds = time.perf_counter() - begin
        tokens, scores = zip(*found)
        return {"seconds": seconds, "tokens": tokens, "scores": scores}

    def memory(self):
        """The peak memory of this process so far, in MiB."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    def which_adam(self):
        return self.adam


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # other output goes to standard error
    worker = None
    for line in sys.stdin:
        arguments = json.loads(line)
        try:
            worker = worker or Worker(sys.argv[1], int(sys.argv[2]))
            answer = {"result": getattr(worker, arguments.pop("do"))(**arguments)}
        except Exception as error:  # of any kind: the answer reports it
            text = " ".join(str(error).split())
            answer = {"failed": f"{type(error).__name__}: {text[:300]}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
