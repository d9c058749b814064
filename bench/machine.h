// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_BENCH_MACHINE_H_
#define QKV_BENCH_MACHINE_H_

#include <cstddef>
#include <string>

namespace qkv::bench {

// Of the last-level cache; 0 if the system does not say.
std::size_t last_cache_bytes();

// "Intel(R) Xeon(R) Processor"; "unknown" if the system does not say. With the family, model and
// stepping if known: virtual machines often hide the rest.
std::string cpu_name();

// "2026-11-21T22:40:00Z"
std::string date_now();

// The compiler of this build: "gcc 12.2.0".
std::string compiler_name();

}  // namespace qkv::bench

#endif  // QKV_BENCH_MACHINE_H_
