#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks what a bare machine must have (python3 from 3.10, g++ from 11) and creates the virtual
# environment. As root on Debian or Ubuntu it installs what is missing; else it says what to install.
#
#   tools/setup.sh PYTHON VENV
set -euo pipefail

python=$1
venv=$2

say() { printf '==> %s\n' "$*"; }

fail() {
  printf 'setup: %s\n' "$*" >&2
  exit 1
}

# have_or_install PROGRAM-CHECK PACKAGE...: true once `bash -c CHECK` is.
have_or_install() {
  local check=$1
  shift
  if bash -c "$check" >/dev/null 2>&1; then return 0; fi
  if [[ $(id -u) -eq 0 ]] && command -v apt-get >/dev/null; then
    say "apt-get install $*"
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q "$@" >/dev/null 2>&1 ||
      { apt-get update -q >/dev/null 2>&1 &&
        DEBIAN_FRONTEND=noninteractive apt-get install -y -q "$@" >/dev/null; } || return 1
    bash -c "$check" >/dev/null 2>&1
    return
  fi
  return 1
}

have_or_install "command -v '$python'" python3 ||
  fail "no $python. Install Python 3.10 or newer (Debian, Ubuntu: apt-get install python3 python3-venv)."
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
  fail "$("$python" --version) is too old: 3.10 or newer is needed. Name another: make PYTHON=python3.12 ..."

have_or_install 'command -v "${CXX:-c++}"' g++ ||
  fail "no C++ compiler. Install g++ 11 or newer (Debian, Ubuntu: apt-get install g++)."
probe=$(mktemp -d)
trap 'rm -rf "$probe"' EXIT
printf '#include <span>\n#include <barrier>\nint main() { return std::span<int>().size() != 0; }\n' >"$probe/probe.cc"
"${CXX:-c++}" -std=c++20 "$probe/probe.cc" -o "$probe/probe" 2>"$probe/log" ||
  fail "${CXX:-c++} does not compile C++20; g++ 11 or newer is needed. It said: $(head -n 3 "$probe/log")"

# GoogleTest from the distribution where that is easy; CMake fetches it otherwise.
have_or_install 'test -e /usr/include/gtest/gtest.h' libgtest-dev ||
  say "GoogleTest is not installed: CMake will fetch it (or: apt-get install libgtest-dev)"

if [[ ! -x $venv/bin/python ]] || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  have_or_install "'$python' -c 'import venv, ensurepip'" "python$version-venv" ||
    have_or_install "'$python' -c 'import venv, ensurepip'" python3-venv ||
    fail "$python has no venv. Install it (Debian, Ubuntu: sudo apt-get install python3-venv) and run again."
  say "creating $venv with $("$python" --version)"
  rm -rf "$venv"
  "$python" -m venv "$venv"
fi
