#include "hub/download.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "hub/sha256.h"

namespace octet::hub {
namespace {

namespace fs = std::filesystem;

constexpr int kMostRedirects = 10;
constexpr std::chrono::seconds kLongestWait{30};

std::optional<int64_t> number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

// "\"abc\"" and "W/\"abc\"" without what is around.
std::string bare_etag(std::string etag) {
  if (etag.starts_with("W/")) etag.erase(0, 2);
  if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') {
    etag = etag.substr(1, etag.size() - 2);
  }
  return etag;
}

std::optional<std::string> as_sha256(const std::string& text) {
  const bool hex = text.size() == 64 && text.find_first_not_of("0123456789abcdef") == text.npos;
  return hex ? std::optional(text) : std::nullopt;
}

bool is_redirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

bool may_pass(int status) {
  return status == 0 || status == 408 || status == 425 || status == 429 || status >= 500;
}

// What an answer that is neither a redirect nor content means for the user.
[[noreturn]] void refuse(const Answer& answer, const Url& url, bool with_token) {
  std::string what = "the server refuses the request", fix;
  if (answer.status == 401 || answer.status == 403) {
    what = with_token ? "the token does not give access" : "the server wants a token";
    fix =
        "put an access token into a file and pass --token-file FILE; some models must be asked "
        "for on their page first";
  } else if (answer.status == 404) {
    what = "there is no such model or file";
    fix = "check name, --revision and --endpoint";
  }
  throw Error({.what = std::move(what),
               .where = url.text(),
               .value = answer.status == 0 ? answer.failure : fmt::format("HTTP {}", answer.status),
               .accepted = "HTTP 200",
               .fix = std::move(fix)});
}

// Waits and counts between attempts.
class Patience {
 public:
  Patience(const TransferOptions& options, const Url& url) : options_(options), url_(url) {}

  void reset() { failed_ = 0; }

  // Throws Error if it is at its end.
  void wait(const Answer& answer, const std::string& reason) {
    if (answer.permanent || failed_ >= options_.retries) {
      throw Error(
          {.what = "the download failed",
           .where = url_.text(),
           .value = reason,
           .accepted = "an answer that is whole",
           .fix = answer.permanent
                      ? "check the address, or name a file of certificates with --ca-file"
                      : fmt::format("run the command again: it goes on where it stopped ({} "
                                    "attempts were made)",
                                    failed_ + 1)});
    }
    auto pause = std::min<std::chrono::milliseconds>(options_.wait * (1LL << std::min(failed_, 20)),
                                                     kLongestWait);
    if (const auto asked = number(answer.header("retry-after"))) {
      pause = std::max(pause, std::chrono::milliseconds(1000 * std::min<int64_t>(*asked, 120)));
    }
    ++failed_;
    log::warning("{}: {}; attempt {} of {} in {:.1f} s", url_.text(), reason, failed_ + 1,
                 options_.retries + 1, std::chrono::duration<double>(pause).count());
    std::this_thread::sleep_for(pause);
  }

 private:
  const TransferOptions& options_;
  const Url& url_;
  int failed_ = 0;
};

// Follows redirects from `url`. `first` sees the first answer, whose headers may speak of the file
// itself; a token stays with the origin that it was meant for.
Answer get(const Url& url, Headers headers, const TransferOptions& options,
           const std::function<void(const Answer&)>& first,
           const std::function<bool(const Answer&)>& wants_body,
           const std::function<void(std::span<const char>)>& body) {
  Url at = url;
  for (int hops = 0; hops <= kMostRedirects; ++hops) {
    Headers sent = headers;
    if (!options.token.empty() && at.origin() == url.origin()) {
      sent.emplace_back("Authorization", "Bearer " + options.token);
    }
    Answer answer = http_get(
        at, sent, options.http,
        [&](const Answer& head) {
          if (hops == 0) first(head);
          return !is_redirect(head.status) && wants_body(head);
        },
        body);
    if (!is_redirect(answer.status)) return answer;
    const Url next = resolve(at, answer.header("location"));
    if (at.tls && !next.tls) {
      answer.status = 0;
      answer.failure = "a redirect from https to http: " + next.text();
      answer.permanent = true;
      return answer;
    }
    at = next;
  }
  Answer answer;
  answer.failure = fmt::format("more than {} redirects", kMostRedirects);
  answer.permanent = true;
  return answer;
}

// The unfinished file.
class Part {
 public:
  explicit Part(const fs::path& path) : path_(path), etag_path_(path.string() + ".etag") {
    fd_ = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (fd_ < 0) fail("cannot write a file");
    size_ = lseek(fd_, 0, SEEK_END);
    std::error_code ignored;
    if (fs::exists(etag_path_, ignored)) etag_ = read_text(etag_path_, 4096);
  }
  ~Part() { close(fd_); }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

  int64_t size() const { return size_; }
  const std::string& etag() const { return etag_; }

  void restart() {
    if (ftruncate(fd_, 0) != 0 || lseek(fd_, 0, SEEK_SET) != 0) fail("cannot write a file");
    size_ = 0;
  }
  void set_etag(const std::string& etag) {
    if (etag == etag_) return;
    const int fd = open(etag_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0 || ::write(fd, etag.data(), etag.size()) != static_cast<ssize_t>(etag.size())) {
      fail("cannot write a file");
    }
    close(fd);
    etag_ = etag;
  }
  void write(std::span<const char> bytes) {
    while (!bytes.empty()) {
      const ssize_t done = ::write(fd_, bytes.data(), bytes.size());
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) fail("cannot write a file");
      size_ += done;
      bytes = bytes.subspan(static_cast<size_t>(done));
    }
  }
  void finish(const fs::path& target) {
    if (fsync(fd_) != 0) fail("cannot write a file");
    std::error_code error;
    fs::rename(path_, target, error);
    if (error) fail("cannot rename a file");
    fs::remove(etag_path_, error);
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    throw Error({.what = what,
                 .where = path_.string(),
                 .value = std::strerror(errno),
                 .fix = "check rights and free space; what has come so far is kept"});
  }

  fs::path path_, etag_path_;
  int fd_ = -1;
  int64_t size_ = 0;
  std::string etag_;
};

// One file's way through attempts.
class Transfer {
 public:
  Transfer(const RemoteFile& file, const fs::path& part, const TransferOptions& options,
           const OnBytes& on_bytes)
      : file_(file),
        options_(options),
        on_bytes_(on_bytes),
        part_path_(part),
        part_(part),
        size_(file.size),
        sha256_(file.sha256),
        patience_(options, file.url) {
    on_bytes_(part_.size());
  }

  void run(const fs::path& target) {
    while (!is_whole()) attempt();
    part_.finish(target);
  }

 private:
  void discard() {
    on_bytes_(-part_.size());
    part_.restart();
  }

  // What the first answer says of the file, whatever server then sends it.
  void learn(const Answer& answer) {
    if (answer.status >= 400) return;
    const std::string linked = bare_etag(answer.header("x-linked-etag"));
    const std::string etag = linked.empty() ? bare_etag(answer.header("etag")) : linked;
    if (!etag.empty() && etag != part_.etag()) {
      stale_ = part_.size() > 0;
      part_.set_etag(etag);
    }
    if (!file_.sha256) sha256_ = as_sha256(etag);
    if (!file_.size) size_ = number(answer.header("x-linked-size"));
  }

  // Whether the body that is coming continues what is there, or begins anew.
  bool place_body(const Answer& answer) {
    if (stale_ || (answer.status != 200 && answer.status != 206)) return false;
    if (answer.status == 200) {
      if (part_.size() > 0) discard();
      if (!size_) size_ = number(answer.header("content-length"));
      return true;
    }
    // "bytes 100-199/200"
    const std::string range = answer.header("content-range");
    const size_t dash = range.find('-'), slash = range.find('/');
    const bool fits = range.starts_with("bytes ") && dash != range.npos &&
                      number(range.substr(6, dash - 6)) == part_.size();
    if (!fits) stale_ = true;
    if (fits && !size_ && slash != range.npos) size_ = number(range.substr(slash + 1));
    return fits;
  }

  void attempt() {
    Headers headers;
    const int64_t before = part_.size();
    if (before > 0) headers.emplace_back("Range", fmt::format("bytes={}-", before));
    stale_ = false;
    const Answer answer = get(
        file_.url, std::move(headers), options_, [&](const Answer& head) { learn(head); },
        [&](const Answer& head) { return place_body(head); },
        [&](std::span<const char> bytes) {
          part_.write(bytes);
          on_bytes_(static_cast<int64_t>(bytes.size()));
          if (part_.size() > farthest_) patience_.reset();
          farthest_ = std::max(farthest_, part_.size());
        });
    const bool content = answer.status == 200 || answer.status == 206;
    if (stale_ || answer.status == 416) {
      // What is there belongs to another version, or the server cannot continue it. Once is enough:
      // without a Range there is nothing to refuse.
      if (before == 0)
        patience_.wait(answer, fmt::format("HTTP {} to a whole request", answer.status));
      discard();
      return;
    }
    if (content && answer.failure.empty()) {
      ended_ = true;
      return;
    }
    if (!content && !may_pass(answer.status)) {
      refuse(answer, file_.url, !options_.token.empty());
    }
    patience_.wait(answer,
                   answer.failure.empty() ? fmt::format("HTTP {}", answer.status) : answer.failure);
  }

  // After an attempt that ended well: size and sum. Or before any, where a killed run had all.
  bool is_whole() {
    const bool all = size_ && part_.size() == *size_;
    if (!ended_ && !(all && sha256_)) return false;
    ended_ = false;
    std::string fault;
    if (size_ && !all) {
      fault = fmt::format("{} bytes came, not {}", part_.size(), *size_);
      if (part_.size() < *size_) {
        patience_.wait({}, fault);
        return false;
      }
    } else if (sha256_) {
      const std::string found = sha256_of(part_path_);
      if (found != *sha256_) fault = fmt::format("SHA-256 {}, not {}", found, *sha256_);
    }
    if (fault.empty()) return true;
    discard();
    if (++damaged_ == 2) {
      throw Error({.what = "the file that came is not the one that was announced, twice",
                   .where = file_.url.text(),
                   .value = fault,
                   .accepted = "the announced size and checksum",
                   .fix = "try again later, or another --endpoint: nothing of it was kept"});
    }
    log::warning("{}: {}; once more", file_.url.text(), fault);
    return false;
  }

  const RemoteFile& file_;
  const TransferOptions& options_;
  const OnBytes& on_bytes_;
  fs::path part_path_;
  Part part_;
  std::optional<int64_t> size_;
  std::optional<std::string> sha256_;
  Patience patience_;
  bool stale_ = false, ended_ = false;
  int64_t farthest_ = part_.size();  // progress is what leads beyond
  int damaged_ = 0;
};

}  // namespace

void fetch_file(const RemoteFile& file, const fs::path& part, const fs::path& target,
                const TransferOptions& options, const OnBytes& on_bytes) {
  Transfer(file, part, options, on_bytes).run(target);
}

std::string fetch_text(const Url& url, const TransferOptions& options, size_t most) {
  Patience patience(options, url);
  while (true) {
    std::string text;
    const Answer answer = get(
        url, {}, options, [](const Answer&) {},
        [](const Answer& head) { return head.status == 200; },
        [&](std::span<const char> bytes) {
          if (text.size() + bytes.size() > most) {
            throw Error({.what = "a list of files is too long",
                         .where = url.text(),
                         .value = fmt::format("more than {} bytes", most),
                         .accepted = "a hub's list"});
          }
          text.append(bytes.data(), bytes.size());
        });
    if (answer.status == 200 && answer.failure.empty()) return text;
    if (answer.status != 200 && !may_pass(answer.status)) {
      refuse(answer, url, !options.token.empty());
    }
    patience.wait(answer,
                  answer.failure.empty() ? fmt::format("HTTP {}", answer.status) : answer.failure);
  }
}

}  // namespace octet::hub
