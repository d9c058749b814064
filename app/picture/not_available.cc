// SPDX-License-Identifier: Apache-2.0
#include <qkv/app/picture.h>

namespace qkv::app {

NotAvailable::~NotAvailable() = default;

}  // namespace qkv::app
