// SPDX-License-Identifier: Apache-2.0
// A pragma that the formatter leaves where it belongs; for loops whose arrays must stay in
// registers. Nothing on the host.
#pragma once

#ifdef __CUDACC_RTC__
#define HPCATTN_UNROLL _Pragma("unroll")
#else
#define HPCATTN_UNROLL
#endif
