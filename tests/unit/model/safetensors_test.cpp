#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>

#include "model/checkpoint.h"
#include "unit/model/support.h"

namespace octet::model {
namespace {

using test::bytes_of;
using test::error_of;
using test::safetensors_file;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<StoredTensor> parse(const std::string& file) {
  return parse_safetensors(bytes_of(file), "a.safetensors");
}

std::string fault_of(const std::string& header, const std::string& data = "") {
  const std::string file = safetensors_file(header, data);
  return error_of([&] { parse(file); });
}

// One F32 tensor "a" of shape [2] at the start of the data.
constexpr const char* kA = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";

TEST(Safetensors, EmptyFileOfTheSpecificationHasNoTensors) {
  const std::string golden("\x08\0\0\0\0\0\0\0{}      ", 16);
  EXPECT_TRUE(parse(golden).empty());
}

TEST(Safetensors, TensorsAreViewsInTheOrderOfTheFile) {
  const std::string file =
      safetensors_file(R"({"__metadata__":{"format":"pt"},)"
                       R"("b":{"dtype":"F8_E4M3","shape":[2,3],"data_offsets":[8,14]},)"
                       R"("a":{"data_offsets":[0,8],"shape":[2],"dtype":"F32","extra":1},)"
                       R"("scalar":{"dtype":"BF16","shape":[],"data_offsets":[14,16]},)"
                       R"("none":{"dtype":"I64","shape":[0,5],"data_offsets":[16,16]}}   )",
                       std::string(16, 'x'));
  const auto tensors = parse(file);
  ASSERT_EQ(tensors.size(), 4u);
  EXPECT_EQ(tensors[0].name, "a");
  EXPECT_EQ(tensors[0].tensor.type, DType::f32);
  EXPECT_EQ(tensors[0].file_offset, file.size() - 16);
  EXPECT_EQ(tensors[0].tensor.data, file.data() + file.size() - 16);
  EXPECT_EQ(tensors[1].name, "b");
  EXPECT_EQ(tensors[1].tensor.type, DType::e4m3);
  EXPECT_EQ(tensors[1].tensor.shape, (Shape{2, 3}));
  EXPECT_EQ(tensors[1].tensor.data, file.data() + file.size() - 8);
  EXPECT_EQ(tensors[2].tensor.shape, Shape{});
  EXPECT_EQ(tensors[2].tensor.count(), 1);
  EXPECT_EQ(tensors[3].tensor.shape, (Shape{0, 5}));
}

TEST(Safetensors, EveryDtypeIsRead) {
  for (const auto& [name, type] : {std::pair{"BOOL", DType::boolean},
                                   {"U8", DType::u8},
                                   {"I8", DType::i8},
                                   {"I16", DType::i16},
                                   {"U16", DType::u16},
                                   {"I32", DType::i32},
                                   {"U32", DType::u32},
                                   {"I64", DType::i64},
                                   {"U64", DType::u64},
                                   {"F8_E4M3", DType::e4m3},
                                   {"F8_E5M2", DType::e5m2},
                                   {"F8_E8M0", DType::e8m0},
                                   {"F16", DType::f16},
                                   {"BF16", DType::bf16},
                                   {"F32", DType::f32},
                                   {"F64", DType::f64}}) {
    const size_t bytes = 3 * size_of(type);
    const std::string file = safetensors_file(
        fmt::format(R"({{"a":{{"dtype":"{}","shape":[3],"data_offsets":[0,{}]}}}})", name, bytes),
        std::string(bytes, '\0'));
    const auto tensors = parse(file);
    ASSERT_EQ(tensors.size(), 1u) << name;
    EXPECT_EQ(tensors[0].tensor.type, type) << name;
  }
}

TEST(Safetensors, HeaderLengthIsChecked) {
  EXPECT_THAT(error_of([] { parse(""); }), AllOf(HasSubstr("a.safetensors"), HasSubstr("0 bytes")));
  EXPECT_THAT(error_of([] { parse("1234567"); }),
              AllOf(HasSubstr("too short"), HasSubstr("7 bytes"), HasSubstr("at least 8")));
  std::string huge(16, '\0');
  huge[7] = '\x80';  // 2^63
  EXPECT_THAT(error_of([&] { parse(huge); }),
              AllOf(HasSubstr("a.safetensors, offset 0"), HasSubstr("9223372036854775808"),
                    HasSubstr("at most 100000000")));
  huge.assign(16, '\xff');
  EXPECT_THAT(error_of([&] { parse(huge); }), HasSubstr("18446744073709551615"));
  std::string beyond("\x09\0\0\0\0\0\0\0{}      ", 16);
  EXPECT_THAT(error_of([&] { parse(beyond); }),
              AllOf(HasSubstr("beyond the end of the file"), HasSubstr("9 bytes in a file of 16"),
                    HasSubstr("at most 8")));
}

TEST(Safetensors, HeaderMustBeAnObject) {
  EXPECT_THAT(fault_of(""), HasSubstr("does not start with '{'"));
  EXPECT_THAT(fault_of(" {}"), AllOf(HasSubstr("offset 8"), HasSubstr("byte 0x20")));
  EXPECT_THAT(fault_of("[]"), HasSubstr("does not start with '{'"));
  EXPECT_THAT(fault_of("{"), HasSubstr("not valid JSON"));
  EXPECT_THAT(fault_of("{} x"), HasSubstr("not valid JSON"));
  EXPECT_THAT(fault_of("{\"a\xff\":1}"), AllOf(HasSubstr("not valid JSON"), HasSubstr("UTF-8")));
  EXPECT_THAT(fault_of("{" + std::string(5000, '[')), HasSubstr("not valid JSON"));
}

TEST(Safetensors, MetadataIsAMapOfStrings) {
  EXPECT_THAT(fault_of(R"({"__metadata__":[]})"), HasSubstr("metadata is not an object"));
  EXPECT_THAT(fault_of(R"({"__metadata__":{"n":1}})"),
              AllOf(HasSubstr("__metadata__, key 'n'"), HasSubstr("found:    1")));
  EXPECT_THAT(fault_of(R"({"__metadata__":{},"__metadata__":{}})"),
              AllOf(HasSubstr("twice"), HasSubstr("__metadata__")));
}

TEST(Safetensors, DuplicateKeysAreRefused) {
  EXPECT_THAT(fault_of(fmt::format("{{{},{}}}", kA, kA), std::string(8, 'x')),
              AllOf(HasSubstr("key twice"), HasSubstr("tensor 'a'")));
  EXPECT_THAT(fault_of(R"({"a":{"dtype":"F32","dtype":"I32","shape":[2],"data_offsets":[0,8]}})",
                       std::string(8, 'x')),
              AllOf(HasSubstr("twice"), HasSubstr("tensor 'a'"), HasSubstr("\"dtype\"")));
}

TEST(Safetensors, EntriesAreChecked) {
  EXPECT_THAT(fault_of(R"({"a":1})"), AllOf(HasSubstr("not an object"), HasSubstr("tensor 'a'")));
  EXPECT_THAT(fault_of(R"({"a":{"dtype":"F32","shape":[2]}})"),
              AllOf(HasSubstr("lacks a key"), HasSubstr("\"data_offsets\"")));
  EXPECT_THAT(
      fault_of(R"({"a":{"dtype":"F4","shape":[2],"data_offsets":[0,8]}})"),
      AllOf(HasSubstr("tensor 'a', dtype"), HasSubstr("found:    F4"), HasSubstr("F8_E4M3")));
  EXPECT_THAT(fault_of(R"({"a":{"dtype":7,"shape":[2],"data_offsets":[0,8]}})"),
              HasSubstr("found:    7"));
  EXPECT_THAT(fault_of(R"({"a":{"dtype":"F32","shape":2,"data_offsets":[0,8]}})"),
              AllOf(HasSubstr("tensor 'a', shape"), HasSubstr("not an array")));
  EXPECT_THAT(fault_of(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,8]}})"),
              AllOf(HasSubstr("tensor 'a', shape"), HasSubstr("[-1]")));
  EXPECT_THAT(fault_of(R"({"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,8]}})"),
              HasSubstr("[1.5]"));
  EXPECT_THAT(
      fault_of(R"({"a":{"dtype":"F32","shape":[1,1,1,1,2],"data_offsets":[0,8]}})"),
      AllOf(HasSubstr("more dimensions"), HasSubstr("at most 4"), HasSubstr("[1,1,1,1,2]")));
}

TEST(Safetensors, ShapesCannotOverflow) {
  for (const char* shape :
       {"[4294967296,4294967296]", "[9223372036854775807,2]", "[18446744073709551615]",
        "[0,4294967296,4294967296]", "[2305843009213693952]"}) {
    EXPECT_THAT(fault_of(fmt::format(R"({{"a":{{"dtype":"F64","shape":{},"data_offsets":[0,0]}}}})",
                                     shape)),
                AllOf(HasSubstr("overflows"), HasSubstr("tensor 'a', shape"), HasSubstr(shape)));
  }
}

TEST(Safetensors, OffsetsAreChecked) {
  for (const char* offsets :
       {"[8,0]", "[0]", "[0,8,8]", "[-1,7]", "0", "[0,18446744073709551616]"}) {
    EXPECT_NE(
        fault_of(fmt::format(R"({{"a":{{"dtype":"F32","shape":[2],"data_offsets":{}}}}})", offsets),
                 std::string(8, 'x')),
        "no error")
        << offsets;
  }
  EXPECT_THAT(fault_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})"),
              AllOf(HasSubstr("tensor 'a', data_offsets"), HasSubstr("[8,0]")));
  EXPECT_THAT(fault_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", "xxxx"),
              AllOf(HasSubstr("differ in size"), HasSubstr("tensor 'a', offset"),
                    HasSubstr("found:    4 bytes"), HasSubstr("8 bytes for F32 [2]")));
}

TEST(Safetensors, DataMustTileTheFile) {
  const auto two = [](int begin, int end) {
    return fmt::format(R"({{{},"b":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}}}})", kA,
                       end - begin, begin, end);
  };
  const std::string data(16, 'x');
  EXPECT_EQ(fault_of(two(8, 16), data), "no error");
  EXPECT_THAT(fault_of(two(7, 16), data),
              AllOf(HasSubstr("overlap"), HasSubstr("tensor 'b', offset"), HasSubstr("[7, 16]"),
                    HasSubstr("a begin of 8, where tensor 'a' ends")));
  EXPECT_THAT(fault_of(two(9, 16), data),
              AllOf(HasSubstr("hole"), HasSubstr("tensor 'b'"), HasSubstr("a begin of 8")));
  EXPECT_THAT(fault_of(two(0, 8), data), HasSubstr("overlap"));
  EXPECT_THAT(fault_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", "xx"),
              AllOf(HasSubstr("hole"), HasSubstr("a begin of 0")));
  EXPECT_THAT(fault_of(two(8, 15), data),
              AllOf(HasSubstr("belong to no tensor"), HasSubstr("found:    a file of")));
  EXPECT_THAT(fault_of("{}", "x"), HasSubstr("belong to no tensor"));
}

TEST(Safetensors, TruncatedFileIsNamedWithBothSizes) {
  const std::string file = safetensors_file(fmt::format("{{{}}}", kA), std::string(8, 'x'));
  ASSERT_NO_THROW(parse(file));
  // Wherever it is cut, it is an Error.
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_NE(error_of([&] { parse(file.substr(0, size)); }), "no error") << size;
  }
  EXPECT_THAT(error_of([&] { parse(file.substr(0, file.size() - 1)); }),
              AllOf(HasSubstr("beyond the end of the file"), HasSubstr("tensor 'a', offset"),
                    HasSubstr(fmt::format("a file of {} bytes", file.size() - 1)),
                    HasSubstr(fmt::format("at least {} bytes", file.size()))));
}

TEST(Safetensors, HeaderOfAVeryLargeModelIsFast) {
  // DeepSeek-V3 has about 90,000 tensors, and a header of 10 MB if they lie in one file.
  std::string header = "{";
  for (int i = 0; i < 90'000; ++i) {
    header += fmt::format(R"({}"model.layers.{}.mlp.experts.{}.down_proj.weight_scale_inv.{}":)"
                          R"({{"dtype":"F32","shape":[1,1],"data_offsets":[{},{}]}})",
                          i ? "," : "", i / 1500, i % 256, i, i * 4, i * 4 + 4);
  }
  header += "}";
  const std::string file = safetensors_file(header, std::string(90'000 * size_t{4}, '\0'));
  const std::clock_t start = std::clock();  // of this process: neighbours do not count
  EXPECT_EQ(parse(file).size(), 90'000u);
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  RecordProperty("milliseconds", static_cast<int>(seconds * 1000));
  EXPECT_LT(seconds, 2.0);  // 0.1 as built for use; sanitizers take longer
}

}  // namespace
}  // namespace octet::model
