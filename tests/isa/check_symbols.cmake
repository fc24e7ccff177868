# SPDX-License-Identifier: Apache-2.0
# Fails where one of `objects` (separated by |) defines a weak function outside hpcattn::cpu::`isa`.
cmake_minimum_required(VERSION 3.25)

string(REPLACE "|" ";" objects "${objects}")
set(found)
foreach(object IN LISTS objects)
  execute_process(COMMAND ${nm} --demangle --defined-only ${object} OUTPUT_VARIABLE symbols
                  COMMAND_ERROR_IS_FATAL ANY)
  # Names may hold ; and [ ]: to CMake's lists these are no characters but separators and quotes.
  string(REGEX REPLACE "[][;]" "_" symbols "${symbols}")
  string(REPLACE "\n" ";" symbols "${symbols}")
  list(FILTER symbols INCLUDE REGEX "^[0-9a-f]+ W ")
  list(FILTER symbols EXCLUDE REGEX "hpcattn::cpu::${isa}::")
  foreach(symbol IN LISTS symbols)
    cmake_path(GET object FILENAME file)
    string(REGEX REPLACE "^[0-9a-f]+ W " "" symbol "${symbol}")
    string(APPEND found "  ${file}: ${symbol}\n")
  endforeach()
endforeach()
if(found)
  message(FATAL_ERROR
          "These functions were compiled for ${isa} and may be linked into code for every processor. "
          "Move them into namespace hpcattn::cpu::HPCATTN_ISA or an anonymous one, or keep the library "
          "template out of the kernel:\n${found}")
endif()
