#include "server/structured.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/request.h"
#include "server/worker.h"

namespace octet::server {
namespace {

namespace asio = boost::asio;
using Kind = text::GrammarSource::Kind;

// One way of saying it: "json" of structured_outputs, "guided_json" of the body.
struct Way {
  std::string_view name;
  Kind kind;
};
constexpr Way kWays[] = {{"json", Kind::json_schema},
                         {"regex", Kind::regex},
                         {"choice", Kind::choice},
                         {"grammar", Kind::ebnf},
                         {"json_object", Kind::json_object}};

bool has(const OrderedJson& object, std::string_view key) {
  const auto found = object.find(key);
  return found != object.end() && !found->is_null();
}

[[noreturn]] void refuse_form(const std::string& field, std::string_view accepted,
                              const OrderedJson& found) {
  refuse(field,
         fmt::format("{} must be {}, got {}", field, accepted, shortened(dump_json(found), 80)));
}

// A schema is an object, true, or either as a string of JSON.
std::string schema_text(const OrderedJson& value, const std::string& field) {
  OrderedJson schema = value;
  if (value.is_string()) {
    try {
      schema = parse_json<OrderedJson>(value.get<std::string>(), field);
    } catch (const Error& error) {
      refuse(field, to_api_error(error).message);
    }
  }
  if (!schema.is_object() && !(schema.is_boolean() && schema.get<bool>())) {
    refuse_form(field, "a JSON schema, an object", value);
  }
  return dump_json(schema);
}

Structured of_value(Kind kind, const OrderedJson& value, const std::string& field) {
  text::GrammarSource source{.kind = kind};
  switch (kind) {
    case Kind::json_schema:
      source.text = schema_text(value, field);
      break;
    case Kind::json_object:
      if (!value.is_boolean()) refuse_form(field, "true or false", value);
      break;
    case Kind::choice: {
      const auto is_text = [](const OrderedJson& one) { return one.is_string(); };
      if (!value.is_array() || value.empty() || !std::ranges::all_of(value, is_text)) {
        refuse_form(field, "an array of at least one string", value);
      }
      source.text = dump_json(value);
      break;
    }
    case Kind::regex:
    case Kind::ebnf:
      if (!value.is_string()) refuse_form(field, "a string", value);
      source.text = value.get<std::string>();
      break;
  }
  return {std::move(source), field};
}

// response_format, as OpenAI has it.
std::optional<Structured> of_response_format(const OrderedJson& format) {
  const std::string field = "response_format";
  constexpr std::string_view accepted =
      R"({"type": "text"}, {"type": "json_object"} or {"type": "json_schema", "json_schema": )"
      R"({"name": "..", "schema": {..}}})";
  if (!format.is_object() || !has(format, "type") || !format["type"].is_string()) {
    refuse_form(field, accepted, format);
  }
  const auto type = format["type"].get<std::string>();
  if (type == "text") return std::nullopt;
  if (type == "json_object") return Structured{{.kind = Kind::json_object}, field};
  if (type != "json_schema") {
    refuse(field + ".type", fmt::format("{}.type {} is not supported; accepted: {}", field,
                                        shortened(dump_json(format["type"]), 40), accepted));
  }
  if (!has(format, "json_schema") || !format["json_schema"].is_object()) {
    refuse(field + ".json_schema",
           fmt::format("{0}.json_schema is missing; {0} must be {1}", field, accepted));
  }
  const OrderedJson& inner = format["json_schema"];
  const std::string place = field + ".json_schema.schema";
  if (!has(inner, "schema")) refuse(place, fmt::format("{} is missing", place));
  return of_value(Kind::json_schema, inner["schema"], place);
}

// The ways of `object`, whose names there begin with `prefix`.
void collect(const OrderedJson& object, const std::string& prefix, const std::string& place,
             std::vector<Structured>& found) {
  for (const Way& way : kWays) {
    const std::string key = prefix + std::string(way.name);
    if (!has(object, key)) continue;
    const OrderedJson& value = object.at(key);
    if (way.kind == Kind::json_object && value == false) continue;
    found.push_back(of_value(way.kind, value, place + key));
  }
}

// Fields of structured_outputs that choose among vLLM's engines, or loosen what it promises.
void check_structured_outputs(const OrderedJson& options) {
  const std::string field = "structured_outputs";
  if (!options.is_object()) refuse_form(field, "an object such as {\"json\": {..}}", options);
  constexpr std::string_view no_effect[] = {"disable_fallback", "backend",
                                            "disable_additional_properties"};
  for (const auto& [key, value] : options.items()) {
    const auto is_way = [&](const Way& way) { return way.name == key; };
    if (std::ranges::any_of(kWays, is_way) || value.is_null() || value == false) continue;
    if (std::ranges::find(no_effect, key) != std::end(no_effect)) continue;
    refuse(field + "." + key,
           fmt::format("{}.{} is not supported; accepted: json, regex, choice, grammar, "
                       "json_object",
                       field, shortened(key, 40)));
  }
}

class GrammarConstraint : public engine::TokenConstraint {
 public:
  GrammarConstraint(std::shared_ptr<const text::CompiledGrammar> grammar,
                    engine::RequestMetrics& metrics)
      : state_(std::move(grammar)), metrics_(metrics) {}
  ~GrammarConstraint() override {
    metrics_.constrained_tokens_total += static_cast<uint64_t>(state_.tokens());
    metrics_.constraint_seconds_total += state_.seconds();
  }
  GrammarConstraint(const GrammarConstraint&) = delete;
  GrammarConstraint& operator=(const GrammarConstraint&) = delete;

  bool fill(std::span<int32_t> mask) override { return state_.fill(mask); }
  bool accept(int32_t token) override { return state_.accept(token); }
  bool finished() const override { return state_.finished(); }
  std::string given_up() const override {
    if (!state_.given_up()) return {};
    const text::GrammarState::Limits limits;
    return fmt::format(
        "the form that is asked for is too ambiguous to follow: it took more than {} s and {} ms a "
        "token of processor time, or all memory; ask for fewer or smaller repetitions",
        limits.first_s, 1000 * limits.per_token_s);
  }

 private:
  text::GrammarState state_;
  engine::RequestMetrics& metrics_;
};

}  // namespace

std::optional<Structured> parse_structured(const JsonView& body, const std::string& text) {
  const auto is_there = [&](std::string_view field) { return body.has(field); };
  if (std::ranges::none_of(kStructuredFields, is_there)) return std::nullopt;
  const auto ordered = parse_json<OrderedJson>(text, kBodyName);
  std::vector<Structured> found;
  if (body.has("response_format")) {
    if (auto one = of_response_format(ordered["response_format"])) found.push_back(*one);
  }
  if (body.has("structured_outputs")) {
    check_structured_outputs(ordered["structured_outputs"]);
    collect(ordered["structured_outputs"], "", "structured_outputs.", found);
  }
  collect(ordered, "guided_", "", found);
  if (found.size() > 1) {
    refuse(found[1].field, fmt::format("{} and {} both ask for a form of the output; send one",
                                       found[0].field, found[1].field));
  }
  if (found.empty()) return std::nullopt;
  return std::move(found[0]);
}

asio::awaitable<std::shared_ptr<const text::CompiledGrammar>> StructuredOutput::compile(
    const Structured& wanted) const {
  if (!compiler) {
    throw ApiError(400, wanted.field + " is not supported here: " + why_not, "BadRequestError",
                   wanted.field);
  }
  const std::string where = fmt::format("{}, $.{}", kBodyName, wanted.field);
  if (auto kept = compiler->find(wanted.source, where)) co_return kept;
  const std::shared_ptr<void> turn = co_await turns->wait(client, kMostWait);
  if (!turn) {
    throw ApiError(503,
                   fmt::format("{} is not known yet, and others have been compiled for {} s; try "
                               "again later",
                               wanted.field, kMostWait.count()),
                   "ServiceUnavailableError", wanted.field);
  }
  std::shared_ptr<const text::CompiledGrammar> grammar;
  co_await on_worker(workers, [&] { grammar = compiler->compile(wanted.source, where); });
  if (!grammar) {
    throw ApiError(
        503,
        fmt::format("the machine is too busy to compile {} now; try again later", wanted.field),
        "ServiceUnavailableError", wanted.field);
  }
  co_return grammar;
}

std::shared_ptr<engine::TokenConstraint> constraint_of(
    std::shared_ptr<const text::CompiledGrammar> grammar, engine::RequestMetrics& metrics) {
  return std::make_shared<GrammarConstraint>(std::move(grammar), metrics);
}

}  // namespace octet::server
