# SPDX-License-Identifier: Apache-2.0
"""The ordinary cases: every pair of option levels at least once, then random combinations.

Real inputs are multiples of 1/64 below 4 in size (parameters: divided by a power of two): exact in
bfloat16 and float16 too. Dot products of rows of q and k are exact in any order of summation.
"""
from dataclasses import dataclass, field, replace
from itertools import combinations, product

import numpy as np

from oracle_call import (DIFFERENTIABLE, GRADIENT_NAMES, Options, evaluate, gradients, live_share,
                         order_is_certain)

FACTORS = {
    "norm": ("off", "plain", "shared", "heads"),
    "rotary": ("off", "neighbours", "halves", "given", "given_each"),
    "score": ("scaled_dot", "dot", "bilinear_shared", "bilinear_heads", "additive_shared",
              "additive_b", "additive_heads", "cosine"),
    "scale": ("default", "given"),
    "softcap": ("off", "on"),
    "mods": ("none", "decay", "quad", "decay+leaky"),
    "bias": ("none", "matrix", "head", "full", "some_inf"),
    "alibi": ("off", "heads", "each"),
    "causal": ("off", "on"),
    "diagonal": ("default", "top_left", "number", "per_batch"),
    "window": ("none", "2,1", "-1,2", "0,-1"),
    "keep": ("none", "matrix", "full"),
    "padding": ("off", "on"),
    "key_lengths": ("none", "batch", "query"),
    "mask_mod": ("none", "band3", "doc"),
    "sinks": ("off", "on"),
    "dropout": ("off", "on"),
    "shape": ("rank4", "rank2", "rank3", "gqa", "mqa", "mixed", "rank5", "packed"),
    "width": ("same", "other"),
    "dlse": ("off", "on"),
    "dweights": ("none", "all", "rows"),
}

# Packed calls reject keep and bias; padding, lengths per query, positions per batch entry and
# gradients of returned matrices need axes [B,..,Tq,Tk], which packed sequences do not have.
NOT_PACKED = {"bias": ("matrix", "head", "full", "some_inf"), "keep": ("matrix", "full"),
              "padding": ("on",), "rotary": ("given_each",), "key_lengths": ("query",), "dweights": ("all", "rows")}
IMPOSSIBLE = {frozenset({("shape", "packed"), (name, level)})
              for name, levels in NOT_PACKED.items() for level in levels}

# The leading axes of q, k and v in mixed-rank calls: A and B are batch axes, H query heads, G key
# heads, 1 an axis that is broadcast.
MIXED = (("H", "BH", "BH"), ("BH", "G", "G"), ("", "BG", "BG"), ("BH", "", ""), ("BH", "BG", ""),
         ("H", "", ""), ("ABH", "BG", "G"), ("B1", "G", "G"), ("", "G", "G"), ("BH", "", "G"))
STRETCHED = ("", "B1")  # q without heads of its own: H is G

# Which of Wq, Wk, v (and b) have a head axis.
ADDITIVE_HEADS = {"shared": ((0, 0, 0),), "b": ((0, 0, 0, 0),),
                  "heads": ((1, 1, 1), (1, 1, 1, 1), (1, 0, 0, 1), (0, 1, 1, 0))}


@dataclass
class Case:
    name: str
    options: Options
    inputs: dict
    wants: dict = field(default_factory=dict)


# ---- pairs -------------------------------------------------------------------------------------


def pairs_of(levels):
    """All pairs of (factor, level) of one combination."""
    return {frozenset(pair) for pair in combinations(levels.items(), 2)}


def possible_pairs():
    """Every compatible pair of levels of two factors."""
    every = {frozenset(((a, x), (b, y))) for a, b in combinations(FACTORS, 2)
             for x, y in product(FACTORS[a], FACTORS[b])}
    return every - IMPOSSIBLE


def legal(levels):
    return not pairs_of(levels) & IMPOSSIBLE


def covering_levels(rng):
    """Greedy: start from a pair not yet covered, give each factor the level that covers most."""
    missing = sorted(possible_pairs(), key=sorted)
    while missing:
        levels = dict(missing[rng.randint(len(missing))])
        left = set(missing)
        for name in rng.permutation(sorted(set(FACTORS) - set(levels))):
            choices = [level for level in FACTORS[name] if legal({**levels, name: level})]
            gains = [sum(frozenset(((name, level), other)) in left for other in levels.items())
                     for level in choices]
            best = [level for level, gain in zip(choices, gains) if gain == max(gains)]
            levels[str(name)] = best[rng.randint(len(best))]
        missing = [pair for pair in missing if pair not in pairs_of(levels)]
        yield levels


def random_levels(rng):
    """A combination with about half of the options at their first level. In a packed call, options
    that would be at a level that packed calls refuse are at their first level, too."""
    levels = {}
    for name, choices in FACTORS.items():
        plain = name not in ("score", "shape", "width", "dlse", "dweights") and rng.rand() < 0.5
        levels[name] = choices[0] if plain else choices[rng.randint(len(choices))]
    if not legal(levels):
        levels.update((name, FACTORS[name][0]) for name in NOT_PACKED
                      if levels[name] in NOT_PACKED[name])
    return levels


# ---- values ------------------------------------------------------------------------------------


def reals(rng, *shape):
    """Standard normal, rounded to 1/64, below 4 in size."""
    return np.clip(np.round(rng.standard_normal(shape) * 64), -255, 255) / 64


def matrices(rng, *shape):
    """reals divided by the least power of two >= sqrt(width): projections keep their size."""
    return reals(rng, *shape) / 2.0 ** np.ceil(np.log2(shape[-1]) / 2)


def pick(rng, *choices):
    return choices[rng.randint(len(choices))]


def ends_of_sequences(rng, count):
    """0 and the ends of packed sequences, [B+1]; about one sequence in ten is empty."""
    sizes = [0 if rng.rand() < 0.1 else rng.randint(1, 7) for _ in range(count)]
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def score_inputs(rng, kind, heads, q_width, k_width):
    """Options and parameters of a score level."""
    name, _, form = kind.partition("_")
    units = rng.randint(1, 5)
    if name == "bilinear":
        lead = (heads,) if form == "heads" else ()
        return {"score": name}, {"bilinear_w": matrices(rng, *lead, q_width, k_width)}
    if name != "additive":
        return {"score": kind}, {}
    per_head = pick(rng, *ADDITIVE_HEADS[form])
    tails = ((units, q_width), (units, k_width), (units,), (units,))
    names = ("additive_wq", "additive_wk", "additive_v", "additive_b")
    return {"score": name}, {n: matrices(rng, *((heads,) if each else ()), *tail)
                             for n, each, tail in zip(names, per_head, tails)}


# ---- shapes ------------------------------------------------------------------------------------


@dataclass
class Sizes:
    """The leading axes of q, k, v and the results, and sizes that options need."""
    leads: tuple        # of q, k, v
    batch: int          # all batch axes as one
    heads: int
    result: tuple       # leading axes of the results
    key_heads: int


def sizes_of(rng, shape):
    """Leading axes for a shape level (not packed)."""
    b, a = rng.randint(1, 4), rng.randint(1, 3)
    if shape == "rank2":
        return Sizes(((), (), ()), 1, 1, (), 1)
    if shape == "rank3":
        return Sizes(stretch_some(rng, [(b,)] * 3, 1), b, 1, (b,), 1)
    if shape == "mixed":
        form = MIXED[rng.randint(len(MIXED))]
        g = rng.randint(2, 4)
        h = g if form[0] in STRETCHED else g * pick(rng, 1, 2)
        b = max(b, 2)
        value = {"A": a, "B": b, "H": h, "G": g, "1": 1}
        batch = tuple(value[axis] for axis in "AB" if axis in "".join(form))
        leads = tuple(tuple(value[axis] for axis in one) for one in form)
        key_heads = next((value[axis] for axis in "HG" if axis in "".join(form[1:])), 1)
        return Sizes(leads, int(np.prod(batch)), h, (*batch, h), key_heads)
    h, g = {"gqa": pick(rng, (4, 2), (4, 2), (6, 3), (6, 2)), "mqa": pick(rng, (2, 1), (3, 1)),
            "rank4": pick(rng, (2, 2), (3, 3), (1, 1)), "rank5": pick(rng, (2, 2), (2, 1))}[shape]
    batch = (a, 2) if shape == "rank5" else (min(b, 2),)
    leads = stretch_some(rng, [(*batch, h), (*batch, g), (*batch, g)], len(batch))
    return Sizes(leads, int(np.prod(batch)), h, (*batch, h), g)


def stretch_some(rng, leads, axes):
    """In one case out of three, one batch axis of one array becomes 1."""
    leads = list(leads)
    if rng.rand() < 1 / 3:
        n, axis = rng.randint(3), rng.randint(axes)
        leads[n] = (*leads[n][:axis], 1, *leads[n][axis + 1:])
    return tuple(leads)


# ---- one case ----------------------------------------------------------------------------------


def widths(rng, levels):
    """Dq, Dk, E."""
    least = 1 if levels["rotary"] == "off" else 2
    k_width = rng.randint(least, 7)
    free = levels["score"].startswith(("bilinear", "additive")) and rng.rand() < 0.8
    q_width = rng.randint(least, 7) if free else k_width
    value_width = k_width if levels["width"] == "same" else k_width % 6 + 1
    return q_width, k_width, value_width


def plain_options(rng, levels):
    """Options that need no arrays."""
    window = None if levels["window"] == "none" else tuple(map(int, levels["window"].split(",")))
    diagonal = {"top_left": "top_left", "number": rng.randint(-1, 4)}.get(levels["diagonal"])
    return {"scale": pick(rng, 0.75, 0.5, 1.25) if levels["scale"] == "given" else None,
            "softcap": pick(rng, 1.5, 2.0, 5.0) if levels["softcap"] == "on" else 0.0,
            "mods": () if levels["mods"] == "none" else tuple(levels["mods"].split("+")),
            "causal": levels["causal"] == "on", "window": window, "diagonal": diagonal,
            "mask_mods": () if levels["mask_mod"] == "none" else (levels["mask_mod"],),
            "dropout": (0.3, rng.randint(1 << 30) * ((1 << 32) + 7))
            if levels["dropout"] == "on" else None,
            "packed": levels["shape"] == "packed"}


def matrix_shape(level, weights_shape):
    """Shape of a bias or keep level."""
    if level == "matrix":
        return weights_shape[-2:]
    if level == "head":
        return (*weights_shape[-3:-2], 1, weights_shape[-1])
    return weights_shape


def mask_inputs(rng, levels, sizes, queries, keys):
    """bias, keep, padding, key_lengths and gradients into weights of an unpacked call."""
    found, shape = {}, (*sizes.result, queries, keys)
    if levels["bias"] != "none":
        level = pick(rng, "matrix", "head", "full") if levels["bias"] == "some_inf" \
            else levels["bias"]
        found["bias"] = reals(rng, *matrix_shape(level, shape))
        if levels["bias"] == "some_inf":
            found["bias"][rng.random_sample(found["bias"].shape) < 0.2] = -np.inf
    if levels["keep"] != "none":
        found["keep"] = rng.random_sample(matrix_shape(levels["keep"], shape)) < 0.8
    if levels["padding"] == "on":
        found["padding"] = rng.random_sample((sizes.batch, keys)) < 0.25
    if levels["key_lengths"] != "none":
        of = (sizes.batch,) if levels["key_lengths"] == "batch" else (sizes.batch, queries)
        found["key_lengths"] = rng.randint(0, keys + 1, of).astype(np.int64)
    if levels["dweights"] == "all":
        found["dweights"] = reals(rng, *shape)
    if levels["dweights"] == "rows":
        count = rng.randint(1, queries + 1)
        found["rows"] = rng.permutation(queries)[:count].astype(np.int64)
        found["drow_weights"] = reals(rng, *sizes.result, count, keys)
    return found


def row_options(rng, levels, most):
    """The norm's eps, and the rotation: pairs, base and an even width up to `most`."""
    norm = None if levels["norm"] == "off" else pick(rng, 1e-6, 0.0, 0.125)
    if levels["rotary"] == "off":
        return {"norm": norm}
    form = levels["rotary"] if levels["rotary"] in ("neighbours", "halves") \
        else pick(rng, "neighbours", "halves")
    return {"norm": norm, "rotary": (form, pick(rng, 10000.0, 8.0), 2 * rng.randint(1, most // 2 + 1))}


def row_inputs(rng, levels, options, inputs, batch, heads):
    """Gains, frequencies and positions."""
    found = {}
    for side in "qk":
        x = inputs[side]
        if levels["norm"] == "shared":
            found["norm_" + side] = reals(rng, x.shape[-1])
        if levels["norm"] == "heads":
            found["norm_" + side] = reals(rng, heads[side], x.shape[-1])
        if levels["rotary"] in ("given", "given_each"):
            rows = x.shape[0] if "cu_seqlens_q" in inputs else x.shape[-2]
            lead = (batch,) if levels["rotary"] == "given_each" else ()
            found[side + "_positions"] = rng.randint(-3, 20, (*lead, rows)).astype(np.int64)
    if levels["rotary"] == "given" and rng.rand() < 0.5:
        found["frequencies"] = abs(reals(rng, options["rotary"][2] // 2))
    return found


def packed_arrays(rng, levels, q_width, k_width, value_width):
    """q, k, v, sequence ends and lengths of a packed call; its batch and heads."""
    batch = rng.randint(1, 4)
    heads, key_heads = pick(rng, (1, 1), (2, 2), (2, 1), (4, 2))
    ends_q, ends_k = ends_of_sequences(rng, batch), ends_of_sequences(rng, batch)
    found = {"q": reals(rng, ends_q[-1], heads, q_width),
             "k": reals(rng, ends_k[-1], key_heads, k_width),
             "v": reals(rng, ends_k[-1], key_heads, value_width),
             "cu_seqlens_q": ends_q, "cu_seqlens_k": ends_k}
    if levels["key_lengths"] == "batch":
        found["key_lengths"] = np.array([rng.randint(0, n + 1) for n in np.diff(ends_k)], np.int64)
    return found, batch, heads


def draw(rng, levels):
    """Options and inputs for a combination of levels; incoming gradients come later."""
    settings, (q_width, k_width, value_width) = plain_options(rng, levels), widths(rng, levels)
    if levels["shape"] == "packed":
        inputs, batch, heads = packed_arrays(rng, levels, q_width, k_width, value_width)
        keys = np.diff(inputs["cu_seqlens_k"]).max()
    else:
        sizes = sizes_of(rng, levels["shape"])
        batch, heads = sizes.batch, sizes.heads
        top = 7 if int(np.prod(sizes.result)) > 4 else 10
        queries, keys = rng.randint(1, top), rng.randint(1, top)
        tails = ((queries, q_width), (keys, k_width), (keys, value_width))
        inputs = {name: reals(rng, *lead, *tail)
                  for name, lead, tail in zip("qkv", sizes.leads, tails)}
        inputs.update(mask_inputs(rng, levels, sizes, queries, keys))
    settings["top"] = rng.randint(1, min(keys, 4) + 1) if keys else 0
    rows = row_options(rng, levels, min(q_width, k_width))
    key_heads = inputs["k"].shape[1] if levels["shape"] == "packed" else sizes.key_heads
    inputs.update(row_inputs(rng, levels, rows, inputs, batch, {"q": heads, "k": key_heads}))
    score, params = score_inputs(rng, levels["score"], heads, q_width, k_width)
    inputs.update(params)
    if levels["alibi"] != "off":
        lead = (batch,) if levels["alibi"] == "each" else ()
        inputs["alibi"] = abs(reals(rng, *lead, heads)) + 1 / 64
    if levels["sinks"] == "on":
        inputs["sinks"] = reals(rng, heads)
    if levels["diagonal"] == "per_batch":
        inputs["offsets"] = rng.randint(-1, 4, batch).astype(np.int64)
    return Options(**settings, **rows, **score), inputs


def finish(rng, name, options, inputs, dlse=True, backward=True):
    """The case with incoming gradients and results; without `top` if rounding could reorder it."""
    if options.top and not order_is_certain(options, inputs):
        options = replace(options, top=0)
    case = Case(name, options, inputs, evaluate(options, inputs))
    if backward:
        for gradient, of in GRADIENT_NAMES.items():
            if gradient == "dout" or (gradient == "dlse" and dlse):
                inputs[gradient] = reals(rng, *case.wants[of].shape)
        case.wants.update(gradients(options, inputs))
    return case


def case_of_levels(rng, name, levels):
    """A case of the levels, drawn again until at least 15 % of its pairs are live."""
    for _ in range(50):
        options, inputs = draw(rng, levels)
        if live_share(options, inputs) >= 0.15:
            break
    name = f"{name}_{levels['shape']}_{levels['score']}"
    return finish(rng, name, options, inputs, dlse=levels["dlse"] == "on")


def ordinary_cases(randoms):
    """The covering cases, the random ones, and the pairs they cover."""
    rng, cases, covered = np.random.RandomState(20110613), [], set()
    combos = [("pairs", levels) for levels in covering_levels(rng)]
    combos += [("random", random_levels(rng)) for _ in range(randoms)]
    for number, (kind, levels) in enumerate(combos):
        cases.append(case_of_levels(rng, f"{kind}_{number:03d}", levels))
        covered |= pairs_of(levels)
    return cases, covered


def is_finite(case):
    """No NaN or inf in the inputs other than -inf in bias."""
    return all(np.isfinite(x).all() or (name == "bias" and not (np.isnan(x) | (x == np.inf)).any())
               for name, x in case.inputs.items() if name in DIFFERENTIABLE)
