# SPDX-License-Identifier: Apache-2.0
# hpcattn_options: warnings, sanitizers and coverage, linked by every target of this build and by none
# of its users.
include_guard(GLOBAL)

add_library(hpcattn_options INTERFACE)
# Designated initialisers leave out what has a default: GCC warns of that too.
target_compile_options(hpcattn_options INTERFACE -Wall -Wextra -Wshadow -Wconversion -Wsign-conversion
                       -Wno-missing-field-initializers
                       $<$<BOOL:${HPCATTN_WERROR}>:-Werror>)
if(HPCATTN_SANITIZE)
  target_compile_options(hpcattn_options INTERFACE -fsanitize=${HPCATTN_SANITIZE} -fno-omit-frame-pointer
                         -fno-sanitize-recover=all)
  target_compile_definitions(hpcattn_options INTERFACE _GLIBCXX_ASSERTIONS)
  target_link_options(hpcattn_options INTERFACE -fsanitize=${HPCATTN_SANITIZE})
endif()
if(HPCATTN_SANITIZE OR HPCATTN_COVERAGE)
  # GCC warns of its own intrinsics' _mm256_undefined_pd() where instrumentation comes between.
  target_compile_options(hpcattn_options INTERFACE -Wno-uninitialized -Wno-maybe-uninitialized)
endif()
if(HPCATTN_COVERAGE)
  target_compile_options(hpcattn_options INTERFACE --coverage -fprofile-update=atomic)
  target_link_options(hpcattn_options INTERFACE --coverage)
endif()
