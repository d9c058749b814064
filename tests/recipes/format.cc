// SPDX-License-Identifier: Apache-2.0
// links: qkv_app
// Runs with format.patch, which adds Matrix Market files. A matrix that is written to such a file
// is read back, and an error for a malformed file names the line.
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <variant>
#include <vector>

#include <qkv/app/array_file.h>
#include <qkv/app/file_error.h>

namespace {

using namespace qkv;

int wrong = 0;

void expect(bool right, const std::string& what) {
  if (right) return;
  ++wrong;
  std::printf("wrong: %s\n", what.c_str());
}

std::string refusal(const std::string& path, const std::string& text) {
  std::ofstream(path) << text;
  try {
    app::read_arrays(path);
    return "nothing";
  } catch (const app::InputError& error) {
    return error.what();
  }
}

}  // namespace

int main() {
  const std::string path = (std::filesystem::temp_directory_path() / "qkv_recipe.mtx").string();
  std::vector<double> numbers{1, -2.5, 1e-300, 4, 5, 0.1};
  const app::NamedView matrix{"", ConstView(View(numbers.data(), {2, 3}))};
  const auto format = app::array_format(path);
  expect(format.has_value(), "the extension is unknown");
  app::write_arrays(path, *format, {&matrix, 1});
  const auto arrays = app::read_arrays(path);
  const auto& tensor = std::get<Tensor>(arrays.at(0).array);
  expect(tensor.shape() == Dims(2, 3), "the shape");
  for (std::size_t n = 0; n < numbers.size(); ++n) {
    expect(tensor.values<double>()[n] == numbers[n], "number " + std::to_string(n));
  }
  const std::string header = "%%MatrixMarket matrix array real general\n";
  const struct {
    std::string text, message;
  } kMalformed[] = {
      {header + "2 2\n1\n2\n3\n", ":6: expected a number, got the end of the file"},
      {header + "% a comment\n2 1\n1\nx\n", ":5: expected a number, got \"x\""},
      {header + "1 1\n1\n2\n", ":4: expected the end of the file, got \"2\""},
      {header + "9000000000 9000000000\n1\n", ":2: expected sizes that the file has room for"},
      {"%%MatrixMarket matrix coordinate real general\n", ":1: expected \"%%MatrixMarket matrix"},
  };
  for (const auto& one : kMalformed) {
    const std::string got = refusal(path, one.text);
    expect(got.find(one.message) != std::string::npos, "expected " + one.message + ", got " + got);
  }
  std::filesystem::remove(path);
  std::printf("a matrix of 6 numbers, 5 malformed files, %d wrong\n", wrong);
  return wrong;
}
