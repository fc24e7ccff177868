// SPDX-License-Identifier: Apache-2.0
// A pragma that the formatter leaves where it belongs.
#pragma once

#define HPCATTN_UNROLL _Pragma("unroll")
