// SPDX-License-Identifier: Apache-2.0
#include "src/backend/reasons.h"

#include "src/common/check.h"

namespace hpcattn {

void refuse(std::string_view who, const std::vector<std::string>& reasons) {
  std::string text;
  for (const std::string& reason : reasons) {
    if (!text.empty()) text += "; ";
    text += reason;
  }
  check_supported(reasons.empty(), who, ": ", text, ".");
}

}  // namespace hpcattn
