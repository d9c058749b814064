// SPDX-License-Identifier: Apache-2.0
#include "commands/shell/memory.h"

#include <cstdlib>

#include <fmt/format.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "commands/shell/exit_codes.h"

void check_memory(double bytes, std::string_view what, std::string_view hint) {
  const double machine =
      static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  if (bytes <= 0.9 * machine) return;
  throw UsageError(fmt::format("{} would take {:.1f} GB, above 90 % of this machine's {:.1f}; {}",
                               what, bytes * 1e-9, machine * 1e-9, hint));
}

void keep_freed_memory() {
#ifdef __GLIBC__
  // Older versions of glibc refuse more than 32 MiB as the least size that is mapped.
  if (::mallopt(M_MMAP_THRESHOLD, 1 << 30) == 0) ::mallopt(M_MMAP_THRESHOLD, 32 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 0x7FFFFFFF);
  ::mallopt(M_TOP_PAD, 64 << 20);
#endif
}
