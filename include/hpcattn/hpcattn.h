// SPDX-License-Identifier: Apache-2.0
// Everything: the operators, the plan and the backend classes.
#pragma once

#include "hpcattn/attention.h"
#include "hpcattn/backend.h"
#include "hpcattn/counters.h"
#include "hpcattn/cuda.h"
#include "hpcattn/error.h"
#include "hpcattn/merge.h"
#include "hpcattn/plan.h"
#include "hpcattn/rope.h"
#include "hpcattn/store.h"
