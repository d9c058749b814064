# SPDX-License-Identifier: Apache-2.0
"""Reads the PNG files that browsers write."""

import struct
import zlib

import numpy as np


def unfiltered(kind, line, above, size):
    """Undoes filter `kind` of a line; pixels have `size` bytes (PNG specification, section 9)."""
    line = line.astype(int)
    for at in range(len(line)):
        left = line[at - size] if at >= size else 0
        corner = int(above[at - size]) if at >= size else 0
        up = int(above[at])
        if kind == 4:
            near = min(
                (abs(up - corner), 0, left),
                (abs(left - corner), 1, up),
                (abs(left + up - 2 * corner), 2, corner),
            )
            line[at] += near[2]
        else:
            line[at] += (0, left, up, (left + up) // 2)[kind]
        line[at] &= 255
    return line


def pixels(data):
    """The pixels of an 8-bit RGB or RGBA file, [height, width, 3 or 4]."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed, header = 8, b"", None
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + size]
        if kind == b"IHDR":
            header = struct.unpack(">IIBBBBB", body)
        elif kind == b"IDAT":
            packed += body
        at += size + 12
    width, height, depth, colour, *_ = header
    assert depth == 8 and colour in (2, 6)
    size = 3 if colour == 2 else 4
    lines = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, 1 + width * size)
    image = np.zeros((height, width * size), np.uint8)
    above = np.zeros(width * size, np.uint8)
    for row, line in enumerate(lines):
        above = image[row] = unfiltered(line[0], line[1:], above, size)
    return image.reshape(height, width, size)
