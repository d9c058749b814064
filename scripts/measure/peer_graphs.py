# SPDX-License-Identifier: Apache-2.0
"""Attention in the libraries that run graphs: ONNX Runtime, OpenVINO, llama.cpp. See peer_case."""

import ctypes
import importlib
import importlib.metadata
import importlib.util
import pathlib
import weakref
from functools import partial

import ml_dtypes
import numpy as np
from peer_case import aligned, folded, heads_last, only_forward, with_folded


class OnnxRuntime:
    label, needs = "ONNX Runtime", ["onnxruntime", "onnx"]

    def __init__(self, threads):
        self.onnx, self.ort = (importlib.import_module(name) for name in ("onnx", "onnxruntime"))
        self.options = self.ort.SessionOptions()
        self.options.intra_op_num_threads = threads
        self.options.inter_op_num_threads = 1
        self.versions = {"ONNX Runtime": self.ort.__version__}

    def ways(self, case):
        only_forward(case)
        ways = {"Attention": partial(self.plain, case)}
        ways |= (
            with_folded(self.multi_head, case, "MHA")
            if case.H == case.G
            else {"MHA folded": partial(folded, self.multi_head, case)}
        )
        if case.Tq == 1:  # GroupQueryAttention is always causal
            ways["GQA"] = partial(self.grouped, case)
        return ways

    def session(self, case, operator, inputs, outputs, **attributes):
        """A session of one operator. inputs and outputs are shapes by name; arrays of rank 0 or 1
        are int32, others have the type of the case."""
        types, helper = self.onnx.TensorProto, self.onnx.helper

        def described(shapes):
            kind = types.BFLOAT16 if case.is_bf16 else types.FLOAT
            return [
                helper.make_tensor_value_info(name, kind if len(shape) > 1 else types.INT32, shape)
                for name, shape in shapes.items()
            ]

        domain = "" if operator == "Attention" else "com.microsoft"
        node = helper.make_node(operator, list(inputs), list(outputs), domain=domain, **attributes)
        graph = helper.make_graph([node], operator, described(inputs), described(outputs))
        versions = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=versions, ir_version=10)
        return self.ort.InferenceSession(
            model.SerializeToString(), self.options, providers=["CPUExecutionProvider"]
        )

    def bound(self, session, inputs, outputs, read):
        """Binds arrays by name; an output may be the name of an input that it overwrites."""
        values = {
            name: self.ort.OrtValue.ortvalue_from_numpy(x)
            for name, x in (inputs | outputs).items()
            if not isinstance(x, str)
        }
        binding = session.io_binding()
        for name in inputs:
            binding.bind_ortvalue_input(name, values[name])
        for name, x in outputs.items():
            binding.bind_ortvalue_output(name, values[x if isinstance(x, str) else name])

        def call():
            session.run_with_iobinding(binding)
            return values["out"]

        return call, lambda out: [read(out.numpy())]

    def plain(self, case):
        shapes = case.shapes()
        session = self.session(
            case, "Attention", shapes, {"out": shapes["q"]}, is_causal=int(case.causal)
        )
        return lambda x: self.bound(session, x, {"out": np.empty_like(x["q"])}, lambda out: out)

    def multi_head(self, case):
        """MultiHeadAttention, whose arrays are [B,T,H D]."""
        rows = (case.B, case.Tq, case.H * case.D)
        keys = (case.B, case.Tk, case.H * case.D)
        session = self.session(
            case,
            "MultiHeadAttention",
            {"q": rows, "k": keys, "v": keys},
            {"out": rows},
            num_heads=case.H,
            unidirectional=int(case.causal),
        )

        def bind(x):
            inputs = {name: heads_last(x[name]).reshape(case.B, -1, rows[2]) for name in "qkv"}
            return self.bound(
                session,
                inputs,
                {"out": np.empty_like(inputs["q"])},
                lambda out: out.reshape(case.B, case.Tq, case.H, case.D).swapaxes(1, 2),
            )

        return bind

    def grouped(self, case):
        """GroupQueryAttention, which appends the last key and value to a cache of the others."""
        cache, new = case.shapes()["k"], (case.B, 1, case.G * case.D)
        rows = (case.B, 1, case.H * case.D)
        inputs = {"q": rows, "new_k": new, "new_v": new, "k": cache, "v": cache}
        session = self.session(
            case,
            "GroupQueryAttention",
            inputs | {"last": (case.B,), "length": ()},
            {"out": rows, "k_out": cache, "v_out": cache},
            num_heads=case.H,
            kv_num_heads=case.G,
        )

        def bind(x):
            values = {"q": x["q"].reshape(rows), "k": x["k"], "v": x["v"]}
            values |= {f"new_{name}": aligned(x[name][:, :, -1]).reshape(new) for name in "kv"}
            values |= {"last": np.full(case.B, case.Tk - 1, np.int32)}
            values |= {"length": np.array(case.Tk, np.int32)}
            outputs = {"out": np.empty(rows, x["q"].dtype), "k_out": "k", "v_out": "v"}
            shape = case.shapes()["q"]
            return self.bound(session, values, outputs, lambda out: out.reshape(shape))

        return bind


class OpenVino:
    label, needs = "OpenVINO", ["openvino"]

    def __init__(self, threads):
        self.ov = importlib.import_module("openvino")
        self.opset = importlib.import_module("openvino.opset13")
        self.core, self.threads = self.ov.Core(), threads
        self.versions = {"OpenVINO": self.ov.__version__.split("-")[0]}

    def ways(self, case):
        only_forward(case)
        if case.H == case.G:
            return {"": partial(self.attend, case)}
        return {
            "broadcast": partial(self.attend, case),
            "folded": partial(folded, self.attend, case),
        }

    def repeated(self, case, x):
        """Repeats key heads in the graph, since the operation does not group heads."""
        group, rows = case.H // case.G, [case.Tk, case.D]
        parts = self.opset.unsqueeze(x, self.opset.constant(2))
        parts = self.opset.broadcast(parts, self.opset.constant([case.B, case.G, group, *rows]))
        return self.opset.reshape(parts, self.opset.constant([case.B, case.H, *rows]), False)

    def attend(self, case):
        kind = self.ov.Type.bf16 if case.is_bf16 else self.ov.Type.f32
        inputs = [self.opset.parameter(shape, kind) for shape in case.shapes().values()]
        q, k, v = inputs
        if case.H != case.G:
            k, v = (self.repeated(case, x) for x in (k, v))
        out = self.opset.scaled_dot_product_attention(q, k, v, causal=case.causal)
        settings = {
            "INFERENCE_NUM_THREADS": self.threads,
            "NUM_STREAMS": 1,
            "INFERENCE_PRECISION_HINT": kind,
        }
        compiled = self.core.compile_model(self.ov.Model([out], inputs), "CPU", settings)

        def bind(x):
            request = compiled.create_infer_request()
            for n, name in enumerate("qkv"):
                array = x[name].view(np.uint16) if case.is_bf16 else x[name]
                request.set_input_tensor(n, self.ov.Tensor(array, array.shape, kind))

            def read(_):
                array = request.get_output_tensor(0).data  # bfloat16 numbers, declared float16
                return [array.view(ml_dtypes.bfloat16) if case.is_bf16 else array]

            return request.infer, read

        return bind


class Llama:
    """ggml's ggml_flash_attn_ext, from the libraries that the package llama_cpp contains."""

    label, needs = "llama.cpp", ["llama-cpp-python"]

    def __init__(self, threads):
        package = importlib.util.find_spec("llama_cpp")
        if package is None:
            raise ImportError("no llama_cpp")
        folder = pathlib.Path(package.origin).parent / "lib"
        self.base = ctypes.CDLL(str(folder / "libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
        self.cpu = ctypes.CDLL(str(folder / "libggml-cpu.so"))
        self.declare()
        self.backend = self.cpu.ggml_backend_cpu_init()
        self.cpu.ggml_backend_cpu_set_n_threads(self.backend, threads)
        version = importlib.metadata.version("llama-cpp-python")
        ggml = self.base.ggml_version().decode()
        self.versions = {"llama.cpp": f"of llama-cpp-python {version}, ggml {ggml}"}

    class Settings(ctypes.Structure):  # ggml_init_params
        _fields_ = [
            ("bytes", ctypes.c_size_t),
            ("memory", ctypes.c_void_p),
            ("no_alloc", ctypes.c_bool),
        ]

    TYPES = {"float32": 0, "float16": 1, "bfloat16": 30}  # ggml_type

    def declare(self):
        pointer, real, integer = ctypes.c_void_p, ctypes.c_float, ctypes.c_int
        for library, name, result, arguments in (
            (self.base, "ggml_version", ctypes.c_char_p, []),
            (self.base, "ggml_init", pointer, [self.Settings]),
            (self.base, "ggml_free", None, [pointer]),
            (self.base, "ggml_new_tensor_4d", pointer, [pointer, integer] + [ctypes.c_int64] * 4),
            (self.base, "ggml_get_data", pointer, [pointer]),
            (self.base, "ggml_flash_attn_ext", pointer, [pointer] * 5 + [real] * 3),
            (self.base, "ggml_new_graph", pointer, [pointer]),
            (self.base, "ggml_build_forward_expand", None, [pointer] * 2),
            (self.base, "ggml_backend_graph_compute", integer, [pointer] * 2),
            (self.cpu, "ggml_backend_cpu_init", pointer, []),
            (self.cpu, "ggml_backend_cpu_set_n_threads", None, [pointer, integer]),
        ):
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments

    def ways(self, case):
        only_forward(case)
        if not case.is_bf16:
            return with_folded(partial(self.attend, cache="float32"), case)
        return {
            **with_folded(partial(self.attend, cache="bfloat16"), case, "bf16"),
            **with_folded(partial(self.attend, cache="float16"), case, "f16"),
        }

    def attend(self, case, cache):
        """A way with keys and values of the type `cache`; q and out are float32."""
        dtypes = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}

        def bind(x):
            arrays = [x["q"].astype(np.float32)]
            arrays += [x[name].astype(dtypes[cache]) for name in "kv"]
            if case.causal:
                live = np.tri(case.Tq, case.Tk, dtype=bool)
                arrays.append(np.where(live, 0, -np.inf).astype(np.float16)[None, None])
            most = sum(array.nbytes for array in arrays) + arrays[0].nbytes + (1 << 20)
            memory = aligned(np.zeros(most, np.uint8))
            context = self.base.ggml_init(self.Settings(most, memory.ctypes.data, False))
            weakref.finalize(memory, self.base.ggml_free, context)
            tensors = [self.tensor(context, array) for array in arrays]
            tensors += [None] * (4 - len(tensors))
            out = self.base.ggml_flash_attn_ext(context, *tensors, case.D**-0.5, 0, 0)
            graph = self.base.ggml_new_graph(context)
            self.base.ggml_build_forward_expand(graph, out)
            at = self.base.ggml_get_data(out) - memory.ctypes.data
            result = memory[at : at + arrays[0].nbytes].view(np.float32)
            result = result.reshape(case.B, case.Tq, case.H, case.D).swapaxes(1, 2)

            def call():
                if self.base.ggml_backend_graph_compute(self.backend, graph) != 0:
                    raise RuntimeError("ggml_backend_graph_compute failed")
                return result

            return call, lambda out: [out]

        return bind

    def tensor(self, context, array):
        kind = self.TYPES[array.dtype.name]
        made = self.base.ggml_new_tensor_4d(context, kind, *reversed(array.shape))
        ctypes.memmove(self.base.ggml_get_data(made), array.ctypes.data, array.nbytes)
        return made
