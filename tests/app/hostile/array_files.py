# SPDX-License-Identifier: Apache-2.0
"""Malformed .npy and .safetensors files. npy_files() and safetensors_files() give {name: bytes}."""

import json
import pickle
import struct


def npy(header, data=b"", version=1, length=None):
    """A .npy file with the given header; `length` replaces the header's true length."""
    header = header if isinstance(header, bytes) else header.encode()
    form = "<H" if version == 1 else "<I"
    prefix = struct.pack(form, len(header) if length is None else length)
    return b"\x93NUMPY" + bytes([version, 0]) + prefix + header + data


def described(descr="'<f4'", shape="(2,)", data=bytes(8), order="False"):
    return npy(f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n", data)


def npy_files():
    good = described()
    objects = pickle.dumps(["some", "text", None])
    return {
        "empty": b"",
        "magic_cut": good[:4],
        "magic_alone": good[:6],
        "length_cut": good[:9],
        "header_cut": good[:40],
        "data_absent": good[:-8],
        "data_cut": good[:-1],
        "data_too_long": good + b"\0",
        "version_0": npy("{}", version=0, length=0),
        "version_9": b"\x93NUMPY\x09\0" + good[8:],
        "header_beyond_the_end": npy("{'descr': '<f4'", length=65535),
        "header_of_4_GiB": npy("{}", version=2, length=0xFFFFFFFF),
        "header_of_900_MB": npy("{}", version=3, length=900_000_000),
        "header_empty": npy(""),
        "header_no_dictionary": npy("['<f4', False, (2,)]\n", bytes(8)),
        "header_open": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)", bytes(8)),
        "header_with_code": npy("__import__('os').system('touch left_behind')\n", bytes(8)),
        "header_with_zeros": npy(b"{'descr': '<f4'\0, 'fortran_order': False, 'shape': (2,)}",
                                 bytes(8)),
        "header_goes_on": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)} + {}",
                              bytes(8)),
        "key_absent": npy("{'descr': '<f4', 'shape': (2,)}", bytes(8)),
        "key_twice": npy("{'descr': '<f4', 'descr': '<f8', 'fortran_order': False, 'shape': (1,)}",
                         bytes(8)),
        "key_unknown": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'x': 1}",
                           bytes(8)),
        "order_a_number": described(order="1"),
        "shape_negative": described(shape="(-2,)"),
        "shape_a_float": described(shape="(2.0,)"),
        "shape_a_number": described(shape="2"),
        "shape_open": described(shape="(2"),
        "shape_deep": described(shape="(" * 50000),
        "shape_of_20_digits": described(shape="(99999999999999999999,)"),
        "shape_overflows": described(shape="(4611686018427387904, 4611686018427387904)"),
        "shape_overflows_beside_0": described(shape="(0, 4611686018427387904, 4)", data=b""),
        "shape_of_9_axes": described(shape="(1,1,1,1,1,1,1,1,2)"),
        "claims_8_TB": described(shape="(2000000000000,)"),
        "type_unknown": described("'<q7'"),
        "type_of_3_bytes": described("'<i3'", data=bytes(6)),
        "type_complex": described("'<c8'", data=bytes(16)),
        "type_long_double": described("'<f16'", data=bytes(32)),
        "type_date": described("'<M8[s]'", data=bytes(16)),
        "type_void": described("'|V4'"),
        "type_of_no_order": described("'!f4'"),
        "type_text_of_no_length": described("'<Ux'"),
        "type_text_of_8_GiB": described("'<U2147483647'"),
        "type_text_of_400_GB": described("'<U99999999999'"),
        "type_structured": described("[('a', '<f4'), ('b', '<i4')]", "(1,)"),
        "type_object": described("'|O'", "(3,)", objects),
        "text_of_no_letters": described("'<U0'", "(1099511627776,)", b""),
        "text_a_surrogate": described("'<U1'", "(1,)", struct.pack("<I", 0xD800)),
        "text_beyond_unicode": described("'<U1'", "(1,)", struct.pack("<I", 0x110000)),
        "text_of_the_other_order": described("'>U1'", "(1,)", struct.pack("<I", 0x61)),
        "bytes_no_utf8": described("'|S2'", "(1,)", b"\xff\xfe"),
        "a_pickle": objects,
        "other_magic": b"NUMPY\x93" + good[6:],
    }


def safetensors(header, data=b"", length=None):
    header = header if isinstance(header, bytes) else header.encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def tensor(dtype="U8", shape=(2,), offsets=(0, 2)):
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def tensors(data=b"12", **entries):
    return safetensors(json.dumps(entries), data)


def safetensors_files():
    good = tensors(x=tensor())
    text = json.dumps({"x": tensor()})
    return {
        "length_cut": good[:5],
        "header_absent": good[:8],
        "header_cut": good[:30],
        "data_absent": good[:-2],
        "data_cut": good[:-1],
        "data_too_long": good + b"\0",
        "length_0": safetensors(text, b"12", length=0),
        "length_beyond_the_end": safetensors(text, b"12", length=5000),
        "length_of_99_MB": safetensors(text, b"12", length=99_000_000),
        "length_2_63": safetensors(text, b"12", length=2**63),
        "length_all_ones": safetensors(text, b"12", length=2**64 - 1),
        "header_an_array": safetensors("[" + text + "]", b"12"),
        "header_after_a_blank": safetensors(" " + text, b"12"),
        "header_no_json": safetensors("{x: [0, 2]}", b"12"),
        "header_open": safetensors(text[:-1], b"12"),
        "header_goes_on": safetensors(text + "{}", b"12"),
        "header_no_utf8": safetensors(text.encode().replace(b"x", b"\xff"), b"12"),
        "header_with_zeros": safetensors(text + "\0\0", b"12"),
        "deep_objects": safetensors('{"x":' * 100_000),
        "deep_arrays": safetensors('{"x":' + "[" * 100_000),
        "deep_shape": safetensors(text.replace("[2]", "[" * 100_000)),
        "deep_metadata": safetensors('{"__metadata__":' + '{"a":' * 100_000),
        "name_twice": safetensors("{" + text[1:-1] + "," + text[1:], b"12"),
        "metadata_twice": safetensors('{"__metadata__":{},"__metadata__":{}}'),
        "metadata_a_number": tensors(__metadata__={"a": 1}),
        "metadata_name_twice": safetensors('{"__metadata__":{"a":"b","a":"c"}}'),
        "tensor_a_number": tensors(x=1),
        "tensor_null": tensors(x=None),
        "tensor_empty": tensors(x={}),
        "key_unknown": tensors(x={**tensor(), "strides": [1]}),
        "key_twice": safetensors(text.replace('"shape"', '"dtype": "U8", "shape"'), b"12"),
        "type_unknown_out_of_the_file": tensors(x=tensor("Q7", offsets=(0, 3))),
        "type_float8_of_more_bytes": tensors(x=tensor("F8_E4M3", (3,))),
        "type_float4_of_half_a_byte": tensors(x=tensor("F4", (3,))),
        "type_a_number": tensors(x=tensor(8)),
        "shape_negative": tensors(x=tensor(shape=(-2,))),
        "shape_a_float": tensors(x=tensor(shape=(2.0,))),
        "shape_1e999": safetensors(text.replace("[2]", "[1e999]"), b"12"),
        "shape_text": tensors(x=tensor(shape="2")),
        "shape_beyond_64_bits": safetensors(text.replace("[2]", "[36893488147419103232]"), b"12"),
        "shape_overflows": tensors(x=tensor(shape=(2**62, 2**62))),
        "shape_overflows_beside_0": tensors(x=tensor(shape=(0, 2**62, 4), offsets=(0, 0)), data=b""),
        "shape_of_9_axes": tensors(x=tensor(shape=(1,) * 8 + (2,))),
        "shape_of_more_bytes": tensors(x=tensor("F64", (1,))),
        "offsets_negative": tensors(x=tensor(offsets=(-2, 0))),
        "offsets_reversed": tensors(x=tensor(offsets=(2, 0))),
        "offsets_one": tensors(x=tensor(offsets=(2,))),
        "offsets_three": tensors(x=tensor(offsets=(0, 1, 2))),
        "offsets_out_of_the_file": tensors(x=tensor("U8", (10**10,), (0, 10**10))),
        "offsets_of_2_63": tensors(x=tensor(offsets=(2**63 - 3, 2**63 - 1))),
        "offsets_overlap": tensors(x=tensor(), y=tensor(offsets=(1, 3)), data=b"123"),
        "offsets_the_same": tensors(x=tensor(), y=tensor()),
        "offsets_with_a_hole": tensors(x=tensor(), y=tensor(offsets=(3, 5)), data=b"12345"),
        "hole_in_front": tensors(x=tensor(offsets=(1, 3)), data=b"123"),
    }
