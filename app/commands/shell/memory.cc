// SPDX-License-Identifier: Apache-2.0
#include "commands/shell/memory.h"

#include <fmt/format.h>
#include <unistd.h>

#include "commands/shell/exit_codes.h"

void check_memory(double bytes, std::string_view what, std::string_view hint) {
  const double machine =
      static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  if (bytes <= 0.9 * machine) return;
  throw UsageError(fmt::format("{} would take {:.1f} GB, above 90 % of this machine's {:.1f}; {}",
                               what, bytes * 1e-9, machine * 1e-9, hint));
}
