// SPDX-License-Identifier: Apache-2.0
// Stands for a program of another project that uses qkv_app: writes an archive and reads it again.
#include <cstdio>
#include <span>
#include <variant>
#include <vector>

#include <qkv/app/array_file.h>

int main() {
  const std::vector<double> values{1, 2, 3};
  const qkv::app::NamedView written[] = {{"values", qkv::ConstView(values)}};
  qkv::app::write_npz("consumer.npz", written);
  const auto arrays = qkv::app::read_npz("consumer.npz");

  const auto* read = arrays.size() == 1 ? std::get_if<qkv::Tensor>(&arrays[0].array) : nullptr;
  const bool same = read != nullptr && read->view().at<double>({2}) == 3;
  std::printf("qkv_app: %s\n", same ? "read what was written" : "read something else");
  return same ? 0 : 1;
}
