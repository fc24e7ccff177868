# SPDX-License-Identifier: Apache-2.0
# Device code travels in the library as text, for NVRTC at run time.
#
#   hpcattn_embed_sources(target)
#
# adds to `target` a source that defines the table of src/cuda/sources.h: every file of kernels/ and what
# they include of src/ and include/, under the names by which they are included. A new file needs no
# line here. Writing that source is a build step: this same file, run by `cmake -P`.
if(CMAKE_SCRIPT_MODE_FILE)
  cmake_policy(SET CMP0057 NEW)  # IN_LIST; a script has no policies of a project
  string(REPLACE "|" ";" files "${FILES}")
  # The list grows while it is walked: by what the host's headers are included.
  set(i 0)
  list(LENGTH files count)
  while(i LESS count)
    list(GET files ${i} file)
    file(STRINGS "${ROOT}/${file}" lines REGEX "^#include \"")
    foreach(line IN LISTS lines)
      string(REGEX REPLACE "^#include \"([^\"]*)\".*" "\\1" name "${line}")
      foreach(path IN ITEMS ${name} include/${name})
        if(EXISTS "${ROOT}/${path}" AND NOT path IN_LIST files)
          list(APPEND files ${path})
        endif()
      endforeach()
    endforeach()
    math(EXPR i "${i} + 1")
    list(LENGTH files count)
  endwhile()
  list(SORT files)

  set(entries "")
  set(depfile "${OUTPUT}:")
  foreach(file IN LISTS files)
    string(APPEND depfile " \\\n  ${ROOT}/${file}")
    file(READ "${ROOT}/${file}" text)
    if(text MATCHES "\\)hpcattn\"")
      message(FATAL_ERROR "${file}: )hpcattn\" ends the string that the file is embedded as")
    endif()
    # include/ and the stand-ins of std headers are roots.
    string(REGEX REPLACE "^(include|kernels/std)/" "" name "${file}")
    # In parts: compilers promise 64 KiB of a string literal at the least.
    set(literal "")
    string(LENGTH "${text}" length)
    set(begin 0)
    while(begin LESS length)
      string(SUBSTRING "${text}" ${begin} 8000 part)
      string(APPEND literal "R\"hpcattn(${part})hpcattn\"\n")
      math(EXPR begin "${begin} + 8000")
    endwhile()
    string(APPEND entries "    {\"${name}\",\n${literal}},\n")
  endforeach()
  file(WRITE "${OUTPUT}" "// Made by cmake/EmbedSources.cmake.\n#include \"src/cuda/sources.h\"\n
namespace hpcattn::cuda {
namespace {
constexpr EmbeddedSource kSources[] = {\n${entries}};
}  // namespace
std::span<const EmbeddedSource> embedded_sources() { return kSources; }
}  // namespace hpcattn::cuda\n")
  file(WRITE "${OUTPUT}.d" "${depfile}\n")
  return()
endif()

include_guard(GLOBAL)
set(HPCATTN_EMBED_SCRIPT ${CMAKE_CURRENT_LIST_FILE})

function(hpcattn_embed_sources target)
  file(GLOB_RECURSE files RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS
       ${PROJECT_SOURCE_DIR}/kernels/*.h ${PROJECT_SOURCE_DIR}/kernels/*.cuh ${PROJECT_SOURCE_DIR}/kernels/std/*)
  list(REMOVE_DUPLICATES files)
  list(TRANSFORM files PREPEND ${PROJECT_SOURCE_DIR}/ OUTPUT_VARIABLE paths)
  list(JOIN files "|" joined)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/embedded_sources.cc)
  add_custom_command(OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DROOT=${PROJECT_SOURCE_DIR} -DFILES=${joined} -DOUTPUT=${output} -P ${HPCATTN_EMBED_SCRIPT}
    DEPENDS ${paths} ${HPCATTN_EMBED_SCRIPT} DEPFILE ${output}.d COMMENT "Embedding device code" VERBATIM)
  target_sources(${target} PRIVATE ${output})
endfunction()
