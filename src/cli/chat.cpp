// octet chat: a conversation in the terminal, or over a pipe, one message a line.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <utility>

#include "base/queue.h"
#include "cli/chat_model.h"
#include "cli/open_model.h"
#include "cli/output.h"
#include "cli/signals.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "engine/engine.h"
#include "text/detokenizer.h"

namespace octet::cli {
namespace {

struct ChatOptions {
  ModelOptions model;
  BackendOptions backend;
  std::string system, chat_template;
  int max_tokens = 0;
  float temperature = 0.0f, top_p = 1.0f, min_p = 0.0f;
  int top_k = 0;
  int64_t seed = 0;
  double memory_utilization = engine::EngineOptions().memory_utilization;
};

OptionTable table_of(ChatOptions& o) {
  OptionTable table("octet chat",
                    "Talk with a model, one message a line. /reset begins again, /system TEXT does "
                    "so with other instructions, /exit ends; Ctrl-C stops an answer.");
  table.positional("MODEL", &o.model.path, "model directory, or a .gguf file");
  table.group("Conversation");
  table.add("--system", &o.system, "instructions before the first message");
  add_chat_row(table, &o.chat_template);
  table.group("Sampling");
  table.add("--max-tokens", &o.max_tokens, "most tokens of one answer; 0: as many as fit",
            {.least = 0});
  table.add("--temperature", &o.temperature, "0 takes the most likely token",
            {.least = 0, .most = 1e6});
  table.add("--top-p", &o.top_p, "keep the least set of tokens of this probability",
            {.most = 1, .above = 0});
  table.add("--top-k", &o.top_k, "keep the k most likely tokens; 0 keeps all", {.least = 0});
  table.add("--min-p", &o.min_p, "keep tokens of this share of the best one's probability",
            {.least = 0, .most = 1});
  table.add("--seed", &o.seed, "of the random numbers", {.least = 0});
  add_model_rows(table, o.model);
  add_backend_rows(table, o.backend);
  table.group("Engine");
  add_memory_row(table, &o.memory_utilization);
  return table;
}

class Conversation {
 public:
  Conversation(const ChatOptions& o, const OpenModel& open, const text::ChatTemplate& chat,
               engine::Engine& engine, Terminal& terminal)
      : o_(o), open_(open), chat_(chat), engine_(engine), terminal_(terminal), system_(o.system) {
    reset();
  }

  void reset() {
    messages_ = OrderedJson::array();
    if (!system_.empty()) messages_.push_back({{"role", "system"}, {"content", system_}});
  }
  void set_system(std::string text) {
    system_ = std::move(text);
    reset();
  }

  // Prints the answer as it comes. An Error leaves the conversation as it was.
  void say(const std::string& text);

 private:
  std::string answer(std::vector<int32_t> prompt);

  const ChatOptions& o_;
  const OpenModel& open_;
  const text::ChatTemplate& chat_;
  engine::Engine& engine_;
  Terminal& terminal_;
  std::string system_;
  OrderedJson messages_;
};

void Conversation::say(const std::string& text) {
  OrderedJson messages = messages_;
  messages.push_back({{"role", "user"}, {"content", text}});
  const text::RenderedChat rendered = chat_.render({.messages = messages});
  std::string reply =
      answer(open_.encode_prompt(rendered.text, "the conversation", rendered.encode_options()));
  messages.push_back({{"role", "assistant"}, {"content", std::move(reply)}});
  messages_ = std::move(messages);
}

std::string Conversation::answer(std::vector<int32_t> prompt) {
  engine::GenRequest request;
  request.prompt = std::move(prompt);
  if (o_.max_tokens > 0) request.max_tokens = o_.max_tokens;
  request.sampling = {.temperature = o_.temperature,
                      .top_k = o_.top_k,
                      .top_p = o_.top_p,
                      .min_p = o_.min_p,
                      .seed = static_cast<uint64_t>(o_.seed)};
  const auto events = std::make_shared<Queue<engine::TokenEvent>>(1 << 16);
  const engine::Submitted submitted = engine_.submit(
      std::move(request), [events](engine::TokenEvent event) { events->push(std::move(event)); });
  if (!submitted.unavailable.empty()) engine_.rethrow_fault();
  if (!submitted.accepted()) {
    throw Error({.what = submitted.admission.message(),
                 .where = "the conversation",
                 .fix = "begin again with /reset, or lower --max-tokens"});
  }
  text::Detokenizer detokenizer(open_.tokenizer());
  std::string reply;
  const auto show = [&](const std::string& text) {
    reply += text;
    if (!text.empty()) print(text);
  };
  for (bool done = false; !done;) {
    if (terminal_.take_interrupt()) engine_.cancel(submitted.id);
    const auto event = events->pop_for(std::chrono::milliseconds(50));
    if (!event) continue;
    if (!event->fault.empty()) engine_.rethrow_fault();
    if (!event->error.empty()) throw Error({.what = event->error});
    for (const engine::SampledToken& token : event->tokens) {
      if (event->stop_token != token.token) show(detokenizer.push(token.token));
    }
    done = event->finish.has_value();
  }
  show(detokenizer.flush());
  print("\n");
  return reply;
}

// A line that begins with '/' is for us. False: the conversation ends.
bool obey(const std::string& line, Conversation& conversation) {
  const size_t space = std::min(line.find(' '), line.size());
  const std::string command = line.substr(0, space);
  if (command == "/exit" || command == "/quit") return false;
  if (command == "/reset") {
    conversation.reset();
  } else if (command == "/system") {
    conversation.set_system(line.substr(std::min(space + 1, line.size())));
  } else {
    throw Error({.what = "unknown command",
                 .value = command,
                 .accepted = "/reset, /system TEXT, /exit",
                 .fix = "put a space before a message that begins with '/'"});
  }
  return true;
}

void talk(Terminal& terminal, Conversation& conversation) {
  for (std::string line;;) {
    if (terminal.interactive()) print("> ");
    const Terminal::Input input = terminal.read_line(line);
    if (input == Terminal::Input::end) break;
    if (input == Terminal::Input::interrupted) {
      if (!terminal.interactive()) throw Interrupted(SIGINT);
      print("\n(/exit or Ctrl-D ends)\n");
      continue;
    }
    if (line.find_first_not_of(" \t") == line.npos) continue;
    try {
      if (!line.starts_with('/')) {
        conversation.say(line);
      } else if (!obey(line, conversation)) {
        return;
      }
    } catch (const Error& error) {
      if (!terminal.interactive()) throw;  // a script shall notice
      std::fputs(fmt::format("{}\n", error.what()).c_str(), stderr);
    }
  }
  if (terminal.interactive()) print("\n");
}

}  // namespace

int run_chat(Args args) {
  ChatOptions o;
  OptionTable table = table_of(o);
  if (table.parse(args) == OptionTable::Outcome::done) {
    print(table.output());
    return 0;
  }
  OpenModel open(o.model);
  const text::ChatTemplate chat = open_chat(open, o.model.path, o.chat_template);
  Terminal terminal;  // before any thread, none of which shall see Ctrl-C
  const auto backend = open_backend(o.backend);
  engine::EngineOptions options;
  options.max_model_len = open.max_model_len();
  options.max_num_seqs = 1;
  options.kv_type = open.kv_type();
  options.unit_kv_scale = open.unit_kv_scale();
  options.memory_utilization = o.memory_utilization;
  const model::Model& model = open.load(*backend, options.max_model_len);
  if (terminal.take_interrupt()) throw Interrupted(SIGINT);
  engine::Engine engine(model, *backend, options);
  Conversation conversation(o, open, chat, engine, terminal);
  talk(terminal, conversation);
  return 0;
}

}  // namespace octet::cli
