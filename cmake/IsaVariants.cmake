# SPDX-License-Identifier: Apache-2.0
# CPU kernels are compiled once for each instruction set and chosen at run time.
#
#   hpcattn_add_isa_variants(target source.isa.cc...)
#
# compiles each source once for each entry of HPCATTN_ISAS and links the objects into `target`. In such
# a source
#   HPCATTN_ISA       is the name as a token (generic, avx2, avx512): put everything into
#                     `namespace hpcattn::cpu::HPCATTN_ISA`, so that no two variants share a symbol
#   HPCATTN_ISA_NAME  is the name as a string literal
#   __AVX2__, __AVX512F__, ... are the compiler's own macros.
# In all other sources of `target`, HPCATTN_HAVE_AVX2 and HPCATTN_HAVE_AVX512 are 1 or 0: whether the
# variant was built. Whether the processor can run it is for the dispatcher to ask.
#
# An inline function or a template of a shared header that such a source emits out of line is a weak
# symbol, of which the linker keeps any one: a machine without AVX-512 would then run the AVX-512 copy.
# The test isa_symbols (tests/isa/) finds these.
include_guard(GLOBAL)
include(CheckCXXCompilerFlag)

set(HPCATTN_ISA_FLAGS_generic)
set(HPCATTN_ISA_FLAGS_avx2 -mavx2 -mfma -mf16c)
set(HPCATTN_ISA_FLAGS_avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c
    -mprefer-vector-width=512)

set(HPCATTN_ISAS generic)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$" AND CMAKE_SIZEOF_VOID_P EQUAL 8)
  foreach(isa IN ITEMS avx2 avx512)
    string(REPLACE ";" " " flags "${HPCATTN_ISA_FLAGS_${isa}}")
    check_cxx_compiler_flag("${flags}" HPCATTN_COMPILER_HAS_${isa})
    if(HPCATTN_COMPILER_HAS_${isa})
      list(APPEND HPCATTN_ISAS ${isa})
    endif()
  endforeach()
endif()

function(hpcattn_add_isa_variants target)
  set(sources ${ARGN})
  foreach(isa IN ITEMS avx2 avx512)
    string(TOUPPER ${isa} upper)
    if(isa IN_LIST HPCATTN_ISAS AND sources)
      target_compile_definitions(${target} PRIVATE HPCATTN_HAVE_${upper}=1)
    else()
      target_compile_definitions(${target} PRIVATE HPCATTN_HAVE_${upper}=0)
    endif()
  endforeach()
  if(NOT sources)
    return()
  endif()
  foreach(isa IN LISTS HPCATTN_ISAS)
    # generic comes first: of weak symbols alike, linkers keep the first.
    set(objects ${target}_${isa})
    add_library(${objects} OBJECT ${sources})
    set_target_properties(${objects} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    target_include_directories(${objects} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
    target_compile_definitions(${objects} PRIVATE HPCATTN_ISA=${isa} HPCATTN_ISA_NAME="${isa}")
    # ISO mode (-std=c++20) turns contraction off in GCC; a fused multiply-add is the point here.
    target_compile_options(${objects} PRIVATE ${HPCATTN_ISA_FLAGS_${isa}} -ffp-contract=fast)
    target_link_libraries(${objects} PRIVATE $<BUILD_INTERFACE:hpcattn_options> Threads::Threads)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${objects}>)
  endforeach()
endfunction()
