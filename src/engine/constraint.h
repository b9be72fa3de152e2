// What the output of one request must look like: a grammar, a JSON schema, a choice. The engine
// asks it before and after every token; who implements it is no business of the engine.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace octet::engine {

// One object a request, used on the engine's thread alone. It does not throw.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  // Sets bit t % 32 of word t / 32 for each token t that may come next, and clears the others;
  // mask [ceil(vocab / 32)]. False: every token may, and the mask was not written.
  virtual bool fill(std::span<int32_t> mask) = 0;
  // The token that was drawn. False: it was not allowed.
  virtual bool accept(int32_t token) = 0;
  // Nothing but an end token can follow.
  virtual bool finished() const = 0;
  // Why nothing may come any more, where the constraint stopped looking; empty where it did not.
  virtual std::string given_up() const { return {}; }
};

}  // namespace octet::engine
