# SPDX-License-Identifier: Apache-2.0
"""Tests qkv.torch.look with threads and compiled code, and when it is entered again or left."""

import threading

import pytest
from torch_versions import requires, torch

requires(2, 6, "scaled_dot_product_attention and torch.compiler.set_stance")
import torch.nn.functional as F  # noqa: E402
from look_models import CLOSE, HEADS, B, Calls, T, by_torch, draw, of_formula  # noqa: E402

import qkv.torch  # noqa: E402
from qkv.torch import _look  # noqa: E402
from qkv.torch._watch import WATCHERS  # noqa: E402


def test_threads_do_not_mix():
    models, q = [Calls(by_torch) for _ in range(3)], draw(B, HEADS, T, 8)
    found, gate = {}, threading.Barrier(3)

    def run(n):
        with qkv.torch.look(models[n], rows=[n]) as seen:
            gate.wait()
            models[n](q, q, q)
            gate.wait()
        found[n] = seen

    threads = [threading.Thread(target=run, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    weights = of_formula(q, q)
    for n, seen in found.items():
        assert [len(layer.calls) for layer in seen] == [1, 1]
        torch.testing.assert_close(seen[0].weights, weights[:, :, n : n + 1], **CLOSE)


def test_a_thread_records_what_it_runs_itself():
    """Three threads look at one model at the same time; a fourth runs it without a look."""
    model, found, gate = Calls(by_torch), {}, threading.Barrier(4)
    inputs = [draw(B, HEADS, n + 2, 8, seed=n) for n in range(4)]

    def run(n):
        gate.wait()
        for _ in range(3):
            model(*[inputs[n]] * 3)
        gate.wait()

    def look(n):
        with qkv.torch.look(model, rows=[0]) as seen:
            run(n)
        found[n] = seen

    threads = [threading.Thread(target=run if n == 3 else look, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n, seen in found.items():
        for layer in seen:
            assert [(call.queries, call.keys) for call in layer.calls] == [(n + 2, n + 2)] * 3
            want = of_formula(inputs[n], inputs[n])[:, :, :1]
            torch.testing.assert_close(layer.weights, want, **CLOSE)
        assert seen.names == ("inner.0", "inner.1")


def test_what_other_threads_run_is_not_recorded():
    model, q = Calls(by_torch), draw(B, HEADS, T, 8)
    with qkv.torch.look(model, rows=[0]) as seen:
        thread = threading.Thread(target=model, args=(q, q, q))
        thread.start()
        thread.join()
    with pytest.raises(IndexError, match="there are none: the model ran on another thread"):
        seen[0]


def test_entered_again():
    model, q = Calls(by_torch), draw(B, HEADS, T, 8)
    looks = qkv.torch.look(model, top=1)
    with looks as first:
        model(q, q, q)
        with looks as second:
            model(q, q, q)
        model(q, q, q)
    with looks as third:
        pass
    assert [len(layer.calls) for layer in (*first, *second)] == [3, 3, 1, 1]
    assert len(third) == 0
    # PyTorch's own function is back.
    assert type(F.scaled_dot_product_attention).__name__ == "builtin_function_or_method"


def test_left_on_another_thread():
    """A context inside a generator is left on the thread that closes the generator."""
    looks = qkv.torch.look(Calls(by_torch), top=1)
    thread = threading.Thread(target=looks.__enter__)
    thread.start()
    thread.join()
    looks.__exit__(None, None, None)
    assert type(F.scaled_dot_product_attention).__name__ == "builtin_function_or_method"


@pytest.mark.filterwarnings("ignore:Using `torch.compile.module.`")
def test_compiled_modules_run_but_are_not_seen():
    torch._dynamo.reset()
    model, q = Calls(by_torch), draw(B, HEADS, T, 8)
    compiled = torch.compile(model, backend="eager")
    want = compiled(q, q, q)
    how = (
        r"there are none: torch\.compile compiled the model, and compiled code is not recorded: "
        r"pass the .*model\._orig_mod.* uncompiled inside torch\.compiler\.set_stance\("
    )
    for looked_at in (compiled, model):
        with qkv.torch.look(looked_at, top=1) as seen:
            assert torch.equal(compiled(q, q, q)[0], want[0])
        assert len(seen) == 0
        with pytest.raises(KeyError, match=how):
            seen["inner.0"]
    with qkv.torch.look(compiled, top=1) as seen, torch.compiler.set_stance("force_eager"):
        compiled(q, q, q)
    assert seen.names == ("_orig_mod.inner.0", "_orig_mod.inner.1")
    with qkv.torch.look(compiled._orig_mod, top=1) as seen:
        compiled._orig_mod(q, q, q)
    assert seen.names == ("inner.0", "inner.1")


@pytest.mark.filterwarnings("ignore:Using `torch.compile.module.`")
def test_layers_that_are_compiled():
    torch._dynamo.reset()
    model, q = Calls(by_torch), draw(B, HEADS, T, 8)
    model.inner[1].compile(backend="eager")
    with qkv.torch.look(model, top=1) as seen:
        model(q, q, q)
    assert seen.names == ("inner.0",)
    with pytest.raises(KeyError, match="there are .*inner.0.*; torch.compile compiled .*inner.1"):
        seen["inner.1"]


@pytest.mark.filterwarnings("ignore:Using `torch.compile.module.`")
def test_a_compiled_layer_of_torchs_own_path():
    torch._dynamo.reset()
    layer = torch.nn.TransformerEncoderLayer(8, 2, 8, batch_first=True).eval()
    compiled, x = torch.compile(layer, backend="eager"), torch.ones(1, 4, 8)
    with torch.no_grad():
        want = layer(x)
        with qkv.torch.look(compiled, top=1):
            torch.testing.assert_close(compiled(x), want)


def test_a_look_is_left_on_another_thread_while_a_module_is_entered():
    """The looks that remain still record the module."""
    model, q = Calls(by_torch), draw(B, HEADS, T, 8)

    class Leaving:  # a watcher entered before the look; it leaves when asked about inner.1
        def knows(self, module):
            if module is model.inner[1]:
                _look._leave(self)
            return False

        def take(self, *_):
            pass

    _look._enter(Leaving())
    with qkv.torch.look(model, top=1) as seen:
        model(q, q, q)
    assert seen.names == ("inner.0", "inner.1")
    assert type(F.scaled_dot_product_attention).__name__ == "builtin_function_or_method"


def test_every_look_notes_what_another_thread_runs():
    """A look notes that another thread ran the model, even if the model never calls attention."""
    model, q, found = Calls(lambda *inputs: inputs[0]), draw(B, HEADS, T, 8), []
    with qkv.torch.look(model, top=1) as first:
        looks = qkv.torch.look(model, top=1)
        thread = threading.Thread(target=lambda: found.append(looks.__enter__()))
        thread.start()
        thread.join()
        model(q, q, q)
        looks.__exit__(None, None, None)
    with pytest.raises(IndexError, match="there are none: the model called no attention function"):
        first[0]
    with pytest.raises(IndexError, match="there are none: the model ran on another thread"):
        found[0][0]


@pytest.mark.filterwarnings("ignore:Using `torch.compile.module.`")
def test_every_look_notes_what_is_compiled():
    torch._dynamo.reset()
    model, q = Calls(by_torch), draw(B, HEADS, T, 8)
    compiled = torch.compile(model, backend="eager")
    with qkv.torch.look(compiled, top=1), qkv.torch.look(model, top=1) as second:
        compiled(q, q, q)
    with pytest.raises(IndexError, match="there are none: torch.compile compiled the model"):
        second[0]


def test_as_a_decorator():
    """Each call of the function, nested ones included, has a separate look."""
    model, q = Calls(by_torch), draw(B, HEADS, T, 8)

    @qkv.torch.look(model, rows=[0])
    def run(again):
        assert len(WATCHERS) == (1 if again else 2)
        model(q, q, q)
        return run(again=False) if again else len(WATCHERS)

    assert run(again=True) == 2
    assert run(again=True) == 2
    assert WATCHERS == []


def test_left_without_being_entered():
    looks = qkv.torch.look(Calls(by_torch), top=1)
    with pytest.raises(RuntimeError, match="^look: must be entered before it is left, got __exit"):
        looks.__exit__(None, None, None)
    with looks:
        pass
    with pytest.raises(RuntimeError, match="^look: must be entered before it is left, got __exit"):
        looks.__exit__(None, None, None)
