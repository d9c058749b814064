// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_DATA_DATE_SPELLING_H_
#define QKV_TRANSLATOR_DATA_DATE_SPELLING_H_

#include <chrono>
#include <string>

#include "core/draws.h"

namespace qkv::app {

// Spells a day of the years 1900 to 2099 in one of the ways in which people do, drawn at random.
std::string spelled(std::chrono::sys_days day, core::Draws& draws);

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_DATA_DATE_SPELLING_H_
