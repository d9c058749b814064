// SPDX-License-Identifier: Apache-2.0
// Reads a whole file with one reader of the library. On an error, prints the message and exits as
// the program would. A command of the program may stop before the end of a file, or check more.
//
// usage: hostile_reader arrays|vectors|rows FILE
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>

#include <qkv/app/array_file.h>
#include <qkv/app/word_vectors.h>

#include "files/parallel_text.h"

namespace {

void read(const std::string& kind, const std::string& path) {
  if (kind == "arrays") {
    qkv::app::read_arrays(path);
  } else if (kind == "vectors") {
    qkv::app::check_word_vectors(path);
  } else if (kind == "rows") {
    qkv::app::for_each_row(path, {.least_columns = 2}, [](auto, auto) { return true; });
  } else {
    throw std::invalid_argument("unknown kind: " + kind);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    read(argv[1], argv[2]);
    return 0;
  } catch (const qkv::app::InputError& error) {
    std::fprintf(stderr, "qkv: %s\n", error.what());
    return 3;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "qkv: %s\n", error.what());
    return 1;
  }
}
