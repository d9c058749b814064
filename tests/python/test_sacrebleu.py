# SPDX-License-Identifier: Apache-2.0
"""Compares `qkv score` with sacreBLEU, on real sentences and on hostile ones."""

import json
import os
import pathlib
import random
import subprocess
import sys

import pytest
from patience import PATIENCE

sacrebleu = pytest.importorskip("sacrebleu")

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLE = ROOT / "tests" / "app" / "text" / "sacrebleu.tsv"
DATA = pathlib.Path(os.environ.get("QKV_DATA_DIR") or ROOT.parent / "shared" / "data")
TATOEBA = DATA / "tatoeba-eng-fra.tsv"
PIECES = [
    *("le", "la", "chat", "L'", "l’été", " ", "  ", "\u00a0", "\u202f", "\u3000", ".", ",", "..."),
    *("…", "!", "?", "« ", " »", "-", "--", "3,14", "1.000", "5-", "a.b", "&quot;", "&amp;"),
    *(
        "&lt;",
        "&amp;gt;",
        "<skipped>",
        "<b>",
        "我们",
        "。",
        "日本",
        "👍🏽",
        "👨‍👩‍👧",
        "e\u0301",
        "é",
    ),
    *("\u200b", "\x1c", "\x85", "'", '"', "(", "]", "~", "`", "|", "%", "€", "$5"),
]


def with_references(sentences):
    """sacreBLEU's list of references: the first of all sentences, then the second of all, ..."""
    most = max(len(references) for _, references in sentences)
    return [[r[n] if n < len(r) else None for _, r in sentences] for n in range(most)]


def judged(sentences):
    hypotheses = [hypothesis for hypothesis, _ in sentences]
    references = with_references(sentences)
    metrics = sacrebleu.BLEU(), sacrebleu.CHRF()
    scores = [metric.corpus_score(hypotheses, references).score for metric in metrics]
    return scores, [str(metric.get_signature()) for metric in metrics]


def score(sentences, directory, *arguments):
    """The program's report on [(hypothesis, [reference, ...]), ...]."""
    with open(directory / "data.tsv", "w", encoding="utf-8", newline="\n") as data:
        for n, (_, references) in enumerate(sentences):
            data.writelines(f"{n}\t{reference}\n" for reference in references)
    text = "".join(f"{hypothesis}\n" for hypothesis, _ in sentences)
    (directory / "theirs.txt").write_bytes(text.encode())
    command = [
        sys.executable,
        "-m",
        "qkv",
        "score",
        "--hypotheses",
        "theirs.txt",
        "data.tsv",
        "--json",
    ]
    done = subprocess.run([*command, *arguments], cwd=directory, capture_output=True, text=True,
                          timeout=PATIENCE, encoding="utf-8")  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check(sentences, directory):
    report = score(sentences, directory)
    (bleu, chrf), signatures = judged(sentences)
    assert abs(report["bleu"] - bleu) < 0.01, (report["bleu"], bleu)
    assert abs(report["chrf2"] - chrf) < 0.01, (report["chrf2"], chrf)
    for name, signature in zip(("bleu_signature", "chrf2_signature"), signatures):
        assert report[name].split("|version:")[0] == signature.split("|version:")[0]
    return report


def noise(draw, most):
    return "".join(draw.choice(PIECES) for _ in range(draw.randint(0, most)))


def changed(draw, text):
    """A copy of the text with up to three random changes of words."""
    words = text.split(" ")
    for _ in range(draw.randint(0, 3)):
        n = draw.randrange(len(words))
        words[n : n + 1] = draw.choice(
            ([], [words[n]] * 2, [draw.choice(PIECES)], [words[n], words[0]])
        )
        words = words or [""]
    return " ".join(words)


@pytest.mark.parametrize("seed", range(20))
def test_hostile_text(seed, tmp_path):
    draw = random.Random(seed)
    sentences = []
    for _ in range(draw.choice((1, 2, 5, 30))):
        references = [noise(draw, 12) for _ in range(draw.choice((1, 1, 2, 3, 6)))]
        if draw.random() < 0.2:
            references[draw.randrange(len(references))] = draw.choice(("", " ", "\u200b"))
        sentences.append(
            (draw.choice((noise(draw, 20), changed(draw, references[-1]))), references)
        )
    check(sentences, tmp_path)


def real_sentences(count, seed):
    references = {}
    with open(TATOEBA, encoding="utf-8") as lines:
        for line in lines:
            source, target = line.rstrip("\n").split("\t")[:2]
            references.setdefault(source, []).append(target)
    draw = random.Random(seed)
    drawn = draw.sample(list(references.values()), count)
    return [(changed(draw, draw.choice(targets)), targets) for targets in drawn]


@pytest.mark.skipif(not TATOEBA.exists(), reason=f"no {TATOEBA.name}")
@pytest.mark.parametrize("seed", range(3))
def test_real_sentences(seed, tmp_path):
    sentences = real_sentences(2000, seed)
    report = check(sentences, tmp_path)
    assert 20 < report["bleu"] < 95
    one = report["one_reference"]
    several = [(t, list(dict.fromkeys(r))) for t, r in sentences if len(set(r)) > 1]
    # References that differ only in quotation marks or spaces are one reference for qkv.
    assert abs(one["sentences"] - len(several)) <= 5
    (bleu, chrf), _ = judged([(r[1], r[:1]) for _, r in several])
    assert abs(one["humans"]["bleu"] - bleu) < 0.5
    assert abs(one["humans"]["chrf2"] - chrf) < 0.5


def test_paired_bootstrap(tmp_path):
    """qkv and sacreBLEU draw samples by different generators, so that p differs by chance."""
    from sacrebleu.significance import PairedTest

    draw = random.Random(4)
    references = [[" ".join(draw.choices("abcdefgh", k=8))] for _ in range(300)]
    systems = [[changed(draw, r[0]) for r in references] for _ in range(2)]
    (tmp_path / "other.txt").write_text(
        "".join(f"{text}\n" for text in systems[1]), encoding="utf-8"
    )
    report = score(list(zip(systems[0], references)), tmp_path, "--against", "other.txt")
    metrics = {"BLEU": sacrebleu.BLEU(references=[[r[0] for r in references]])}
    _, scores = PairedTest(list(zip("ab", systems)), metrics, None, test_type="bs")()
    wanted = scores["BLEU"][1].p_value
    assert 0.02 < wanted < 0.98
    assert abs(report["against"]["bleu_p"] - wanted) < 0.08  # about four standard deviations
    assert abs(report["against"]["bleu"] - scores["BLEU"][1].score) < 0.01


def rows():
    text = TABLE.read_bytes().decode()
    return [line.split("\t") for line in text.split("\n") if line and not line.startswith("#")]


def test_the_frozen_tokens():
    """The tokens in the table of the C++ tests, which have no sacreBLEU, are sacreBLEU's."""
    metric = sacrebleu.BLEU()
    tokens = [row for row in rows() if row[0] == "tokens"]
    assert len(tokens) > 30
    for _, text, wanted in tokens:
        assert metric._preprocess_segment(text) == wanted


def test_the_frozen_scores():
    corpora = []
    for row in rows():
        if row[0] == "corpus":
            corpora.append((row[1:], []))
        elif row[0] == "sentence":
            corpora[-1][1].append((row[1], row[2:]))
    assert len(corpora) > 15
    for (name, count, bleu, chrf), sentences in corpora:
        scores, signatures = judged(sentences)
        assert signatures[0].startswith(f"nrefs:{count}|"), name
        assert abs(scores[0] - float(bleu)) < 1e-9, name
        assert abs(scores[1] - float(chrf)) < 1e-9, name
