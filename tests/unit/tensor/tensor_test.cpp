#include "tensor/tensor.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

namespace octet {
namespace {

class Matrix : public ::testing::Test {
 protected:
  // 3 rows of 4: element [r, c] is 4 r + c.
  Matrix() : values_(12) { std::iota(values_.begin(), values_.end(), 0.0f); }
  std::vector<float> values_;
  Tensor matrix_{values_.data(), DType::f32, {3, 4}};
};

TEST(ShapeTest, CountsAndPrints) {
  EXPECT_EQ(Shape({2, 3, 4}).count(), 24);
  EXPECT_EQ(Shape().count(), 1) << "a scalar has one element";
  EXPECT_EQ(Shape({0, 7}).count(), 0);
  EXPECT_EQ(to_string(Shape{576, 7168}), "[576, 7168]");
  EXPECT_THROW(Shape({1, 2, 3, 4, 5}), Fault);
}

TEST_F(Matrix, IsContiguousWithItsRowStride) {
  EXPECT_TRUE(matrix_.contiguous());
  EXPECT_EQ(matrix_.rows(), 3);
  EXPECT_EQ(matrix_.cols(), 4);
  EXPECT_EQ(matrix_.row_stride(), 4);
  EXPECT_EQ(matrix_.bytes(), 48);
}

TEST_F(Matrix, SliceAndColumnsShareTheMemory) {
  const Tensor rows = matrix_.slice(1, 2);
  EXPECT_EQ(rows.as<float>()[0], 4.0f);
  EXPECT_TRUE(rows.contiguous());

  const Tensor columns = matrix_.columns(2, 2);
  EXPECT_FALSE(columns.contiguous());
  EXPECT_EQ(columns.row_stride(), 4) << "a row of the view is still four elements from the next";
  EXPECT_EQ(columns.as<float>()[columns.row_stride()], 6.0f);
}

TEST_F(Matrix, ViewsThatLeaveTheTensorAreFaults) {
  EXPECT_THROW(matrix_.slice(2, 2), Fault);
  EXPECT_THROW(matrix_.slice(-1, 1), Fault);
  EXPECT_THROW(matrix_.columns(3, 2), Fault);
  EXPECT_THROW(matrix_.reshape({5, 2}), Fault);
  EXPECT_THROW(matrix_.columns(0, 2).reshape({6}), Fault) << "a strided view has no other shape";
  EXPECT_THROW(matrix_.split_last(3, 2), Fault);
}

TEST_F(Matrix, SplitLastGivesHeads) {
  const Tensor heads = matrix_.split_last(2, 2);
  EXPECT_EQ(heads.shape, Shape({3, 2, 2}));
  EXPECT_EQ(heads.rows(), 6);
  EXPECT_EQ(heads.row_stride(), 2);
  // The second half of each head, as MLA takes its rope part.
  const Tensor part = heads.columns(1, 1);
  EXPECT_EQ(part.strides[0], 4);
  EXPECT_EQ(part.strides[1], 2);
  EXPECT_EQ(part.as<float>()[0], 1.0f);
}

TEST_F(Matrix, RowsWithoutOneStrideAreAFault) {
  // [3, 2, 2] of every row's first head and a half: the step from row 1 to 2 is not uniform.
  Tensor broken = matrix_.split_last(2, 2);
  broken.strides[0] = 5;
  EXPECT_THROW(broken.row_stride(), Fault);
}

TEST(QuantTensorTest, SlicesScalesWithTheirCells) {
  std::vector<uint8_t> codes(300 * 8);
  std::vector<float> scales(3);
  QuantTensor block{Tensor(codes.data(), DType::e4m3, {300, 8}),
                    Tensor(scales.data(), DType::f32, {3, 1}),
                    {Code::e4m3, grids::block128, ScaleType::f32}};
  const QuantTensor tail = block.slice_rows(256, 44);
  EXPECT_EQ(tail.codes.rows(), 44);
  EXPECT_EQ(tail.scales.rows(), 1);
  EXPECT_EQ(tail.scales.as<float>(), scales.data() + 2);
  EXPECT_THROW(block.slice_rows(100, 10), Fault) << "a cell cannot be cut";

  block.format.grid = grids::tensor;
  EXPECT_EQ(block.slice_rows(100, 10).scales.as<float>(), scales.data());
}

}  // namespace
}  // namespace octet
