// SPDX-License-Identifier: Apache-2.0
// The cases that several attention tests run over.
#pragma once

#include <string>
#include <vector>

#include "src/testing/attention_case.h"

namespace hpcattn::testkit {

struct DTypes {
  DType q;
  DType kv;
  DType out;
};

/// Every combination that include/hpcattn/attention.h allows, written out: not read from the
/// library's table, which is under test.
const std::vector<DTypes>& all_dtypes();

/// Sets the dtypes of a case, and for each float8 tensor the scales that it needs.
void set_dtypes(AttentionCase& c, const DTypes& dtypes, Scales kind = Scales::kEach);

/// A feature, or several, that a case is given.
struct Feature {
  std::string name;
  void (*apply)(AttentionCase&);
};

const std::vector<Feature>& all_features();

/// Anything that the library supports, small.
AttentionCase random_case(std::uint64_t seed);

}  // namespace hpcattn::testkit
