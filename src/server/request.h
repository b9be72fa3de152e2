// What the bodies of all requests have in common: readers of one field, and the fields of every
// request. Internal to the server.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/openai.h"

namespace octet::server {

inline constexpr const char* kBodyName = "request body";  // in errors

// ApiError 400 for a field.
[[noreturn]] void refuse(std::string_view field, std::string message);
// One message for a wrong type and a wrong value: both say all that is accepted.
[[noreturn]] void refuse_value(const JsonView& body, std::string_view field,
                               std::string_view accepted);

double number(const JsonView& body, std::string_view field, double fallback, double least,
              double most, std::string_view accepted);
int32_t integer(const JsonView& body, std::string_view field, int32_t fallback, int32_t least,
                int32_t most = std::numeric_limits<int32_t>::max());
// A string of at most so many bytes; "" if it is left out.
std::string bounded_text(const JsonView& body, std::string_view field, size_t most);
// A string or an array of at most `most` of them.
std::vector<std::string> parse_strings(const JsonView& body, std::string_view field, size_t most,
                                       size_t most_bytes);
std::vector<int32_t> token_ids(const Json& array, std::string_view field, int64_t vocab);

// temperature and the other filters, penalties, seed, biases, and what may not be drawn.
void parse_sampling(const JsonView& body, const ServedModel& served, uint64_t default_seed,
                    CompletionRequest& request);

// model, n, sampling, stop strings, streaming, and what else every request may have.
void parse_common(const JsonView& body, const ServedModel& served, uint64_t default_seed,
                  CompletionRequest& request);

// Notes the fields that neither every request has nor this one has as its `own`.
void note_unknown(const JsonView& body, std::span<const std::string_view> own,
                  CompletionRequest& request);

}  // namespace octet::server
