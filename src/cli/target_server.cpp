#include "cli/target_server.h"

#include <sys/resource.h>

#include <algorithm>

#include "base/error.h"

namespace octet::cli {
namespace {

std::pair<std::string, std::string> parse_header(const std::string& text) {
  const size_t end = text.find_first_of(":=");
  const auto plain = [](char c) { return c > ' ' && c <= '~'; };
  const std::string name = text.substr(0, end);
  std::string value = end == text.npos ? "" : text.substr(end + 1);
  value.erase(0, value.find_first_not_of(' '));
  const bool bad_value = value.find_first_of("\r\n") != value.npos;
  if (end == text.npos || name.empty() || !std::ranges::all_of(name, plain) || bad_value) {
    throw Error({.what = "not a header",
                 .where = "--header",
                 .value = text,
                 .accepted = "NAME: VALUE or NAME=VALUE, on one line"});
  }
  return {name, value};
}

}  // namespace

void add_server_rows(OptionTable& table, ServerOptions& o) {
  table.group("Server");
  table.add("--base-url", &o.base_url,
            "the server, with or without /v1; http://HOST:PORT if not given", {.metavar = "URL"});
  table.add("--host", &o.host, "its name or address");
  table.add("--port", &o.port, "its port", {.least = 1, .most = 65535});
  table.add("--endpoint", &o.endpoint, "what is asked",
            {.choices = {"/v1/completions", "/v1/chat/completions"}});
  table.add("--model", &o.model, "name of the model; the first that the server lists if not given");
  table.add("--tokenizer", &o.tokenizer,
            "a model directory whose tokenizer.json makes prompts of exact lengths; without it the "
            "server's /tokenize is asked",
            {.metavar = "DIR"});
  table.add("--api-key", &o.api_key, "key, sent as Authorization: Bearer");
  table.add("--header", &o.headers, "one more header, 'Name: value' (repeatable)");
  table.add("--ca-file", &o.ca_file, "certificates to trust instead of the system's (PEM)",
            {.metavar = "FILE"});
  table.add("--request-timeout", &o.timeout_s, "seconds that one request may take", {.above = 0});
  table.add("--ready-check-timeout-sec", &o.ready_check_s,
            "seconds to wait for a server that is still starting", {.least = 0});
}

load::Driver open_server(const ServerOptions& o, load::BodyOptions body,
                         std::function<bool()> stop) {
  const std::string host =
      o.host.find(':') == o.host.npos ? o.host : "[" + o.host + "]";  // an IPv6 address
  const std::string url =
      o.base_url.empty() ? "http://" + host + ":" + std::to_string(o.port) : o.base_url;
  load::Target target;
  target.base = hub::parse_url(url, o.base_url.empty() ? "--host" : "--base-url");
  target.endpoint = o.endpoint;
  target.ca_file = o.ca_file;
  target.timeout_s = o.timeout_s;
  if (!o.api_key.empty()) target.headers.emplace_back("Authorization", "Bearer " + o.api_key);
  for (const std::string& header : o.headers) target.headers.push_back(parse_header(header));
  target.body = std::move(body);
  target.body.api = o.endpoint == "/v1/chat/completions" ? load::Api::chat : load::Api::completions;
  target.body.model = o.model;
  load::Driver driver(std::move(target));
  driver.set_stop(std::move(stop));
  if (o.model.empty() || o.ready_check_s > 0) {
    const std::string first = driver.first_model(o.ready_check_s);
    if (o.model.empty()) driver.set_model(first);
  }
  return driver;
}

void find_tokens(const ServerOptions& o, load::Driver& driver, KnownTokens& known) {
  load::Tokens& tokens = known.tokens;
  tokens.send_ids = driver.target().body.api == load::Api::completions;
  if (!o.tokenizer.empty()) {
    const text::Tokenizer& tokenizer = known.tokenizer.emplace(text::Tokenizer::load(o.tokenizer));
    for (int32_t id = 0; id < tokenizer.size(); ++id) {
      const bool plain = !tokenizer.is_special(id) && !tokenizer.token_bytes(id).empty();
      if (plain) tokens.ids.push_back(id);
    }
    tokens.decode = [&tokenizer](std::span<const int32_t> ids) {
      return tokenizer.decode(ids, true);
    };
    tokens.count = [&tokenizer](const std::string& text) {
      return static_cast<int64_t>(
          tokenizer.encode(text, {.add_special_tokens = false, .parse_special = false}).size());
    };
    return;
  }
  const Json body = {{"model", driver.target().body.model},
                     {"prompt", load::common_words()},
                     {"add_special_tokens", false}};
  const load::Driver::Plain got = driver.call("/tokenize", body.dump());
  if (got.answer.failure != load::Failure::none || got.answer.status != 200) return;
  const Json json = Json::parse(got.body, nullptr, false);
  if (!json.is_object() || !json.contains("tokens") || !json["tokens"].is_array()) return;
  for (const Json& id : json["tokens"]) {
    if (id.is_number_integer()) tokens.ids.push_back(id.get<int32_t>());
  }
  std::ranges::sort(tokens.ids);
  const auto twice = std::ranges::unique(tokens.ids);
  tokens.ids.erase(twice.begin(), twice.end());
  if (!tokens.send_ids) tokens.ids.clear();  // a server's ids without their texts
}

void allow_many_connections() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);  // what fails shows as failed connections
}

}  // namespace octet::cli
