// SPDX-License-Identifier: Apache-2.0
// Pragmas that the formatter leaves where they belong: for loops whose arrays must stay in
// registers, and for loops of code that runs once, where fetching instructions costs more than the
// branch. Nothing on the host.
#pragma once

#ifdef __CUDACC_RTC__
#define HPCATTN_UNROLL _Pragma("unroll")
#define HPCATTN_NO_UNROLL _Pragma("unroll 1")
#else
#define HPCATTN_UNROLL
#define HPCATTN_NO_UNROLL
#endif
