// SPDX-License-Identifier: Apache-2.0
// One step of the model over a mixed batch: every attention is hpcattn's.
#pragma once

#include <vector>

#include "model.h"
#include "page_pool.h"
#include "scheduler.h"

namespace example {

/// Logits [num_requests, vocab] of each request's last token in the batch. K and V of the batch's
/// tokens are written to the pages.
std::vector<float> run_step(const Model& model, PagePool& pool, Batch& batch);

}  // namespace example
