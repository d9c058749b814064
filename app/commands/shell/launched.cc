// SPDX-License-Identifier: Apache-2.0
#include "commands/shell/launched.h"

#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include <dlfcn.h>
#include <fmt/format.h>

#include <qkv/app/picture.h>
#include <qkv/version.h>

#include "mpi/ranks_module.h"

namespace {

using qkv::app::NotAvailable;
using qkv::mpi::RanksModule;

const RanksModule* joined = nullptr;
bool has_begun_joining = false;
bool is_lone_error = false;

// The whole number in an environment variable, or -1.
int number_in(const char* variable) {
  const char* const text = std::getenv(variable);
  if (text == nullptr) return -1;
  const std::string_view digits = text;
  int number = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return error == std::errc() && end == digits.data() + digits.size() ? number : -1;
}

// The path of the MPI module, which lies at one place relative to the program, built or installed.
std::string module_path() {
  std::error_code failed;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", failed);
  return (program.parent_path() / QKV_RANKS_MODULE).lexically_normal().string();
}

const RanksModule& load(int count) {
  const std::string path = module_path();
  if (!std::filesystem::exists(path)) {
    throw NotAvailable(
        fmt::format("started as {} processes that train together, but this qkv has no module for "
                    "MPI, {}",
                    count, path));
  }
  // MPI loads plug-ins that resolve MPI's symbols globally, hence RTLD_GLOBAL.
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) throw NotAvailable(::dlerror());
  using Function = const RanksModule* (*)();
  const auto function = reinterpret_cast<Function>(::dlsym(library, "qkv_ranks_module"));
  const RanksModule* const module = function == nullptr ? nullptr : function();
  if (module == nullptr || module->version != std::string_view(QKV_VERSION)) {
    throw NotAvailable(fmt::format("{} is not the module of qkv " QKV_VERSION, path));
  }
  return *module;
}

}  // namespace

Launched launched() {
  if (number_in("QKV_RANKS") == 1) return {};
  struct Launcher {
    const char* rank;
    const char* count;
    const char* sign;  // must be set, too
  };
  // Open MPI's mpirun; MPICH's and Slurm's PMI; Slurm's PMIx.
  constexpr Launcher kLaunchers[] = {
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
      {"PMI_RANK", "PMI_SIZE", "PMI_RANK"},
      {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "PMIX_RANK"}};
  for (const Launcher& launcher : kLaunchers) {
    const Launched found{number_in(launcher.rank), number_in(launcher.count)};
    if (std::getenv(launcher.sign) == nullptr) continue;
    if (found.rank >= 0 && found.count > found.rank) return found;
  }
  return {};
}

qkv::Ranks* join_ranks() {
  const Launched all = launched();
  if (all.count == 1) return nullptr;
  has_begun_joining = true;
  const RanksModule& module = load(all.count);
  qkv::Ranks* const ranks = module.join();
  joined = &module;
  if (ranks->rank() != all.rank || ranks->count() != all.count) {
    lone_error();
    throw NotAvailable(fmt::format(
        "the launcher started rank {} of {}, but MPI says rank {} of {}: {} must be built with the "
        "launcher's MPI",
        all.rank, all.count, ranks->rank(), ranks->count(), module_path()));
  }
  return ranks;
}

bool is_follower() { return joined != nullptr && launched().rank > 0; }

void lone_error() { is_lone_error = true; }

std::string rank_in_errors() {
  const int rank = launched().rank;
  if (!has_begun_joining || (rank == 0 && !is_lone_error)) return {};
  return fmt::format("rank {}: ", rank);
}

void leave_ranks(int code) {
  if (joined == nullptr) return;
  if (is_lone_error) {
    joined->abort_all(code);
  } else {
    joined->leave();
  }
}
