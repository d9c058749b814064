// SPDX-License-Identifier: Apache-2.0
#include <string_view>
#include <utility>

#include <nanobind/stl/string.h>

#include <qkv/cuda.h>
#include <qkv/target.h>
#include <qkv/version.h>

#include "areas.h"
#include "call.h"
#include "openmp.h"

namespace qkv::python {
namespace {

namespace nb = nanobind;

nb::object text(std::string_view value) { return nb::str(value.data(), value.size()); }

nb::dict described(const cuda::Device& device) {
  nb::dict facts;
  facts["number"] = device.number;
  facts["name"] = text(device.name);
  facts["memory_bytes"] = device.memory_bytes;
  facts["compute_capability"] = nb::make_tuple(device.major, device.minor);
  facts["multiprocessors"] = device.multiprocessors;
  return facts;
}

nb::dict info() {
  nb::list devices;
  for (const cuda::Device& device : cuda::devices()) devices.append(described(device));
  nb::list targets;
  for (const std::string_view target : cpu_targets()) targets.append(text(target));
  nb::dict facts;
  facts["version"] = text(QKV_VERSION);
  facts["cpu_target"] = text(cpu_target());
  facts["cpu_targets"] = std::move(targets);
  facts["threads"] = thread_count();
  facts["cuda_devices"] = std::move(devices);
  facts["why_no_cuda_device"] = text(cuda::why_no_device());
  return facts;
}

}  // namespace

void bind_info(nb::module_& module) {
  module.def("info", info);
  module.def("set_threads", set_threads, nb::arg().none());
  module.def("use_openmp_of", use_openmp_of);
  module.def("openmp_threads", openmp_threads);
}

}  // namespace qkv::python
