#include "hub/sha256.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>
#include <fstream>
#include <memory>
#include <vector>

#include "base/error.h"

namespace octet::hub {

std::string sha256_of(const std::filesystem::path& file) {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                        EVP_MD_CTX_free);
  invariant(context && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1,
            "OpenSSL has no SHA-256");
  std::ifstream in(file, std::ios::binary);
  std::vector<char> part(1 << 20);
  while (in.read(part.data(), static_cast<std::streamsize>(part.size())) || in.gcount() > 0) {
    EVP_DigestUpdate(context.get(), part.data(), static_cast<size_t>(in.gcount()));
  }
  if (!in.eof()) {
    throw Error({.what = "cannot read a file back", .where = file.string()});
  }
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int length = 0;
  EVP_DigestFinal_ex(context.get(), digest.data(), &length);
  std::string text;
  for (unsigned int i = 0; i < length; ++i) text += fmt::format("{:02x}", digest[i]);
  return text;
}

}  // namespace octet::hub
