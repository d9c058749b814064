# SPDX-License-Identifier: Apache-2.0
"""Hand-picked cases: sizes at edges, large scores, rows without live keys, NaN and inf."""
from contextlib import contextmanager

import numpy as np

from oracle_call import Options
from oracle_cases import finish, matrices, pick, reals, score_inputs

NAN, INF = np.nan, np.inf
SCORES = ("scaled_dot", "dot", "bilinear_shared", "bilinear_heads", "additive_shared",
          "additive_b", "additive_heads")


class Maker:
    """Collects cases; draw() makes ordinary arrays, add() finishes a case."""

    def __init__(self, seed):
        self.rng, self.cases = np.random.RandomState(seed), []

    def draw(self, b=2, h=2, g=None, tq=4, tk=5, d=3, e=2, score="scaled_dot", dq=None):
        """(score options, inputs) of rank 4; the caller adds further arrays."""
        g, dq = h if g is None else g, d if dq is None else dq
        inputs = {"q": reals(self.rng, b, h, tq, dq), "k": reals(self.rng, b, g, tk, d),
                  "v": reals(self.rng, b, g, tk, e)}
        settings, params = score_inputs(self.rng, score, h, dq, d)
        return settings, {**inputs, **params}

    def add(self, name, settings, inputs, backward=True):
        case = finish(self.rng, f"special_{name}", Options(**settings), inputs, backward=backward)
        self.cases.append(case)


def add_empty_sizes(m):
    """Each of B, H, Tq, Tk equal to 0."""
    for score in ("scaled_dot", "bilinear_shared", "additive_b"):
        for name in ("b", "h", "tq", "tk"):
            settings, inputs = m.draw(score=score, **{name: 0})
            m.add(f"zero_{name}_{score}", settings, inputs)
    settings, inputs = m.draw(h=0, g=1)
    m.add("zero_h_one_g", settings, inputs)
    settings, inputs = m.draw(tq=0, tk=0)
    m.add("zero_tq_tk", settings, inputs)
    settings, inputs = m.draw(tk=0)
    inputs.update(sinks=reals(m.rng, 2), alibi=abs(reals(m.rng, 2)), bias=reals(m.rng, 4, 0),
                  padding=np.zeros((2, 0), bool), key_lengths=np.zeros(2, np.int64))
    m.add("zero_tk_sinks", {**settings, "causal": True}, inputs)
    for rank, lead in ((2, ()), (3, (0,)), (5, (2, 0, 2))):
        keys = 0 if rank == 2 else 5
        m.add(f"zero_rank{rank}", {}, {"q": reals(m.rng, *lead, 4, 3),
                                       "k": reals(m.rng, *lead, keys, 3),
                                       "v": reals(m.rng, *lead, keys, 2)})
    add_packed(m, "zero_packed_keys", (2, 3), (0, 0), sinks=True)
    add_packed(m, "zero_packed_queries", (0, 0), (2, 3), sinks=True)
    add_packed(m, "zero_packed_some", (0, 3, 2, 1), (2, 0, 4, 1), sinks=True)


def add_packed(m, name, queries, keys, sinks=False, poison=None, score="scaled_dot", **settings):
    """Sequences of the given sizes; poison goes into keys and values past the key lengths."""
    ends_q, ends_k = (np.concatenate([[0], np.cumsum(n)]).astype(np.int64) for n in (queries, keys))
    chosen, params = score_inputs(m.rng, score, 2, 3, 3)
    inputs = {"q": reals(m.rng, ends_q[-1], 2, 3), "k": reals(m.rng, ends_k[-1], 1, 3),
              "v": reals(m.rng, ends_k[-1], 1, 2), "cu_seqlens_q": ends_q, "cu_seqlens_k": ends_k,
              **params}
    if sinks:
        inputs["sinks"] = reals(m.rng, 2)
    if poison is not None:
        inputs["key_lengths"] = np.array(keys, np.int64) - 1
        inputs["k"][ends_k[1:] - 1] = inputs["v"][ends_k[1:] - 1] = poison
    m.add(name, {**settings, **chosen, "packed": True}, inputs)


def add_odd_sizes(m):
    """Sizes of 1, and widths around the lengths of vector registers."""
    for score in SCORES:
        settings, inputs = m.draw(b=1, h=1, tq=1, tk=1, d=1, e=1, score=score)
        m.add(f"all_one_{score}", {**settings, "top": 1}, inputs)
    for d, e in ((7, 9), (8, 15), (15, 17), (16, 31), (17, 33), (31, 8), (33, 1), (64, 65),
                 (65, 3), (129, 63)):
        settings, inputs = m.draw(b=1, tq=3, tk=5, d=d, e=e, g=1)
        m.add(f"width_{d}_{e}", {**settings, "causal": True}, inputs)
    for d, dq, score in ((17, 9, "bilinear_shared"), (9, 33, "bilinear_heads"),
                         (17, 5, "additive_shared"), (5, 19, "additive_heads")):
        settings, inputs = m.draw(b=1, tq=3, tk=5, d=d, dq=dq, score=score)
        m.add(f"width_{dq}_{d}_{score}", settings, inputs)
    for units in (7, 8, 9, 16, 17, 33):
        settings, inputs = m.draw(b=1, tq=3, tk=5, score="additive_b")
        inputs.update(additive_wq=matrices(m.rng, units, 3), additive_wk=matrices(m.rng, units, 3),
                      additive_v=matrices(m.rng, units), additive_b=reals(m.rng, units))
        m.add(f"units_{units}", settings, inputs)


def add_chunk_edges(m):
    """Sizes around chunks of 512 keys and blocks of 128 queries, with tiny widths."""
    scores = ("scaled_dot", "bilinear_shared", "additive_b", "dot")
    for n, tk in enumerate((511, 512, 513, 1025)):
        small = {"b": 1, "h": 1, "d": 2, "e": 1}
        settings, inputs = m.draw(tq=2, tk=tk, score=scores[n], **small)
        m.add(f"keys_{tk}", {**settings, "top": 3}, inputs)
        settings, inputs = m.draw(tq=3, tk=tk, **small)
        m.add(f"keys_{tk}_causal", {**settings, "causal": True, "dropout": (0.3, 11)}, inputs)
        settings, inputs = m.draw(tq=2, tk=tk, score=scores[n - 1], **small)
        inputs["key_lengths"] = np.array([[tk - 1, 3]], np.int64)
        inputs["k"][..., -1, :] = inputs["v"][..., -1, :] = NAN
        m.add(f"keys_{tk}_poison_at_end", settings, inputs)
    for left in (5, 520):
        settings, inputs = m.draw(b=1, h=1, tq=2, tk=1025, d=1, e=1)
        inputs["k"][..., :500, :] = NAN
        m.add(f"keys_1025_poison_window_{left}", {**settings, "window": (left, 0)}, inputs)
    for n, tq in enumerate((127, 128, 129, 257)):
        settings, inputs = m.draw(b=1, h=1, tq=tq, tk=3, d=2, e=2, score=scores[n])
        m.add(f"queries_{tq}", settings, inputs)
        settings, inputs = m.draw(b=1, h=2, g=1, tq=tq, tk=2, d=1, e=1, score=scores[n - 1])
        inputs["sinks"] = reals(m.rng, 2)
        m.add(f"queries_{tq}_causal", {**settings, "causal": True, "diagonal": -100}, inputs)
    settings, inputs = m.draw(b=1, h=1, tq=129, tk=130, d=1, e=1)
    m.add("square_129_130", {**settings, "causal": True, "window": (4, 0)}, inputs)
    add_packed(m, "packed_513", (2, 1, 3), (513, 0, 64), causal=True, dropout=(0.3, 5))


def add_extreme_scores(m):
    """Scores of size 1e4 (whole numbers: exact in any order), equal keys, one dominating key."""
    for name, more in (("plain", {}), ("softcap", {"softcap": 5000.0}), ("sinks", {}),
                       ("causal", {"causal": True}), ("dropout", {"dropout": (0.3, 3)})):
        settings, inputs = m.draw(tq=5, tk=7, d=4, e=3)
        inputs["q"], inputs["k"] = (np.round(inputs[x] * 60) for x in "qk")
        if name == "sinks":
            inputs["sinks"] = np.array([3000.0, -20000.0])
        m.add(f"large_{name}", {**settings, **more}, inputs)
    for score in SCORES:
        settings, inputs = m.draw(tq=3, tk=6, score=score)
        inputs["k"][:] = inputs["k"][:, :, :1]
        m.add(f"equal_keys_{score}", {**settings, "top": 4}, inputs)
        settings, inputs = m.draw(tq=3, tk=6, score=score)
        inputs["k"][:, :, 4:] = inputs["k"][:, :, 1:3]
        m.add(f"repeated_keys_{score}", {**settings, "top": 6}, inputs)
    for score in ("dot", "bilinear_shared"):
        settings, inputs = m.draw(tq=3, tk=6, d=4, score=score)
        inputs["q"] = abs(inputs["q"]) + 1
        if score == "bilinear_shared":
            inputs["bilinear_w"] = abs(inputs["bilinear_w"]) + 0.5
        inputs["k"][:, :, 2] = 10
        m.add(f"dominating_{score}", settings, inputs)
    settings, inputs = m.draw(tk=3)
    m.add("top_more_than_keys", {**settings, "top": 5}, inputs)


def empty_rows(m, way, settings, inputs):
    """Leaves some rows without live keys."""
    if way == "causal":
        settings.update(causal=True, diagonal=-2)
    elif way == "lengths":
        inputs["key_lengths"] = np.array([0, 3], np.int64)
    elif way == "keep":
        inputs["keep"] = np.ones((4, 5), bool)
        inputs["keep"][1:3] = False
    elif way == "bias":
        inputs["bias"] = reals(m.rng, 2, 4, 5)
        inputs["bias"][0, 1] = -INF
    elif way == "all":
        settings.update(causal=True, diagonal=-100)
    elif way == "scores":
        inputs["q"], inputs["k"] = abs(inputs["q"]) + 1, abs(inputs["k"]) + 1
        inputs["k"][1] *= -INF


def add_empty_rows(m):
    for way in ("causal", "lengths", "keep", "bias", "all", "scores"):
        for sinks in (False, True):
            kinds = ("scaled_dot", "dot") if way == "scores" else SCORES
            settings, inputs = m.draw(score=pick(m.rng, *kinds))
            empty_rows(m, way, settings, inputs)
            if sinks:
                inputs["sinks"] = reals(m.rng, 2)
            m.add(f"empty_rows_{way}{'_sinks' * sinks}", {**settings, "top": 2}, inputs)
    for name, sink in (("minus_inf", -INF), ("nan", NAN), ("inf", INF)):
        settings, inputs = m.draw()
        empty_rows(m, "keep", settings, inputs)
        inputs["sinks"] = np.array([0.5, sink])
        m.add(f"empty_rows_sink_{name}", settings, inputs)
    settings, inputs = m.draw()
    empty_rows(m, "keep", settings, inputs)
    inputs["q"][:, :, 1:3] = NAN
    m.add("empty_rows_nan_query", settings, inputs)


def hide_last_key(m, way, settings, inputs):
    """Masks key 4, the last one, for every query."""
    if way == "keep":
        inputs["keep"] = np.arange(5) < np.array([[4], [3], [4], [1]])
    elif way == "padding":
        inputs["padding"] = np.array([[0, 0, 0, 0, 1], [0, 1, 0, 0, 1]], bool)
    elif way == "lengths":
        inputs["key_lengths"] = np.array([[4, 2, 4, 1], [3, 4, 0, 1]], np.int64)
    elif way == "causal":
        settings.update(causal=True, diagonal="top_left")
    elif way == "window":
        settings.update(window=(-1, 0), diagonal=0)
    elif way == "mask_mod":
        settings.update(mask_mods=("doc",))
        inputs["q"] = inputs["q"][:, :, :3]
    elif way == "bias":
        inputs["bias"] = reals(m.rng, 4, 5)
        inputs["bias"][:, 4] = -INF


def add_masked_poison(m):
    """NaN and inf under a mask change nothing."""
    extras = ({}, {"softcap": 2.0}, {"mods": ("quad",)}, {"dropout": (0.3, 17)},
              {"mods": ("decay", "leaky"), "softcap": 5.0})
    ways = ("keep", "padding", "lengths", "causal", "window", "mask_mod", "bias")
    for n, (way, value) in enumerate((w, x) for w in ways for x in (NAN, INF, -INF)):
        settings, inputs = m.draw(d=3, dq=3, score=SCORES[n % len(SCORES)])
        hide_last_key(m, way, settings, inputs)
        inputs["k"][:, :, 4] = inputs["v"][:, :, 4] = value
        m.add(f"hidden_{way}_{value:+}", {**settings, **extras[n % len(extras)]}, inputs)
    for way in ("keep", "causal", "mask_mod"):
        settings, inputs = m.draw(score=pick(m.rng, *SCORES))
        hide_last_key(m, way, settings, inputs)
        inputs["bias"] = reals(m.rng, 2, inputs["q"].shape[2], 5)
        inputs["bias"][..., 4] = np.array([NAN, INF])[:, None]
        m.add(f"hidden_bias_{way}", settings, inputs)
    for n, value in enumerate((NAN, INF, -INF)):
        add_packed(m, f"hidden_packed_{value:+}", (3, 2), (4, 3), poison=value, score=SCORES[2 * n])


def add_live_poison(m):
    """NaN and inf in live pairs: they may make their rows NaN, but change no other row."""
    @contextmanager
    def poisoned(name, score="scaled_dot", backward=True, **settings):
        chosen, inputs = m.draw(score=score)
        inputs["q"] = np.where(inputs["q"] == 0, 0.5, inputs["q"])  # as 0 * inf is NaN
        yield inputs
        m.add(f"live_{name}", {"top": 2, **chosen, **settings}, inputs, backward)

    for score in SCORES:
        with poisoned(f"nan_key_{score}", score, causal=True, diagonal="top_left") as inputs:
            inputs["k"][:, 1, 2, 0] = NAN
        with poisoned(f"nan_query_{score}", score) as inputs:
            inputs["q"][0, :, 1] = NAN
    with poisoned("nan_key_softcap_mods", softcap=2.0, causal=True, mods=("quad",)) as inputs:
        inputs["k"][0, 0, 3] = NAN
    with poisoned("inf_key") as inputs:
        inputs["k"][0, 0, 3, 1] = INF
    with poisoned("minus_inf_key") as inputs:
        inputs["k"][0, 0, 3, 1] = -INF
    with poisoned("inf_query_causal", causal=True) as inputs:
        inputs["q"][0, 0, 3, 1] = INF
        inputs["k"][0, 0, :, 1] = abs(inputs["k"][0, 0, :, 1]) + 1
    for value in (NAN, INF):
        with poisoned(f"bias_{value:+}") as inputs:
            inputs["bias"] = reals(m.rng, 2, 4, 5)
            inputs["bias"][0, 1, 2] = value
        with poisoned(f"sink_{value:+}", causal=True, diagonal=-2) as inputs:
            inputs["sinks"] = np.array([value, 0.25])
    with poisoned("sink_-inf") as inputs:
        inputs["sinks"] = np.array([-INF, 0.25])
    with poisoned("nan_row_sink_-inf", causal=True) as inputs:
        inputs["sinks"] = np.array([-INF, 0.25])
        inputs["k"][:, :, 3] = NAN
    with poisoned("nan_value", causal=True) as inputs:
        inputs["v"][0, 0, 3, 1] = NAN
    for value in (INF, -INF):
        with poisoned(f"value_{value:+}", backward=False, causal=True) as inputs:
            inputs["v"][0, 0, 3, 1] = value
    with poisoned("nan_value_dropout", backward=False, dropout=(0.5, 23)) as inputs:
        inputs["v"][:, 0, 3, 1] = NAN


def add_broadcasts(m):
    """Masks and biases of every rank; ranks mixed as in seed 000, and the other way round."""
    for n, shape in enumerate(((5,), (1, 5), (4, 1), (2, 1, 5), (2, 4, 1), (3, 1, 1, 5),
                               (3, 1, 4, 1), (1, 2, 1, 5), (1, 1, 1, 1), (3, 2, 4, 5))):
        label = "x".join(map(str, shape))
        settings, inputs = m.draw(b=3, score=SCORES[n % len(SCORES)])
        inputs["bias"] = reals(m.rng, *shape)
        m.add(f"bias_{label}", settings, inputs)
        settings, inputs = m.draw(b=3)
        inputs["keep"] = m.rng.random_sample(shape) < 0.7
        m.add(f"keep_{label}", settings, inputs)
    for name, q, kv in (("text", (2, 8, 4), (5, 2, 8, 4)), ("text_back", (5, 2, 8, 4), (2, 8, 4))):
        inputs = {"q": reals(m.rng, *q), "k": reals(m.rng, *kv), "v": reals(m.rng, *kv)}
        m.add(f"mixed_{name}", {"causal": True}, inputs)
    inputs = {"q": reals(m.rng, 2, 1, 2, 3, 4), "k": reals(m.rng, 1, 3, 2, 5, 4),
              "v": reals(m.rng, 2, 3, 2, 5, 2), "bias": reals(m.rng, 3, 1, 1, 5)}
    inputs["key_lengths"] = np.arange(6, dtype=np.int64)
    m.add("rank5_crossed", {"dropout": (0.3, 1 << 40)}, inputs)


def add_order_and_diagonals(m):
    """Order of score functions, unusual diagonals and windows, dropout seeds."""
    for mods in (("quad", "decay"), ("decay", "quad"), ("quad", "quad"),
                 ("leaky", "quad", "decay")):
        settings, inputs = m.draw()
        inputs.update(bias=reals(m.rng, 4, 5), alibi=np.array([0.5, 0.25]))
        m.add("mods_" + "_".join(mods), {**settings, "mods": mods, "softcap": 2.0}, inputs)
    settings, inputs = m.draw(tq=7, tk=9)
    m.add("mask_mods_two", {**settings, "mask_mods": ("band3", "doc")}, inputs)
    for name, more in (("far", {"causal": True, "diagonal": 100}), ("self", {"window": (0, 0)}),
                       ("open", {"window": (-1, -1)}), ("right", {"window": (2, 5)}),
                       ("causal_right", {"window": (2, 5), "causal": True}),
                       ("alone", {"diagonal": 3}), ("negative", {"window": (1, 1), "diagonal": -2}),
                       ("top_left", {"causal": True, "diagonal": "top_left"})):
        settings, inputs = m.draw(tq=5, tk=7)
        m.add(f"diagonal_{name}", {**settings, **more}, inputs)
        settings, inputs = m.draw(tq=7, tk=5)
        inputs["key_lengths"] = np.array([5, 3], np.int64)
        inputs["alibi"] = np.array([0.5, 0.125])
        m.add(f"diagonal_{name}_alibi", {**settings, **more}, inputs)
    for n, (p, seed) in enumerate(((0.0, 5), (0.5, 0), (0.9, 1), (0.1, 1 << 32),
                                   (0.3, (1 << 63) - 1), (0.999, 77))):
        settings, inputs = m.draw(b=3, h=4, g=2, tq=3, tk=13, d=1, e=1, score=SCORES[n])
        m.add(f"dropout_{n}", {**settings, "dropout": (p, seed)}, inputs)


def special_cases():
    m = Maker(4321)
    for add in (add_empty_sizes, add_odd_sizes, add_chunk_edges, add_extreme_scores, add_empty_rows,
                add_masked_poison, add_live_poison, add_broadcasts, add_order_and_diagonals):
        add(m)
    return m.cases
