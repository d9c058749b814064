// SPDX-License-Identifier: Apache-2.0
#include "argument_name.h"

#include <qkv/error.h>

namespace qkv::python {

void throw_type_error(const Name& name, const std::string& detail) {
  throw Error(name.function, name.argument, detail, ErrorKind::kType);
}

void throw_value_error(const Name& name, const std::string& detail) {
  throw Error(name.function, name.argument, detail);
}

}  // namespace qkv::python
