# SPDX-License-Identifier: Apache-2.0
# GTest::gtest_main from the system (Debian, Ubuntu: libgtest-dev), else from its repository.
include_guard(GLOBAL)

find_package(GTest QUIET)
if(NOT GTest_FOUND)
  message(STATUS "GoogleTest is not installed: fetching v1.17.0 (or install libgtest-dev)")
  include(FetchContent)
  set(INSTALL_GTEST OFF CACHE BOOL "" FORCE)
  set(BUILD_GMOCK OFF CACHE BOOL "" FORCE)
  FetchContent_Declare(googletest GIT_REPOSITORY https://github.com/google/googletest.git
                       GIT_TAG v1.17.0 GIT_SHALLOW ON)
  FetchContent_MakeAvailable(googletest)
endif()
