// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TEXT_SPELLING_H_
#define QKV_TEXT_SPELLING_H_

#include <cstdint>
#include <span>
#include <string>

#include <qkv/export.h>
#include <qkv/tensor.h>

namespace qkv::app {

inline constexpr Index kSpellingWidth = 50;

// Makes word vectors, float32 [words, width], from spelling alone, for use without a file of word
// vectors. Words that share runs of letters get similar vectors; meaning plays no part. A word's
// n-grams are those of Bojanowski et al. 2017, section 3.2: all runs of 3 to 5 code points of
// "<word>", and "<word>" itself. Each n-gram is hashed (FNV-1a, 64 bits), and the hash draws
// `width` uniform numbers from Philox4x32-10 under the seed. A word's vector is the sum over its
// n-grams, divided by the square root of their count and scaled to GloVe's deviation. The same
// word, seed and width give bit-identical vectors on every machine. Throws Error if a word is not
// UTF-8 or width < 1.
QKV_API Tensor spelling_vectors(std::span<const std::string> words, std::uint64_t seed,
                                Index width = kSpellingWidth);

}  // namespace qkv::app

#endif  // QKV_TEXT_SPELLING_H_
