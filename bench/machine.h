// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_BENCH_MACHINE_H_
#define QKV_BENCH_MACHINE_H_

#include <cstddef>
#include <string>

namespace qkv::bench {

// The size of the last-level cache in bytes; 0 if the system does not tell it.
std::size_t last_cache_bytes();

// The CPU's name, such as "Intel(R) Xeon(R) Processor", or "unknown". Includes the family, model
// and stepping if they are known, since virtual machines often hide the exact name.
std::string cpu_name();

// The time now in UTC: "2026-11-21T22:40:00Z".
std::string date_now();

// The compiler of this build: "gcc 12.2.0".
std::string compiler_name();

}  // namespace qkv::bench

#endif  // QKV_BENCH_MACHINE_H_
