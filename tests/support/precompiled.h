// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_SUPPORT_PRECOMPILED_H_
#define QKV_TESTS_SUPPORT_PRECOMPILED_H_

// The headers that nearly every test includes, compiled once for all test programs. Each file still
// includes the headers that it uses: CMAKE_DISABLE_PRECOMPILE_HEADERS=ON compiles without this one.
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/layers.h>
#include <qkv/qkv.h>

#endif  // QKV_TESTS_SUPPORT_PRECOMPILED_H_
