// The options that name an OpenAI-compatible server, for verbs that ask one.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/options.h"
#include "load/dataset.h"
#include "load/driver.h"
#include "text/tokenizer.h"

namespace octet::cli {

struct ServerOptions {
  std::string base_url;  // "" = http://HOST:PORT
  std::string host = "127.0.0.1";
  int port = 8000;
  std::string endpoint = "/v1/completions";
  std::string model;      // "" = the first that the server lists
  std::string tokenizer;  // a directory
  std::string api_key, ca_file;
  std::vector<std::string> headers;  // "Name: value", or vLLM's "Name=value"
  double timeout_s = 600, ready_check_s = 0;
};
void add_server_rows(OptionTable& table, ServerOptions& options);

// Throws Error for an address, a header or a certificate that cannot be used; the server is asked
// for its model where none is named (load::Driver::first_model).
// `stop` is the driver's (load::Driver::set_stop).
load::Driver open_server(const ServerOptions& options, load::BodyOptions body,
                         std::function<bool()> stop);

// What can be known of the model's tokens: by --tokenizer, or else by the server's /tokenize.
// `known.tokens` refers to `known.tokenizer`: the object stays where it is made.
struct KnownTokens {
  std::optional<text::Tokenizer> tokenizer;
  load::Tokens tokens;
};
void find_tokens(const ServerOptions& options, load::Driver& driver, KnownTokens& known);

// Lets this process have as many open connections as the system allows it.
void allow_many_connections();

}  // namespace octet::cli
