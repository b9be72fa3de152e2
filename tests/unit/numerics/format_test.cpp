// DType, QuantFormat, ScaleShape and the schemes.
#include <gtest/gtest.h>

#include "base/error.h"
#include "numerics/dtype.h"
#include "numerics/scheme.h"

namespace octet {
namespace {

TEST(DType, SafetensorsNamesRoundTrip) {
  for (int i = 0; i <= static_cast<int>(DType::f64); ++i) {
    const auto type = static_cast<DType>(i);
    EXPECT_EQ(parse_safetensors_dtype(safetensors_name(type)), type);
  }
  EXPECT_EQ(parse_safetensors_dtype("F8_E4M3"), DType::e4m3);
  EXPECT_EQ(parse_safetensors_dtype("BF16"), DType::bf16);
  EXPECT_EQ(parse_safetensors_dtype("F4"), std::nullopt);
  EXPECT_EQ(parse_safetensors_dtype("f32"), std::nullopt);
  EXPECT_EQ(parse_safetensors_dtype(""), std::nullopt);
}

TEST(DType, SizesAndNames) {
  EXPECT_EQ(size_of(DType::boolean), 1u);
  EXPECT_EQ(size_of(DType::e4m3), 1u);
  EXPECT_EQ(size_of(DType::bf16), 2u);
  EXPECT_EQ(size_of(DType::f32), 4u);
  EXPECT_EQ(size_of(DType::i64), 8u);
  EXPECT_EQ(name_of(DType::e5m2), "e5m2");
  EXPECT_EQ(name_of(DType::f16), "f16");
  EXPECT_THROW(name_of(static_cast<DType>(99)), Fault);
}

TEST(QuantFormat, PrintsAndParsesEveryCombination) {
  for (const Code fp8 : {Code::e4m3, Code::e5m2}) {
    for (const ScaleGrid grid : {grids::tensor, grids::row, grids::group128, grids::block128,
                                 ScaleGrid{1, 32}, ScaleGrid{0, 64}, ScaleGrid{2147483647, 1}}) {
      for (const ScaleType scale : {ScaleType::f32, ScaleType::e8m0, ScaleType::unit}) {
        const QuantFormat format{fp8, grid, scale};
        EXPECT_EQ(parse_quant_format(to_string(format)), format) << to_string(format);
      }
    }
  }
  EXPECT_EQ(to_string(QuantFormat{Code::e4m3, grids::block128, ScaleType::f32}),
            "e4m3[128x128]f32");
  EXPECT_EQ(to_string(QuantFormat{Code::e4m3, grids::row, ScaleType::f32}), "e4m3[1x*]f32");
  EXPECT_EQ(to_string(QuantFormat{Code::e5m2, grids::tensor, ScaleType::unit}), "e5m2[*x*]unit");
}

TEST(QuantFormat, RefusesMalformedText) {
  for (const char* text : {"", "e4m3", "e4m3[1x*]", "e4m3[1x*]f16", "e4m3[1*]f32", "e4m3[0x1]f32",
                           "e4m3[01x1]f32", "e4m3[-1x1]f32", "e4m3[1x2x3]f32", "e4m3[1x*f32",
                           "e4m3 [1x*]f32", "E4M3[1x*]f32", "int8[1x*]f32", "e4m3[x]f32",
                           "e4m3[1x*]f32 ", "e4m3[2147483648x1]f32", "]x[f32", "e4m3[1]x[1]f32"}) {
    EXPECT_EQ(parse_quant_format(text), std::nullopt) << text;
  }
}

TEST(ScaleShape, CountsRaggedEdgesAsCells) {
  EXPECT_EQ(scale_shape(grids::block128, 576, 7168), (ScaleShape{5, 56}));
  EXPECT_EQ(scale_shape(grids::block128, 128, 129), (ScaleShape{1, 2}));
  EXPECT_EQ(scale_shape(grids::group128, 3, 576), (ScaleShape{3, 5}));
  EXPECT_EQ(scale_shape(grids::row, 576, 7168), (ScaleShape{576, 1}));
  EXPECT_EQ(scale_shape(grids::tensor, 576, 7168), (ScaleShape{1, 1}));
  EXPECT_EQ(scale_shape(ScaleGrid{0, 64}, 10, 512), (ScaleShape{1, 8}));
  EXPECT_EQ(scale_shape(ScaleGrid{1, 32}, 2, 33), (ScaleShape{2, 2}));
  EXPECT_EQ(scale_shape(grids::tensor, 0, 5).count(), 0);
  EXPECT_EQ(scale_shape(grids::group128, 0, 576).count(), 0);
  EXPECT_EQ(scale_shape(grids::block128, 576, 7168).count(), 280);
}

TEST(Scheme, TheRows) {
  ASSERT_EQ(schemes().size(), 8u);
  EXPECT_EQ(to_string(scheme_named("fp8_channel").format),
            "weight e4m3[1x*]f32, input e4m3[1x*]f32 dynamic");
  EXPECT_EQ(to_string(scheme_named("fp8_block").format),
            "weight e4m3[128x128]f32, input e4m3[1x128]f32 dynamic");
  EXPECT_EQ(to_string(scheme_named("fp8_group").format),
            "weight e4m3[1x128]f32, input e4m3[1x128]f32 dynamic");
  EXPECT_EQ(to_string(scheme_named("fp8_tensor").format),
            "weight e4m3[*x*]f32, input e4m3[*x*]f32 dynamic");
  EXPECT_EQ(to_string(scheme_named("fp8_tensor_static").format),
            "weight e4m3[*x*]f32, input e4m3[*x*]f32 calibrated");
  EXPECT_EQ(to_string(scheme_named("fp8_w8a16").format), "weight e4m3[1x*]f32, input 16-bit");
  EXPECT_EQ(to_string(scheme_named("mxfp8").format),
            "weight e4m3[1x32]e8m0, input e4m3[1x32]e8m0 dynamic");
  EXPECT_EQ(to_string(scheme_named("int8").format), "weight i8[1x*]f32, input i8[1x*]f32 dynamic");
  for (const Scheme& scheme : schemes()) EXPECT_FALSE(scheme.summary.empty());
}

TEST(Scheme, AnUnknownNameListsTheKnownOnes) {
  try {
    scheme_named("int3");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.parts().value, "int3");
    EXPECT_EQ(error.parts().accepted,
              "fp8_channel, fp8_block, fp8_group, fp8_tensor, fp8_tensor_static, fp8_w8a16, mxfp8, "
              "int8");
  }
}

TEST(Scheme, LinearFormatsPrint) {
  EXPECT_EQ(to_string(LinearFormat{}), "16-bit");
  const QuantFormat row{Code::e4m3, grids::row, ScaleType::f32};
  const QuantFormat tensor{Code::e4m3, grids::tensor, ScaleType::f32};
  EXPECT_EQ(to_string(LinearFormat{row, std::nullopt}), "weight e4m3[1x*]f32, input 16-bit");
  EXPECT_EQ(to_string(LinearFormat{row, tensor, InputScale::calibrated}),
            "weight e4m3[1x*]f32, input e4m3[*x*]f32 calibrated");
}

}  // namespace
}  // namespace octet
