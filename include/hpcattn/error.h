// SPDX-License-Identifier: Apache-2.0
// The exceptions that the library throws. Every message says what was wrong, what came, what is
// expected and, where there is one, a way out. A call that throws has written nothing.
#pragma once

#include <stdexcept>
#include <string>

namespace hpcattn {

/// Base of all errors of the library; catch this one to catch them all.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// An argument contradicts the operator's page (shape, dtype, range, value). Python: ValueError.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

/// A sound request for something that the library does not do. Python: NotImplementedError.
class Unsupported : public Error {
 public:
  using Error::Error;
};

/// The machine said no: no driver, no memory, a failed launch. Python: RuntimeError.
class DeviceError : public Error {
 public:
  using Error::Error;
};

}  // namespace hpcattn
