// What of JSON Schema structured output cannot do and its engine would pass over without a word.
#pragma once

#include <string>
#include <vector>

#include "base/function_ref.h"
#include "base/json.h"

namespace octet::text {

// The first such place of `schema`, in a few words: "$.properties.a: anyOf beside properties",
// "$.items: not". Empty: there is none.
std::string unsupported_keyword(const OrderedJson& schema);

// The expressions of a schema: of strings, and of names of properties.
std::vector<std::string> patterns_of(const OrderedJson& schema);

// The schemas directly inside one, wherever its keywords have them.
void for_each_inside(OrderedJson& schema, FunctionRef<void(OrderedJson&)> see);

}  // namespace octet::text
