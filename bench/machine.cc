// SPDX-License-Identifier: Apache-2.0
#include "machine.h"

#include <ctime>
#include <fstream>

#include <fmt/format.h>
#include <unistd.h>

namespace qkv::bench {
namespace {

// The value of the first line of /proc/cpuinfo that reads "NAME : value"; "" if there is none.
std::string cpu_field(const std::string& name) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (colon == std::string::npos || !line.starts_with(name)) continue;
    if (line.find_first_not_of(" \t", name.size()) == colon) return line.substr(colon + 2);
  }
  return "";
}

}  // namespace

std::size_t last_cache_bytes() {
  for (const int name : {_SC_LEVEL3_CACHE_SIZE, _SC_LEVEL2_CACHE_SIZE}) {
    const long bytes = ::sysconf(name);
    if (bytes > 0) return static_cast<std::size_t>(bytes);
  }
  return 0;
}

std::string cpu_name() {
  std::string name = cpu_field("model name");
  const std::string family = cpu_field("cpu family");
  if (name.empty()) return "unknown";
  if (family.empty()) return name;
  return fmt::format("{} (family {}, model {}, stepping {})", name, family, cpu_field("model"),
                     cpu_field("stepping"));
}

std::string date_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", utc.tm_year + 1900, utc.tm_mon + 1,
                     utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec);
}

std::string compiler_name() {
#if defined(__clang__)
  return fmt::format("clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  return fmt::format("gcc {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
}

}  // namespace qkv::bench
