// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <string_view>

#include <qkv/app/file_error.h>
#include <qkv/app/translation_model.h>
#include <qkv/context.h>
#include <qkv/error.h>

#include "tests/fuzz/memory_file.h"

// A model that is accepted translates, whatever its numbers are.
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    const qkv::app::TranslationModel model = qkv::app::parse_model("model", bytes);
    qkv::Context context(qkv::Executor::threads(1));
    const std::string texts[] = {"cab", ""};
    qkv::app::SearchOptions search;
    search.most_tokens = 4;
    for (search.beam = 1; search.beam < 3; ++search.beam) {
      const auto found = translate(model, texts, search, context);
      qkv::fuzz::require(found.size() == std::size(texts) && found[1].text.empty());
      qkv::fuzz::require(found[0].target.size() <= 4);
    }
  } catch (const qkv::app::InputError&) {
  }
  return 0;
}
