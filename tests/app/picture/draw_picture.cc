// SPDX-License-Identifier: Apache-2.0
// Writes the pictures of pictures.h to files, for tests in Python and for viewing:
//   draw_picture svg|png|ansi|text|ascii|table DIRECTORY [NAME...]
#include <cstdio>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/app/picture/pictures.h"

namespace {

std::string drawn_as(const std::string& form, const qkv::app::Picture& picture) {
  if (form == "svg") return qkv::app::draw_svg(picture);
  if (form == "png") return qkv::app::draw_png(picture);
  if (form == "ansi") return qkv::app::draw_terminal(picture, {.columns = 100});
  if (form == "text")
    return qkv::app::draw_terminal(picture,
                                   {.columns = 100, .colours = qkv::app::TerminalColours::kNone});
  if (form == "ascii") {
    return qkv::app::draw_terminal(
        picture, {.columns = 100, .colours = qkv::app::TerminalColours::kNone, .unicode = false});
  }
  if (form == "table") return qkv::app::draw_table(picture);
  throw std::invalid_argument("unknown form: " + form);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() < 2) {
    std::fputs("usage: draw_picture svg|png|ansi|text|ascii|table DIRECTORY [NAME...]\n", stderr);
    return 2;
  }
  std::vector<std::string> names(words.begin() + 2, words.end());
  try {
    if (names.empty()) {
      for (const auto& drawn : qkv::test::drawn_pictures()) names.push_back(drawn.name);
    }
    for (const std::string& name : names) {
      const std::string bytes = drawn_as(words[0], qkv::test::drawn_picture(name).picture);
      std::ofstream(words[1] + "/" + name + "." + words[0], std::ios::binary) << bytes;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "draw_picture: %s\n", error.what());
    return 1;
  }
  return 0;
}
