// A JSON schema in the words that the engine of structured output understands.
#pragma once

#include <string>

#include "base/json.h"

namespace octet::text {

// `schema` with every $ref leading to "#/$defs/NAME" at its root, since the engine follows no array
// and no escape (~0, ~1, %2F) of a JSON pointer; names begin with `prefix`. What no $ref leads to
// is no more among the definitions. An array that says nothing of its items may have any. Throws
// Error naming `where` if a $ref leads out of `schema` or to nothing in it, or if what they lead to
// is more than a megabyte.
OrderedJson with_plain_refs(const OrderedJson& schema, const std::string& where,
                            const std::string& prefix = "");

// What `schema` means at its top: itself, or that to which its $ref leads, through others. Null
// where that is nothing in it, or a circle.
const OrderedJson* without_top_refs(const OrderedJson& schema);

}  // namespace octet::text
