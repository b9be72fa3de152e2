// The three kinds of error.
//
//   Error   the user's: a bad file, flag or request. Says what, where, the value, what is accepted
//           and how to fix it. The command line prints it and exits with 2, the server answers 400.
//   (value) an outcome of a request, such as Finish or Admission: never an exception.
//   Fault   ours: a broken invariant or a device that failed. Streams end with an error event,
//           /health fails, the process exits non-zero. Nobody catches it to go on.
#pragma once

#include <exception>
#include <string>
#include <string_view>

namespace octet {

struct ErrorParts {
  std::string what;      // what is wrong: "tensor data overlaps"
  std::string where;     // file, tensor, offset, flag or field: "model.safetensors, tensor 'a'"
  std::string value;     // what was found
  std::string accepted;  // what would have been accepted
  std::string fix;       // what the user can do
};

// `text` if it has at most `most` bytes, else its beginning and "...", cut between characters: for
// what was found, which may be megabytes.
std::string shortened(std::string text, size_t most);

// A user error. A value of more than 1,000 bytes is shortened. Throw as `throw Error({.what = ...,
// .where = ..., .value = ...})`; parts that do not apply stay empty and are not printed.
class Error : public std::exception {
 public:
  explicit Error(ErrorParts parts);

  const char* what() const noexcept override { return message_.c_str(); }
  const ErrorParts& parts() const noexcept { return parts_; }

 private:
  ErrorParts parts_;
  std::string message_;  // all parts, on one line each
};

// Where a call stands in the source. std::source_location, which clang 14 does not have.
struct SourceLocation {
  const char* file;
  int line;
  const char* function;

  static constexpr SourceLocation current(const char* file = __builtin_FILE(),
                                          int line = __builtin_LINE(),
                                          const char* function = __builtin_FUNCTION()) {
    return {file, line, function};
  }
};

// A broken invariant or a device fault, with the place in the source that noticed it.
class Fault : public std::exception {
 public:
  explicit Fault(std::string message, SourceLocation at = SourceLocation::current());

  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

// Throws Fault unless `holds`. For invariants of our own; never for what a user can cause.
// `message` is only a view, so that the check costs nothing where it holds.
inline void invariant(bool holds, std::string_view message,
                      SourceLocation at = SourceLocation::current()) {
  if (!holds) throw Fault(std::string(message), at);
}

}  // namespace octet
