#include "hub/pull.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fnmatch.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/atomic_write.h"
#include "base/error.h"
#include "base/json.h"
#include "base/mapped_file.h"

namespace octet::hub {
namespace {

namespace fs = std::filesystem;

std::vector<std::string_view> parts_of(std::string_view path) {
  std::vector<std::string_view> parts;
  while (!path.empty()) {
    const size_t slash = std::min(path.find('/'), path.size());
    if (slash > 0) parts.push_back(path.substr(0, slash));
    path.remove_prefix(std::min(slash + 1, path.size()));
  }
  return parts;
}

std::string join(std::span<const std::string_view> parts) {
  std::string text;
  for (const std::string_view part : parts) {
    if (!text.empty()) text += '/';
    text += part;
  }
  return text;
}

bool matches_any(const std::vector<std::string>& globs, const std::string& name) {
  return std::ranges::any_of(
      globs, [&](const std::string& glob) { return fnmatch(glob.c_str(), name.c_str(), 0) == 0; });
}

bool ends_with_any(std::string_view name, std::initializer_list<std::string_view> endings) {
  return std::ranges::any_of(endings, [&](std::string_view end) { return name.ends_with(end); });
}

// An address of two parts may be a model's page or a file in a folder.
bool is_file_name(std::string_view name) {
  return ends_with_any(name, {".gguf", ".safetensors", ".json", ".model", ".txt"});
}

bool is_other_weights(std::string_view name) {
  return ends_with_any(name, {".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".ot", ".onnx",
                              ".tflite", ".gguf", ".mlmodel"}) ||
         name.starts_with("original/") || name.starts_with("onnx/") ||
         name.starts_with("consolidated");
}

// Where the files are gathered until all are there. It stays if this ends early.
class Workplace {
 public:
  // Throws Error if `out` exists, or if another process works on it. What is there from another
  // source goes.
  Workplace(const std::string& out, const std::string& source) : out_(fs::absolute(out)) {
    while (!out_.has_filename() && out_.has_relative_path()) out_ = out_.parent_path();
    if (fs::exists(fs::symlink_status(out_))) {
      throw Error({.what = "the directory exists already",
                   .where = "--out",
                   .value = out,
                   .fix = "name another one, or remove it first"});
    }
    folder_ = out_.parent_path() / fmt::format(".{}.pull", out_.filename().string());
    make(files());
    make(parts());
    lock();
    const fs::path note = folder_ / "source";
    if (fs::exists(note) && read_text(note, 1 << 16) != source) {
      fs::remove_all(files());
      fs::remove_all(parts());
      make(files());
      make(parts());
    }
    AtomicFile file(note, Overwrite::replace);
    file.write(source);
    file.commit();
  }
  ~Workplace() {
    if (fd_ >= 0) close(fd_);
  }
  Workplace(const Workplace&) = delete;
  Workplace& operator=(const Workplace&) = delete;

  // A finished file's place, with its folder; and an unfinished one's.
  fs::path target(const std::string& name) const {
    make((files() / name).parent_path());
    return files() / name;
  }
  fs::path part(const std::string& name) const {
    std::string flat = encode_path(name);
    for (size_t at = 0; (at = flat.find('/', at)) != flat.npos;) flat.replace(at, 1, "%2F");
    return parts() / flat;
  }

  // The files get their name. Files that are not among `names`, from an earlier choice, go.
  void commit(const std::vector<std::string>& names) {
    for (auto it = fs::recursive_directory_iterator(files());
         it != fs::recursive_directory_iterator(); ++it) {
      const std::string name = it->path().lexically_relative(files()).generic_string();
      if (it->is_regular_file() && std::ranges::find(names, name) == names.end()) {
        fs::remove(it->path());
      }
    }
    std::error_code error;
    fs::rename(files(), out_, error);
    if (error) fail("cannot give the directory its name", out_, error.message());
    fs::remove_all(folder_, error);
  }

 private:
  fs::path files() const { return folder_ / "files"; }
  fs::path parts() const { return folder_ / "parts"; }

  [[noreturn]] static void fail(const char* what, const fs::path& path, std::string value) {
    throw Error({.what = what,
                 .where = path.string(),
                 .value = std::move(value),
                 .fix = "check rights and free space"});
  }
  static void make(const fs::path& folder) {
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) fail("cannot make a directory", folder, error.message());
  }
  void lock() {
    fd_ = open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd_ < 0) fail("cannot open a directory", folder_, std::strerror(errno));
    if (flock(fd_, LOCK_EX | LOCK_NB) == 0) return;
    throw Error({.what = "another process pulls to this directory",
                 .where = out_.string(),
                 .fix = "wait for it, or name another --out"});
  }

  fs::path out_, folder_;
  int fd_ = -1;
};

void refuse_open_token(const Url& url, const TransferOptions& options) {
  if (options.token.empty() || url.tls || url.is_loopback()) return;
  throw Error({.what = "a token would be sent without encryption",
               .where = url.text(),
               .accepted = "https, or this machine"});
}

struct Planned {
  std::string name;
  RemoteFile remote;
};

std::vector<Planned> plan(const Source& source, const PullOptions& options, std::string& commit) {
  if (source.repo.empty()) return {{source.file, {source.url, std::nullopt, std::nullopt}}};
  Url list = source.endpoint;
  list.target = fmt::format("{}api/models/{}", list.target, encode_path(source.repo));
  if (source.revision != "main") list.target += "/revision/" + encode_path(source.revision);
  list.target += "?blobs=true";
  std::vector<ListedFile> files =
      parse_listing(fetch_text(list, options.transfer), list.text(), &commit);
  if (!source.file.empty()) {
    std::erase_if(files, [&](const ListedFile& file) { return file.name != source.file; });
  }
  files = choose(std::move(files), options.include, options.exclude, list.text());
  const std::string revision = commit.empty() ? source.revision : commit;
  std::vector<Planned> planned;
  for (const ListedFile& file : files) {
    Url url = source.endpoint;
    url.target = fmt::format("{}{}/resolve/{}/{}", url.target, encode_path(source.repo),
                             encode_path(revision), encode_path(file.name));
    planned.push_back({file.name, {url, file.size, file.sha256}});
  }
  return planned;
}

}  // namespace

bool is_safe_name(std::string_view name) {
  if (name.empty() || name.size() > 1024 || name.starts_with('/') || name.ends_with('/')) {
    return false;
  }
  for (const char c : name) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F || c == '\\') return false;
  }
  if (name.find("//") != name.npos) return false;
  return std::ranges::none_of(parts_of(name), [](std::string_view part) {
    return part == "." || part == ".." || part.size() > 200;
  });
}

Source parse_source(const PullOptions& options) {
  const auto refuse = [&](std::string what, std::string value) {
    throw Error({.what = std::move(what),
                 .where = "MODEL",
                 .value = std::move(value),
                 .accepted = "ORG/NAME, the address of a model's page, or that of a file"});
  };
  Source source;
  source.revision = options.revision.empty() ? "main" : options.revision;
  if (options.source.find("://") == options.source.npos) {
    const auto parts = parts_of(options.source);
    if (parts.empty() || parts.size() > 2 || !is_safe_name(options.source)) {
      refuse("not the name of a model", options.source);
    }
    source.endpoint = parse_url(options.endpoint, "--endpoint");
    if (!source.endpoint.target.ends_with('/')) source.endpoint.target += '/';
    source.repo = options.source;
    return source;
  }
  source.url = parse_url(options.source, "MODEL");
  const std::string path = decode_path(source.url.target.substr(0, source.url.target.find('?')));
  const auto parts = parts_of(path);
  source.endpoint = source.url;
  source.endpoint.target = "/";
  const bool page =
      (parts.size() == 2 && !is_file_name(parts[1])) || (parts.size() == 4 && parts[2] == "tree");
  const bool file = parts.size() >= 5 && (parts[2] == "resolve" || parts[2] == "blob");
  if (page || file) {
    source.repo = join(std::span(parts).first(2));
    if (!page || parts.size() == 4) {
      if (options.revision.empty()) source.revision = parts[3];
    }
    if (file) source.file = join(std::span(parts).subspan(4));
  } else if (!parts.empty()) {
    source.file = parts.back();
  }
  if ((source.repo.empty() && source.file.empty()) ||
      (!source.file.empty() && !is_safe_name(source.file)) ||
      (!source.repo.empty() && !is_safe_name(source.repo))) {
    refuse("the address names no file", options.source);
  }
  return source;
}

std::vector<ListedFile> parse_listing(const std::string& text, const std::string& where,
                                      std::string* commit) {
  const Json json = parse_json(text, where, {.duplicates = true});
  const JsonView view(json, where);
  if (commit) *commit = view.get<std::string>("sha", "");
  if (commit && !is_safe_name(*commit) && !commit->empty()) {
    view.refuse("sha", "a commit that is none", "hexadecimal digits");
  }
  const auto siblings = json.find("siblings");
  if (siblings == json.end() || !siblings->is_array()) {
    view.refuse("siblings", "the answer lists no files", "an array of files");
  }
  std::vector<ListedFile> files;
  for (const Json& entry : *siblings) {
    const JsonView one(entry, where);
    ListedFile file{.name = one.get<std::string>("rfilename")};
    if (!is_safe_name(file.name)) {
      throw Error({.what = "the hub lists a file that would lie outside of the directory",
                   .where = where,
                   .value = file.name,
                   .accepted = "relative paths without '..'",
                   .fix = "do not use this model: nothing of it was downloaded"});
    }
    if (one.has("size")) file.size = one.integer("size", 0, int64_t{1} << 50);
    if (const auto lfs = one.find("lfs")) {
      if (lfs->has("sha256")) file.sha256 = lfs->get<std::string>("sha256");
    }
    files.push_back(std::move(file));
  }
  return files;
}

std::vector<ListedFile> choose(std::vector<ListedFile> files,
                               const std::vector<std::string>& include,
                               const std::vector<std::string>& exclude, const std::string& where) {
  const size_t listed = files.size();
  if (!include.empty()) {
    std::erase_if(files, [&](const ListedFile& f) { return !matches_any(include, f.name); });
  }
  std::erase_if(files, [&](const ListedFile& f) { return matches_any(exclude, f.name); });
  if (include.empty()) {
    const bool safetensors = std::ranges::any_of(
        files, [](const ListedFile& f) { return f.name.ends_with(".safetensors"); });
    if (safetensors) {
      std::erase_if(files, [](const ListedFile& f) { return is_other_weights(f.name); });
    }
    std::string ggufs;
    const auto count = std::ranges::count_if(files, [&](const ListedFile& f) {
      if (!f.name.ends_with(".gguf")) return false;
      ggufs += fmt::format("{}{}", ggufs.empty() ? "" : ", ", f.name);
      return true;
    });
    if (count > 1) {
      throw Error({.what = "the model is there in several GGUF files",
                   .where = where,
                   .value = ggufs,
                   .accepted = "one of them",
                   .fix = "choose with --include, such as --include '*Q8_0.gguf'"});
    }
  }
  if (files.empty()) {
    throw Error({.what = "no file is left to download",
                 .where = where,
                 .value = fmt::format("{} files are listed", listed),
                 .fix = "check --include and --exclude"});
  }
  return files;
}

PullReport pull(const PullOptions& options, const OnPlan& on_plan, const OnBytes& on_bytes) {
  const Source source = parse_source(options);
  const Url& asked = source.repo.empty() ? source.url : source.endpoint;
  refuse_open_token(asked, options.transfer);
  if (options.out.empty()) {
    throw Error({.what = "the model needs a directory", .where = "--out", .value = "''"});
  }
  PullReport report;
  const std::vector<Planned> planned = plan(source, options, report.revision);
  int64_t total = 0;
  for (const Planned& file : planned) total += file.remote.size.value_or(0);

  Workplace work(options.out,
                 fmt::format("{} {} {}\n", asked.text(), source.repo,
                             report.revision.empty() ? source.revision : report.revision));
  on_plan(planned.size(), total);
  for (const Planned& file : planned) {
    const fs::path target = work.target(file.name);
    std::error_code ignored;
    if (fs::is_regular_file(target, ignored)) {  // whole: only those get there
      on_bytes(static_cast<int64_t>(fs::file_size(target)));
    } else {
      fetch_file(file.remote, work.part(file.name), target, options.transfer, on_bytes);
    }
    report.bytes += static_cast<int64_t>(fs::file_size(target));
    report.files.push_back(file.name);
  }
  work.commit(report.files);
  return report;
}

}  // namespace octet::hub
