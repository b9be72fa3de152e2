// The option table: each setting is declared once, as a row over a field of a plain struct, and
// the row yields the flag, the key of the JSON file, the help, the documentation and the line of
// --print-config that says where a value came from.
//
//   struct Serve { std::string model; int port = 8000; std::string kv = "fp8"; } o;
//   OptionTable table("octet serve", "Serve a model over an OpenAI-compatible API.");
//   table.positional("MODEL", &o.model, "directory, or config with --random-weights");
//   table.group("Network");
//   table.add("--port", &o.port, "port to listen on", {.least = 1, .most = 65535});
//   table.add("--kv-cache-dtype", &o.kv, "type of the KV cache", {.choices = {"fp8", "bf16"}});
//   if (table.parse(args) != OptionTable::Outcome::run) return print(table.output());
//
// A field's initializer is its default; --config FILE goes above it, a flag above both. Every table
// also has --help, --config FILE and --print-config. A bool row has the flags --name and --no-name.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace octet {

struct OptionRules {
  std::optional<double> least, most;  // of a number, both included
  std::optional<double> above;        // of a number, itself not included
  std::vector<std::string> choices;   // of a string or of every element; none = anything
  std::string metavar;                // in the help: "FILE"; by the type if empty
  bool required = false;              // must come from a flag or the file
  bool written = false;               // a file that will be written; "" and "-" are none
};

class OptionTable {
 public:
  // A vector is given by repeating its flag. An unset optional is `null` in the file.
  using Field =
      std::variant<bool*, int*, int64_t*, float*, double*, std::string*, std::vector<std::string>*,
                   std::optional<bool>*, std::optional<int>*, std::optional<int64_t>*,
                   std::optional<double>*, std::optional<std::string>*>;

  OptionTable(std::string command, std::string summary);

  // Heads the rows that follow in --help.
  void group(std::string name);

  // Adds a row. `flag` is "--max-model-len", its key in a file is then "max_model_len". The field
  // must outlive the table. A flag that is there already is a Fault.
  void add(const std::string& flag, Field field, std::string help, const OptionRules& rules = {});

  // An argument by position, in the order of the calls; `name` is in capitals. Required unless
  // `optional`.
  void positional(const std::string& name, Field field, std::string help, bool optional = false,
                  OptionRules rules = {});

  enum class Outcome {
    run,   // the fields are set
    done,  // --help or --print-config: print output() and exit with 0
  };

  // Sets the fields. `args` are those after the verb. Throws Error for an unknown flag or key (with
  // the nearest known one), a value of the wrong type or out of range, a missing one, or a flag
  // given twice that takes one value: which of the two was meant cannot be known.
  Outcome parse(std::span<const std::string> args);

  // What --help or --print-config asked for, after parse().
  const std::string& output() const { return output_; }

  // "default", "flag", or "file FILE": where parse() found the value of `flag`.
  const std::string& origin(std::string_view flag) const;

  std::string help() const;

  // All values as JSON that --config reads back, each with its origin as a comment.
  std::string config() const;

  // The rows as a Markdown table, for the documentation.
  std::string markdown() const;

 private:
  struct Row {
    std::string flag;  // empty for a positional
    std::string key, help, group, metavar;
    Field field;
    OptionRules rules;
    std::string initial;  // the default, as JSON
    std::string origin = "default";
    bool positional() const { return flag.empty(); }
  };

  void insert(Row row);
  void read_file(const std::string& path);
  void read_flags(std::span<const std::string> args);
  void check_required() const;
  void check_written() const;
  std::string nearest(std::string_view name, bool flags) const;

  std::string command_, summary_, group_ = "Options", output_;
  std::string config_path_;
  bool help_ = false, print_config_ = false;
  std::vector<Row> rows_;
};

}  // namespace octet
