# SPDX-License-Identifier: Apache-2.0
"""Tests qkv.Translator: it gives what `qkv translate` gives, from demo models and from a run."""

import concurrent.futures
import os
import subprocess
import sys

import numpy as np
import pytest
from ctrl_c import ctrl_c_after
from patience import PATIENCE

import qkv

TEXTS = [
    "I am hungry.",
    "Where is the station?",
    "If it rains tomorrow, we will stay at home.",
    "",
    "The black cat is sleeping on the white chair.",
    "Tom's café “costs” 12 € — naïve, isn't it?",
    "日本語",
]
DATES = ["the 3rd of May, 1987", "Dec 14th 2094", "1/2/1999"]


def run(folder, *arguments, **options):
    done = subprocess.run([sys.executable, "-m", "qkv", *arguments], capture_output=True,
                          cwd=folder, timeout=PATIENCE, check=False, **options)  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.fixture(scope="module")
def demo():
    return qkv.Translator.demo()


@pytest.fixture(scope="module")
def dates():
    return qkv.Translator.dates()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with two runs on words: RUN, and NONE, which has no attention.

    In both runs, words that occur fewer than nine times are <unk>, in sources and in targets.
    """
    made = tmp_path_factory.mktemp("runs")
    pairs = "the cat sat\tle chat dort\na dog ran\tun chien court\nthe dog sat\tle chien dort\n"
    (made / "pairs.tsv").write_text(pairs * 8, encoding="utf-8")
    small = ("--tokenize", "word", "--min-count", "9", "--embedding", "8", "--hidden", "8",
             "--units", "8", "--lr", "0.02", "--after", "150u", "--quiet")  # fmt: skip
    run(made, "train", "pairs.tsv", "-o", "RUN", *small, "--valid", "pairs.tsv")
    run(made, "train", "pairs.tsv", "-o", "NONE", *small, "--attention", "none")
    return made


def printed(translations):
    return "".join(f"{translation}\n" for translation in translations).encode()


@pytest.mark.parametrize(("options", "keywords"), [
    ([], {}),
    (["--beam", "5"], {"beam": 5}),
    (["--beam", "4", "--length-penalty", "0"], {"beam": 4, "length_penalty": 0}),
    (["--most-tokens", "3"], {"most_tokens": 3}),
])  # fmt: skip
def test_equals_the_command(tmp_path, demo, options, keywords):
    lines = "".join(f"{text}\n" for text in TEXTS).encode()
    wanted = run(tmp_path, "translate", "--demo", *options, input=lines)
    found = demo.translate(TEXTS, **keywords)
    assert printed(found) == wanted
    assert printed(demo.translate(TEXTS, return_weights=False, threads=1, **keywords)) == wanted
    for text, one in zip(TEXTS, found):
        alone = demo.translate(text, **keywords)
        assert (str(alone), alone.line, alone.source, alone.target) == (
            one.text, text, one.source, one.target)  # fmt: skip
        assert alone.log_probability == one.log_probability
        assert alone.is_whole == (text == "" or "most_tokens" not in keywords)


def test_dates_equal_the_command(tmp_path, dates):
    lines = "".join(f"{text}\n" for text in DATES).encode()
    assert printed(dates.translate(DATES)) == run(tmp_path, "translate", "--dates", input=lines)
    assert str(dates.translate(DATES[0])) == "1987-05-03"


def test_alignments_equal_the_file(tmp_path, demo):
    lines = "".join(f"{text}\n" for text in TEXTS).encode()
    run(tmp_path, "translate", "--demo", "--beam", "3", "-o", "all.npz", input=lines)
    found = demo.translate(TEXTS, 3)
    with np.load(tmp_path / "all.npz") as file:
        np.testing.assert_array_equal(file["log_probability"], [t.log_probability for t in found])
        for n, one in enumerate(found):
            assert (file["line"][n], file["translation"][n]) == (one.line, one.text)
            rows, columns = len(one.target), len(one.source)
            assert file["tgt"][n].tolist()[:rows] == one.target
            assert file["src"][n].tolist()[:columns] == one.source
            if one.weights is None:
                assert (rows, columns, one.text) == (0, 0, "")
                continue
            assert one.weights.dtype == np.float32
            assert one.weights.tobytes() == file["attn"][n, 0, 0, :rows, :columns].tobytes()
            arrays = one._attention_arrays_()
            assert arrays["attn"] is one.weights
            assert arrays["tgt"].tolist() == one.target and arrays["src"].tolist() == one.source
            assert (arrays["line"], arrays["translation"]) == ([one.line], [one.text])


def test_translations_are_drawn_as_by_the_program(tmp_path, demo):
    one = demo.translate("I am hungry.")
    shown = qkv.show(one).text(80)
    wanted = run(tmp_path, "translate", "--demo", one.line, "--show", "--color", "never").decode()
    rows = [line for line in wanted.splitlines() if "▁faim" in line]
    assert rows and rows[0] in shown.splitlines()
    forms = one._repr_mimebundle_()
    assert forms["text/plain"] == repr(one) and "▁faim" in forms["image/svg+xml"]
    assert set(demo.translate("")._repr_mimebundle_()) == {"text/plain"}
    with pytest.raises(ValueError, match="^show: keys are for arrays; a Translation has its own"):
        qkv.show(one, keys=["a"])
    message = "^show: weights must be one Translation, got a list of 2: show one of them, such as"
    with pytest.raises(TypeError, match=message):
        qkv.show([one, one])


def test_translations_are_values(demo):
    one = demo.translate("I am hungry.", beam=5)
    assert (str(one), repr(one)) == ("J'ai faim.", '<qkv.Translation "J\'ai faim.">')
    np.testing.assert_allclose(one.weights.sum(1), 1, atol=1e-5)
    assert one.weights.shape == (len(one.target), len(one.source))
    assert (one.source[-1], one.target[-1], one.is_whole) == ("</s>", "</s>", True)
    assert -2 < one.log_probability < 0
    assert repr(demo) == "<qkv.Translator of 3400 source and 3400 target tokens>"
    with pytest.raises(AttributeError):
        one.text = "x"
    absent = demo.translate("I am hungry.", return_weights=False)
    assert absent.weights is None and absent.text == "J'ai faim."
    with pytest.raises(ValueError, match="^show: the Translation has no weights"):
        qkv.show(absent)


def test_texts_may_be_any_iterable(dates):
    wanted = [str(one) for one in dates.translate(DATES)]
    for texts in (tuple(DATES), iter(DATES), np.array(DATES)):
        assert [str(one) for one in dates.translate(texts)] == wanted
    assert dates.translate([]) == []


def test_threads_change_nothing(demo):
    texts = TEXTS * 20
    one, two = (demo.translate(texts, threads=threads) for threads in (1, 2))
    for a, b in zip(one, two):
        assert (a.text, a.log_probability) == (b.text, b.log_probability)
        assert a.weights is b.weights or a.weights.tobytes() == b.weights.tobytes()


def test_python_threads_share_a_translator(dates):
    wanted = [str(one) for one in dates.translate(DATES)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for found in pool.map(dates.translate, [DATES] * 12):
            assert [str(one) for one in found] == wanted


@pytest.mark.parametrize("name", ["RUN", "RUN/best.safetensors", "RUN/model.safetensors"])
def test_runs_and_files(folder, name):
    wanted = run(folder, "translate", name, "the bird sat", "--scores").decode()
    for path in (folder / name, str(folder / name), os.fsencode(folder / name)):
        found = qkv.Translator.load(path).translate("the bird sat")
        assert f"{found}\t{found.log_probability:.4f}\n" == wanted


def test_a_folder_means_the_best_model(folder, tmp_path):
    (tmp_path / "config.json").write_bytes((folder / "RUN/config.json").read_bytes())
    best = (folder / "NONE/best.safetensors").read_bytes()
    (tmp_path / "best.safetensors").write_bytes(best)
    (tmp_path / "model.safetensors").write_bytes((folder / "RUN/model.safetensors").read_bytes())
    assert qkv.Translator.load(tmp_path).translate("the cat sat").weights is None
    assert qkv.Translator.load(tmp_path / "model.safetensors").translate("a").weights is not None


def test_unknown_words(folder):
    run_model, none = (qkv.Translator.load(folder / name) for name in ("RUN", "NONE"))
    kept = run_model.translate("the bird sat", unknown="keep")
    assert "<unk>" in kept.target and kept.is_whole
    assert kept.target[:-1] == str(kept).split()
    for unknown in (None, "copy"):
        copied = run_model.translate("the bird sat", unknown=unknown)
        assert copied.target == kept.target
        for token, word, row in zip(copied.target, str(copied).split(), copied.weights):
            most = copied.source[int(row[:-1].argmax())]
            assert word == (most if token == "<unk>" else token)
    found, kept = (none.translate("the bird sat", unknown=unknown) for unknown in (None, "keep"))
    assert (found.weights, found.text) == (None, kept.text)
    with pytest.raises(ValueError, match='^Translator.translate: unknown must not be "copy" for '):
        none.translate("the bird sat", unknown="copy")


@pytest.mark.parametrize(("arguments", "kind", "text"), [
    ((3,), TypeError, "texts must be a str or a list of str, got int"),
    ((b"3 may",), TypeError, "texts must be a str or a list of str, got bytes"),
    ((None,), TypeError, "texts must be a str or a list of str, got NoneType"),
    ((["3 may", 4],), TypeError, "texts[1] must be a str, got int 4"),
    (("\ud800",), ValueError, "texts must be text that UTF-8 can hold, got str '\\ud800'"),
    ((["a", "\ud800"],), ValueError,
     "texts[1] must be text that UTF-8 can hold, got str '\\ud800'"),
    ((["a", "7" * 4097],), ValueError, "texts[1] must have at most 4096 tokens, got 4097"),
    (("a", 0), ValueError, "beam must be in 1..1000, got 0"),
    (("a", 1001), ValueError, "beam must be in 1..1000, got 1001"),
    (("a", 2.0), TypeError, "beam must be an integer, got float 2.0"),
    (("a", None), TypeError, "beam must be an integer, got None"),
    (
        ("a", {"length_penalty": -1}),
        ValueError,
        "length_penalty must be finite and at least 0, got -1",
    ),
    (("a", {"length_penalty": "1"}), TypeError, "length_penalty must be a number, got str '1'"),
    (("a", {"most_tokens": 0}), ValueError, "most_tokens must be in 1 to 65536, got 0"),
    (("a", {"most_tokens": True}), TypeError, "most_tokens must be an integer, got bool True"),
    (("a", {"unknown": "drop"}), ValueError,
     "unknown must be None, \"copy\" or \"keep\", got str 'drop'"),
    (("a", {"return_weights": 1}), TypeError, "return_weights must be True or False, got int 1"),
    (("a", {"threads": -1}), ValueError,
     "threads must be in 0 (one for each processor) to 4096, got -1"),
])  # fmt: skip
def test_wrong_calls(dates, arguments, kind, text):
    *positional, last = arguments
    keywords = last if isinstance(last, dict) else {}
    positional = positional if keywords else arguments
    with pytest.raises(kind) as caught:
        dates.translate(*positional, **keywords)
    assert str(caught.value) == f"Translator.translate: {text}"


def test_wrong_keywords_and_direct_construction(dates):
    with pytest.raises(TypeError, match=r"Translator.translate\(\) got .* Did you mean 'beam'\?"):
        dates.translate("a", beams=3)
    with pytest.raises(TypeError, match=r"^Translator: made by Translator.load\(path\)"):
        qkv.Translator()


def test_paths_that_are_no_models(folder, tmp_path):
    def refusal(path, kind=ValueError):
        with pytest.raises(kind) as caught:
            qkv.Translator.load(path)
        return str(caught.value)

    assert "No such file or directory" in refusal(tmp_path / "none", FileNotFoundError)
    assert refusal(tmp_path) == (
        f"{tmp_path}: expected the folder of a run, got one without config.json; "
        "qkv train DATA -o FOLDER makes one"
    )
    (tmp_path / "config.json").write_bytes((folder / "RUN/config.json").read_bytes())
    assert refusal(tmp_path) == (
        f"{tmp_path}: this run has no model yet: best.safetensors is missing"
    )
    pairs = folder / "pairs.tsv"
    expected = "expected the folder of a run or a .safetensors model, got text in columns"
    assert refusal(pairs) == f"{pairs}: {expected}"
    layer = tmp_path / "layer.safetensors"
    qkv.Linear(2, 2).save(layer)
    assert refusal(layer).startswith(f"{layer}: ") and "settings" in refusal(layer)
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes((folder / "RUN/model.safetensors").read_bytes()[:-1])
    assert refusal(cut).startswith(f"{cut}: ")
    with pytest.raises(TypeError, match="expected str, bytes or os.PathLike"):
        qkv.Translator.load(3)
    with pytest.raises(ValueError, match="null"):
        qkv.Translator.load("a\0b")


def test_ctrl_c_stops_a_long_search(demo):
    texts = [TEXTS[2]] * 200_000
    with ctrl_c_after(1), pytest.raises(KeyboardInterrupt):
        demo.translate(texts, beam=10, return_weights=False)
    assert str(demo.translate("I am hungry.")) == "J'ai faim."
