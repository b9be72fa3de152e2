// The message of the Error that an action throws.
#pragma once

#include <functional>
#include <string>

#include "base/error.h"

namespace octet::test {

// "no error" if it throws none; other exceptions pass through.
inline std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace octet::test
