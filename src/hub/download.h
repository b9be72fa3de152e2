// One file from the network to the disk: resumed where it was cut, tried again where that may help,
// and checked before it gets its name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "hub/http_get.h"

namespace octet::hub {

struct TransferOptions {
  HttpOptions http;
  std::string token;  // sent as "Authorization: Bearer" to the first origin alone
  int retries = 8;    // in a row without a byte of progress
  std::chrono::milliseconds wait{1000};  // before the first of them; doubles, at most 30 s
};

struct RemoteFile {
  Url url;
  std::optional<int64_t> size;  // where the list knows them; the answer's are checked, too
  std::optional<std::string> sha256;
};

// Called with the bytes that have come since the last call; negative when some had to be thrown
// away.
using OnBytes = std::function<void(int64_t)>;

// Fetches `file` into `part` and renames that to `target`. A `part` that is there is continued if
// the server's ETag is still the one in `part`.etag. Size and SHA-256 (the list's, or an ETag or
// X-Linked-Etag of 64 hexadecimal digits) must agree. Throws Error naming the address if the file
// does not exist, may not be read, or does not come after all retries; `part` then stays for the
// next time.
void fetch_file(const RemoteFile& file, const std::filesystem::path& part,
                const std::filesystem::path& target, const TransferOptions& options,
                const OnBytes& on_bytes);

// The body of a small document, such as a list of files. Throws Error as fetch_file does, and above
// `most` bytes.
std::string fetch_text(const Url& url, const TransferOptions& options, size_t most = 64 << 20);

}  // namespace octet::hub
