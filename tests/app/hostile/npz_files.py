# SPDX-License-Identifier: Apache-2.0
"""Malformed .npz archives, built byte by byte (APPNOTE.TXT, sections 4.3 and 4.5.3)."""

import dataclasses
import gzip
import struct
import zlib

from array_files import described, npy_files

STORED, DEFLATED = 0, 8
GOOD = described()


def deflate(data):
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


@dataclasses.dataclass
class Member:
    """A member of an archive and what its headers claim; None stands for the true value."""

    content: bytes = GOOD
    method: int = DEFLATED
    name: bytes = b"x.npy"
    local_name: bytes = None
    packed: bytes = None
    size: int = None
    packed_size: int = None
    crc: int = None
    flags: int = 0
    offset: int = None

    def __post_init__(self):
        if self.packed is None:
            self.packed = deflate(self.content) if self.method == DEFLATED else self.content
        if self.size is None:
            self.size = len(self.content)
        if self.packed_size is None:
            self.packed_size = len(self.packed)
        if self.crc is None:
            self.crc = zlib.crc32(self.content)

    def fields(self):
        """The header's fields from version to sizes, and its extra field, with any 64-bit sizes."""
        large = self.size >= 2**32 or self.packed_size >= 2**32
        sizes = (0xFFFFFFFF,) * 2 if large else (self.packed_size, self.size)
        extra = struct.pack("<HHQQ", 1, 16, self.size, self.packed_size) if large else b""
        # Version 45 has ZIP64, 20 has deflate; date 33 is 1980-01-01.
        head = struct.pack(
            "<HHHHHIII", 45 if large else 20, self.flags, self.method, 0, 33, self.crc, *sizes
        )
        return head, extra

    def local(self):
        head, extra = self.fields()
        name = self.name if self.local_name is None else self.local_name
        return (
            b"PK\3\4"
            + head
            + struct.pack("<HH", len(name), len(extra))
            + name
            + extra
            + self.packed
        )

    def central(self, offset):
        head, extra = self.fields()
        offset = offset if self.offset is None else self.offset
        lengths = struct.pack("<HHHHHII", len(self.name), len(extra), 0, 0, 0, 0, offset)
        return b"PK\1\2" + struct.pack("<H", 45) + head + lengths + self.name + extra


def archive(*members, count=None, directory=None, comment=0):
    data, central = b"", b""
    for member in members:
        central += member.central(len(data))
        data += member.local()
    count = len(members) if count is None else count
    directory = len(data) if directory is None else directory
    end = struct.pack("<HHHHIIH", 0, 0, count, count, len(central), directory, comment)
    return data + central + b"PK\5\6" + end


def zeros(count, claimed=None):
    """A .npy file with an array of `count` zero bytes; its header may claim another number."""
    return described("'|u1'", f"({count if claimed is None else claimed},)", bytes(count))


def claiming(count):
    """An archive of 10 kB that inflates to 10 MB; its headers claim an array of `count` bytes."""
    content = zeros(10_000_000, count)
    return archive(Member(content, size=len(content) - 10_000_000 + count))


def sharing():
    """An archive of 41 members that all consist of the same bytes of the file."""
    first = Member(zeros(3000), STORED)
    others = [dataclasses.replace(first, name=b"x%d.npy" % i, offset=0) for i in range(40)]
    data = first.local()
    central = first.central(0) + b"".join(other.central(0) for other in others)
    end = struct.pack("<HHHHIIH", 0, 0, 41, 41, len(central), len(data), 0)
    return data + central + b"PK\5\6" + end


def npz_files():
    good = archive(Member())
    ten_megabytes = zeros(10_000_000)  # 10 kB deflated
    inside = npy_files()
    return {
        "cut_in_a_name": good[:33],
        "cut_in_a_member": good[:60],
        "cut_in_the_directory": good[:-40],
        "cut_in_the_end": good[:-3],
        "start_alone": good[:4],
        "bytes_in_front": b"12345678" + good,
        "end_alone_with_members": b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 5, 5, 230, 0, 0),
        "more_members_than_there_are": archive(Member(), count=9),
        "65535_members": archive(Member(), count=65535),
        "directory_out_of_the_file": archive(Member(), directory=2**31),
        "comment_beyond_the_end": archive(Member(), comment=500),
        "member_out_of_the_file": archive(Member(offset=2**31)),
        "member_in_the_directory": archive(Member(offset=100)),
        "members_share_bytes": sharing(),
        "name_twice": archive(Member(), Member()),
        "names_differ": archive(Member(local_name=b"y.npy")),
        "name_of_two_lines": archive(Member(name=b"a\nqkv: b\x1b[2J.npy", content=b"")),
        "claims_10_GB_in_10_kB": claiming(10**10),
        "claims_4_GB_in_10_kB": claiming(4 * 10**9),
        "claims_2_63": archive(Member(size=2**63 + 5)),
        "packed_size_of_2_63": archive(Member(packed_size=2**63 + 5)),
        "inside_claims_10_GB": archive(Member(zeros(10_000_000, 10**10))),
        "inside_claims_less": archive(Member(zeros(10_000_000, 12))),
        "inflates_to_more": archive(Member(ten_megabytes, size=len(GOOD))),
        "inflates_to_more_than_its_array": archive(
            Member(described("'|u1'", "(12,)", bytes(12)), packed=deflate(zeros(10_000_000, 12)))
        ),
        "inflates_to_less": archive(Member(packed=deflate(GOOD[:-4]))),
        "inflates_and_is_wrong": archive(Member(ten_megabytes, crc=1)),
        "stored_sizes_differ": archive(Member(method=STORED, size=len(GOOD) + 1)),
        "checksum_wrong": archive(Member(method=STORED, crc=12345)),
        "deflated_rubbish": archive(Member(packed=b"\xff" * 60)),
        "deflated_and_cut": archive(Member(packed=deflate(GOOD)[:-10])),
        "method_unknown": archive(Member(method=77, packed=GOOD)),
        "method_bzip2": archive(Member(method=12, packed=GOOD)),
        "encrypted": archive(Member(flags=1)),
        "member_empty": archive(Member(b"", STORED)),
        "member_no_array": archive(Member(b"no array at all")),
        "member_objects": archive(Member(inside["type_object"])),
        "member_structured": archive(Member(inside["type_structured"])),
        "member_cut": archive(Member(inside["data_cut"])),
        "a_gzip_file": gzip.compress(GOOD),
    }
