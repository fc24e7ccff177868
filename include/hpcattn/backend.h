// SPDX-License-Identifier: Apache-2.0
// The classes that an inference engine meets: what the backend can do, a step's metadata, the
// attention of a layer and its fused prologue. docs/operators/backend.md shows them at work.
#pragma once

#include "hpcattn/backend/attention_backend.h"
#include "hpcattn/backend/attention_impl.h"
#include "hpcattn/backend/hpc_module.h"
#include "hpcattn/backend/kv_cache.h"
#include "hpcattn/backend/metadata.h"
#include "hpcattn/backend/metadata_builder.h"
#include "hpcattn/backend/rope_norm.h"
#include "hpcattn/backend/step_workspace.h"
