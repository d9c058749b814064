# SPDX-License-Identifier: Apache-2.0
"""Finds where librsvg draws the elements of an SVG, and decodes PNGs.

The program's PNGs are drawn by librsvg, too. `library()` is None if librsvg is not installed.
"""

import ctypes
import ctypes.util
import struct
import zlib

import numpy as np


class Rectangle(ctypes.Structure):
    _fields_ = [("x", ctypes.c_double), ("y", ctypes.c_double),
                ("width", ctypes.c_double), ("height", ctypes.c_double)]

    def corners(self):
        return self.x, self.y, self.x + self.width, self.y + self.height


def library():
    name = ctypes.util.find_library("rsvg-2")
    if name is None:
        return None
    rsvg = ctypes.CDLL(name)
    rsvg.rsvg_handle_new_from_data.restype = ctypes.c_void_p
    rsvg.rsvg_handle_new_from_data.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p]
    rsvg.rsvg_handle_get_geometry_for_layer.restype = ctypes.c_int
    rsvg.rsvg_handle_get_geometry_for_layer.argtypes = [
        ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(Rectangle), ctypes.POINTER(Rectangle),
        ctypes.POINTER(Rectangle), ctypes.c_void_p]
    return rsvg


class Document:
    """An SVG that librsvg has read. The handle is freed with the process."""

    def __init__(self, rsvg, data, width, height):
        self.rsvg = rsvg
        self.viewport = Rectangle(0, 0, width, height)
        self.handle = rsvg.rsvg_handle_new_from_data(data, len(data), None)
        if not self.handle:
            raise ValueError("librsvg refuses the document")

    def place(self, name):
        """The corners of an element's ink and logical boxes: (left, top, right, bottom), twice."""
        ink, logical = Rectangle(), Rectangle()
        if not self.rsvg.rsvg_handle_get_geometry_for_layer(
                self.handle, f"#{name}".encode(), ctypes.byref(self.viewport), ctypes.byref(ink),
                ctypes.byref(logical), None):
            raise KeyError(name)
        return ink.corners(), logical.corners()


def pixels(png):
    """Returns the pixels, [height, width, 3 or 4], of an 8-bit RGB or RGBA PNG, not interlaced."""
    at, packed = 8, b""
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at:at + 8])
        data = png[at + 8:at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, colours, _, _, interlaced = struct.unpack(">IIBBBBB", data)
            channels = {2: 3, 6: 4}[colours]
            assert (depth, interlaced) == (8, 0)
        elif kind == b"IDAT":
            packed += data
        at += length + 12
    rows = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, 1 + channels * width)
    image = np.zeros((height, width, channels), np.int64)
    above = np.zeros((width, channels), np.int64)
    for y, row in enumerate(rows):
        line = row[1:].reshape(width, channels).astype(np.int64)
        if row[0] == 1:
            line = np.cumsum(line, axis=0)
        elif row[0] == 2:
            line += above
        elif row[0] > 2:
            undo_filter(row[0], line, above)
        above = image[y] = line & 255
    return image


def undo_filter(kind, line, above):
    """Undoes filter 3 or 4 of `line`, from left to right (PNG specification, section 9.2)."""
    left = corner = np.zeros_like(line[0])
    for x, up in enumerate(above):
        if kind == 3:
            guess = (left + up) // 2
        else:
            distances = np.abs([up - corner, left - corner, left + up - 2 * corner])
            guess = np.where((distances[0] <= distances[1]) & (distances[0] <= distances[2]), left,
                             np.where(distances[1] <= distances[2], up, corner))
        line[x] = (line[x] + guess) & 255
        left, corner = line[x], up
