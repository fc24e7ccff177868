# SPDX-License-Identifier: Apache-2.0
# One consumer test (see CMakeLists.txt). Each step must succeed, or the test fails with its output.
cmake_minimum_required(VERSION 3.25)

function(run)
  list(JOIN ARGN " " text)
  message(STATUS "${text}")
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${text}\nexited with ${status}:\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

set(common -G ${generator} -DCMAKE_MAKE_PROGRAM=${make_program} -DCMAKE_CXX_COMPILER=${compiler}
    -DCMAKE_BUILD_TYPE=${build_type})
if(launcher)
  list(APPEND common -DCMAKE_CXX_COMPILER_LAUNCHER=${launcher})
endif()
set(prefix ${work_dir}/prefix)
file(REMOVE_RECURSE ${prefix} ${work_dir}/example)

# The library of the build that runs this test serves its own kind; the other kind is built here.
if((shared AND build_is_shared) OR (NOT shared AND NOT build_is_shared))
  set(library_build ${build_dir})
else()
  set(library_build ${work_dir}/library)
  run(${CMAKE_COMMAND} -S ${source_dir} -B ${library_build} ${common} -DBUILD_SHARED_LIBS=${shared}
      -DHPCATTN_BUILD_TESTS=OFF)
  run(${CMAKE_COMMAND} --build ${library_build} --parallel 2)
endif()
run(${CMAKE_COMMAND} --install ${library_build} --prefix ${prefix} --component development)

# The sources are copied away, so that nothing can be found by a relative path.
file(COPY ${source_dir}/examples/continuous_batch DESTINATION ${work_dir}/example)
run(${CMAKE_COMMAND} -S ${work_dir}/example/continuous_batch -B ${work_dir}/example/build ${common}
    -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_CXX_FLAGS=-Werror\ -Wall\ -Wextra)
run(${CMAKE_COMMAND} --build ${work_dir}/example/build --parallel 2)
run(${work_dir}/example/build/continuous_batch)
if(NOT output MATCHES "equal to the dense recomputation")
  message(FATAL_ERROR "the example does not say that its output was checked:\n${output}")
endif()
message(STATUS "${output}")

# A version that this package does not satisfy is refused.
file(WRITE ${work_dir}/example/refused/CMakeLists.txt
     "cmake_minimum_required(VERSION 3.25)\nproject(refused LANGUAGES CXX)\n"
     "find_package(hpcattn 99.0 CONFIG REQUIRED)\n")
execute_process(COMMAND ${CMAKE_COMMAND} -S ${work_dir}/example/refused -B ${work_dir}/example/refused/build
                ${common} -DCMAKE_PREFIX_PATH=${prefix}
                RESULT_VARIABLE status OUTPUT_QUIET ERROR_VARIABLE refusal)
if(status EQUAL 0 OR NOT refusal MATCHES "version: ${version}")
  message(FATAL_ERROR "find_package(hpcattn 99.0) must be refused, naming ${version}; got:\n${refusal}")
endif()
