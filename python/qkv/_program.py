# SPDX-License-Identifier: Apache-2.0
"""The executable in the package."""

import pathlib

PROGRAM = pathlib.Path(__file__).with_name("bin") / "qkv"
