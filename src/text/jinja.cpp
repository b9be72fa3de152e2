#include "text/jinja.h"

#ifdef OCTET_JINJA
#include <jinja/lexer.h>
#include <jinja/parser.h>
#include <jinja/runtime.h>
#include <json.h>

#include "text/jinja_strict.h"
#endif

#include <stdexcept>

namespace octet::text {

#ifdef OCTET_JINJA

bool has_jinja() {
  return true;
}

std::string run_jinja(std::string_view input) {
  const common_json request = common_json::parse(std::string(input));
  jinja::lexer lexer;
  const auto tokens = lexer.tokenize(request.at("template").get<std::string>());
  jinja::program program = jinja::parse_from_tokens(tokens);
  make_strict(program);
  if (!request.contains("variables")) return "";
  jinja::context context(tokens.source);
  jinja::global_from_json(context, request.at("variables"), false);
  jinja::runtime runtime(context);
  return jinja::runtime::gather_string_parts(runtime.execute(program))->as_string().str();
}

#else

bool has_jinja() {
  return false;
}

std::string run_jinja(std::string_view) {
  throw std::runtime_error("built without the Jinja engine");
}

#endif

}  // namespace octet::text
