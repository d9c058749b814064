#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What an nvcc says that is too old for qkv.
echo "Cuda compilation tools, release 12.4, V12.4.131"
