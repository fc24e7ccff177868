// SPDX-License-Identifier: Apache-2.0
// A library opened by dlopen, out of several places where it may be.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

namespace hpcattn::cuda {

class SharedLibrary {
 public:
  /// Keeps the first candidate that opens, a file name or a path; all failures are remembered.
  explicit SharedLibrary(const std::vector<std::string>& candidates);

  bool opened() const { return handle_ != nullptr; }
  /// The file that was opened, as the loader resolved it.
  const std::string& path() const { return path_; }
  /// What was tried, with the loader's reason for each: "libcuda.so.1 (...); ...".
  const std::string& attempts() const { return attempts_; }

  /// Sets a function pointer from the first of `names` that the library has, else to null.
  template <typename Function>
  bool find(Function*& function, std::initializer_list<const char*> names) const {
    function = reinterpret_cast<Function*>(symbol(names));
    return function != nullptr;
  }

 private:
  void* symbol(std::initializer_list<const char*> names) const;

  // Never closed: its functions are used to the end of the process.
  void* handle_ = nullptr;
  std::string path_;
  std::string attempts_;
};

/// The files of this process's loaded libraries whose name starts with `prefix` ("libcudart.so").
std::vector<std::string> loaded_libraries(const std::string& prefix);

/// The file that holds the code of this library.
std::string own_library_path();

}  // namespace hpcattn::cuda
