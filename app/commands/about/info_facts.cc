// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include <CLI/Version.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <qkv/context.h>
#include <qkv/cuda.h>
#include <qkv/target.h>
#include <qkv/version.h>

#include "commands/about/info.h"
#include "commands/shell/outputs.h"
#include "files/text_file.h"

namespace {

// The CPU features that matter to the kernels, as spelled in /proc/cpuinfo.
constexpr std::string_view kFeatures[] = {
    "sse4_2",   "avx",         "avx2",     "fma",      "f16c",        "avx512f",
    "avx512bw", "avx512dq",    "avx512vl", "avx_vnni", "avx512_vnni", "avx512_bf16",
    "amx_bf16", "avx512_fp16", "asimd",    "sve",      "bf16"};

// The value of the first line of `text` that reads "NAME : value", or "".
std::string field(std::string_view text, std::string_view name) {
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    const std::size_t colon = line.find(": ");
    if (line.starts_with(name) && colon != std::string_view::npos &&
        line.find_first_not_of(" \t", name.size()) == colon) {
      return std::string(line.substr(colon + 2));
    }
    begin = end + 1;
  }
  return "";
}

std::string cpu_text() {
  try {
    return qkv::app::read_text("/proc/cpuinfo");
  } catch (const qkv::app::InputError&) {
    return "";
  }
}

std::string or_unknown(const std::string& text) { return text.empty() ? "unknown" : text; }

std::string features(const std::string& cpu) {
  const std::string all = " " + field(cpu, "flags") + " " + field(cpu, "Features") + " ";
  std::string found;
  for (const std::string_view feature : kFeatures) {
    if (all.find(fmt::format(" {} ", feature)) == std::string::npos) continue;
    found += (found.empty() ? "" : " ") + std::string(feature);
  }
  return found.empty() ? "none known" : found;
}

// The CPU targets of this machine, the best one first, as QKV_TARGET spells them.
std::string targets() {
  std::string all;
  for (const std::string_view target : qkv::cpu_targets()) {
    all += (all.empty() ? "" : " ") + std::string(target);
  }
  return all;
}

// The path of the first executable file called `program` in the folders of PATH, or "".
std::string on_path(const std::string& program) {
  const char* path = std::getenv("PATH");
  std::string_view rest = path == nullptr ? "" : path;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find(':'), rest.size());
    std::string candidate = (std::filesystem::path(rest.substr(0, end)) / program).string();
    std::error_code error;
    if (std::filesystem::is_regular_file(candidate, error) &&
        ::access(candidate.c_str(), X_OK) == 0) {
      return candidate;
    }
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return "";
}

}  // namespace

Facts build_facts() {
  return {
      {"version", QKV_VERSION},
      {"compiler", QKV_BUILD_COMPILER},
      {"build", QKV_BUILD_TYPE},
      {"flags", QKV_BUILD_FLAGS},
      {"target", QKV_BUILD_TARGET},
      {"CUDA kernels", QKV_BUILD_CUDA},
      {"libzip", QKV_BUILD_LIBZIP},
      {"utf8proc", QKV_BUILD_UTF8PROC},
      {"sentencepiece", QKV_BUILD_SENTENCEPIECE},
      {"fmt",
       fmt::format("{}.{}.{}", FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100)},
      {"nlohmann_json", fmt::format("{}.{}.{}", NLOHMANN_JSON_VERSION_MAJOR,
                                    NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH)},
      {"CLI11", CLI11_VERSION},
      {"writes", output_formats()},
      {"reads", array_formats() + "; word vectors of GloVe, fastText and word2vec"},
  };
}

namespace {

// The targets that are unavailable or not preferred although the CPU has their instructions, and
// why.
Facts reasons_of_targets(const std::string& features) {
  Facts reasons;
  const auto targets = qkv::cpu_targets();
  const auto at = [&](std::string_view name) {
    return std::find(targets.begin(), targets.end(), name);
  };
  if (features.find("amx_bf16") != std::string::npos && at("amx") == targets.end()) {
    reasons.emplace_back("amx", "not available: the operating system does not permit its tiles");
  }
  if (at("avx512") < at("avx512bf16") && at("avx512bf16") != targets.end()) {
    reasons.emplace_back("avx512bf16",
                         "available, but avx512 is preferred: Intel's CPUs multiply bfloat16 "
                         "faster with it");
  }
  return reasons;
}

std::string described(const qkv::cuda::Device& device) {
  std::string text =
      fmt::format("{}, compute capability {}.{}, {} GiB, {} multiprocessors", device.name,
                  device.major, device.minor, device.memory_bytes >> 30U, device.multiprocessors);
  if (device.major < qkv::cuda::kLeastMajor) {
    text += fmt::format("; cannot be used: the kernels need {}.0", qkv::cuda::kLeastMajor);
  }
  return text;
}

}  // namespace

Facts machine_facts() {
  const std::string cpu = cpu_text();
  const std::string rsvg = on_path("rsvg-convert");
  Facts facts{
      {"processor", or_unknown(field(cpu, "model name"))},
      {"features", features(cpu)},
      {"CPU targets", targets()},
      {"CPU target", std::string(qkv::cpu_target())},
  };
  for (const auto& reason : reasons_of_targets(features(cpu))) facts.push_back(reason);
  const Facts others{
      {"threads", fmt::format("{}", qkv::Executor::threads(0).concurrency())},
      {"rsvg-convert",
       rsvg.empty() ? "not found: .png and .pdf need the package librsvg2-bin" : rsvg},
  };
  facts.insert(facts.end(), others.begin(), others.end());
  for (const qkv::cuda::Device& device : qkv::cuda::devices()) {
    facts.emplace_back(fmt::format("GPU {}", device.number), described(device));
  }
  if (qkv::cuda::devices().empty())
    facts.emplace_back("GPU", "none: " + qkv::cuda::why_no_device());
  return facts;
}
