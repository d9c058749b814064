// SPDX-License-Identifier: Apache-2.0
// Reads a whole file with one of the readers and prints the program's message about it. It is for
// readers that no command of the program drives to the end of the file.
//
// usage: hostile_reader arrays|vectors|rows FILE
#include <cstdio>
#include <exception>
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
  } else {
    qkv::app::for_each_row(path, {.least_columns = 2}, [](auto, auto) { return true; });
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
