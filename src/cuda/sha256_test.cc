// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/sha256.h"

#include <gtest/gtest.h>

namespace hpcattn::cuda {
namespace {

std::string digest(std::string_view text) { return hex(Sha256().add(text).finish()); }

TEST(Sha256, ExamplesOfTheStandard) {
  EXPECT_EQ(digest(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(digest("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(digest("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(digest(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, AnyDivisionIntoPartsGivesTheSame) {
  const std::string text(300, 'x');
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    Sha256 hash;
    hash.add(std::string_view(text).substr(0, cut)).add(std::string_view(text).substr(cut));
    EXPECT_EQ(hex(hash.finish()), digest(text)) << cut;
  }
}

TEST(Sha256, FieldsDoNotRunTogether) {
  EXPECT_NE(Sha256().add_field("ab").add_field("c").finish(),
            Sha256().add_field("a").add_field("bc").finish());
}

}  // namespace
}  // namespace hpcattn::cuda
