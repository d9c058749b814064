#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Stands for an nvcc that is too old for qkv, whose version it prints.
echo "Cuda compilation tools, release 12.4, V12.4.131"
