// SPDX-License-Identifier: Apache-2.0
//
// Convolutions as graphs of cuDNN's backend interface: a single operation, or a forward convolution
// with sums of the output's channels. Library calls the two make_* functions at the first use of a
// shape.
//
// 1. The attributes of the operation are chosen by the kind of product.
// 2. Descriptors of tensors and convolution are made.
// 3. Plan::find asks cuDNN for engines that fit the workspace; engines that round too much are
//    excluded.

#include "convolution.hpp"

#include "library.hpp"
#include "status.hpp"
#include "trireme/base/check.hpp"

namespace trireme::ops::cuda {
namespace {

/// Maximum number of engines that are timed. The heuristics rarely rank the fastest further back.
constexpr std::size_t max_trials = 24;

/// Unique numbers of the graphs' tensors.
enum TensorUid : std::int64_t { input = 1, weight = 2, output = 3, sums = 4, square_sums = 5 };

/// cuDNN's attribute names of one of the three convolution operations.
struct OperationAttributes {
  cudnnBackendDescriptorType_t operation;
  cudnnBackendAttributeName_t convolution, alpha, beta, input, weight, output;
};

constexpr OperationAttributes forward_attributes{
    CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y};
constexpr OperationAttributes data_attributes{
    CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY};
constexpr OperationAttributes weight_attributes{
    CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY};

/// Returns the attribute names of a kind of product. Throws Failure for other products.
const OperationAttributes& attributes_of(Problem::Kind kind) {
  switch (kind) {
    case Problem::Kind::convolution_forward: return forward_attributes;
    case Problem::Kind::convolution_backward_data: return data_attributes;
    case Problem::Kind::convolution_backward_weight: return weight_attributes;
    default: throw Failure("internal error: unexpected kind of product");
  }
}

struct Tensors {
  Descriptor x, w, y;
};

Tensors tensors_of(const Convolution& c) {
  return {tensor_nhwc(input, c.dtype, {c.batch, c.in_channels, c.height, c.width}),
          tensor_nhwc(weight, c.dtype, {c.out_channels, c.in_channels, c.kernel, c.kernel}),
          tensor_nhwc(output, c.dtype, {c.batch, c.out_channels, c.out_height(), c.out_width()})};
}

/// Returns the operation with all attributes set, not yet completed.
Descriptor operation_of(const OperationAttributes& attributes, const Convolution& c,
                        const Tensors& tensors) {
  const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
  const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
  const std::vector<std::int64_t> stride{c.stride, c.stride}, dilation{c.dilation, c.dilation},
      before{c.padding.before, c.padding.before}, after{c.padding.after, c.padding.after};
  Descriptor convolution(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  convolution.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, 2)
      .set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute)
      .set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode)
      .set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, stride)
      .set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, before)
      .set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, after)
      .set(CUDNN_ATTR_CONVOLUTION_DILATIONS, dilation)
      .finalize();
  const float one = 1, zero = 0;
  Descriptor operation(attributes.operation);
  operation.set(attributes.convolution, convolution)
      .set(attributes.alpha, CUDNN_TYPE_FLOAT, 1, &one)
      .set(attributes.beta, CUDNN_TYPE_FLOAT, 1, &zero)
      .set(attributes.input, tensors.x)
      .set(attributes.weight, tensors.w)
      .set(attributes.output, tensors.y);
  return operation;
}

/// Returns the operation that sums a tensor's channels and their squares in float32, not yet
/// completed.
Descriptor sums_of(const Descriptor& tensor, std::int64_t channels) {
  const cudnnGenStatsMode_t mode = CUDNN_GENSTATS_SUM_SQSUM;
  const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
  const std::vector<std::int64_t> extents{1, channels, 1, 1};
  Descriptor operation(CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_GENSTATS_MODE, CUDNN_TYPE_GENSTATS_MODE, 1, &mode)
      .set(CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &compute)
      .set(CUDNN_ATTR_OPERATION_GENSTATS_XDESC, tensor)
      .set(CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC, tensor_nhwc(sums, DType::float32, extents))
      .set(CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC,
           tensor_nhwc(square_sums, DType::float32, extents));
  return operation;
}

}  // namespace

std::unique_ptr<Plan> make_convolution(const PlanTarget& target, Problem::Kind kind,
                                       const Convolution& c, bool tfloat32) {
  Descriptor operation = operation_of(attributes_of(kind), c, tensors_of(c));
  // With tfloat32 the tensor cores keep 10 bits of the mantissa of float32 inputs. Engines that
  // convert their inputs may keep fewer bits, or have another range, so they are excluded. Sums of
  // 16-bit products stay in float32: the stem's weight gradient adds 3.2 million of them.
  NumericalNotes avoided;
  if (c.dtype == DType::float32) avoided.push_back(CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS);
  if (c.dtype != DType::float32)
    avoided.push_back(CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION);
  if (c.dtype == DType::float32 && !tfloat32) avoided.push_back(CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
  std::unique_ptr<Plan> plan;
  if (operation.try_finalize()) {
    std::vector<Descriptor> operations;
    operations.push_back(std::move(operation));
    plan = Plan::find(target, operations, {input, weight, output}, usable_workspace_bytes,
                      max_trials, avoided);
  }
  ensure(plan != nullptr,
         "cuDNN has no engine for a convolution of {} to {} channels, kernel {}, stride {}, "
         "dilation {}, in {}",
         c.in_channels, c.out_channels, c.kernel, c.stride, c.dilation, to_string(c.dtype));
  return plan;
}

std::unique_ptr<Plan> make_convolution_with_sums(const PlanTarget& target, const Convolution& c) {
  const Tensors tensors = tensors_of(c);
  std::vector<Descriptor> operations;
  operations.push_back(operation_of(forward_attributes, c, tensors));
  operations.push_back(sums_of(tensors.y, c.out_channels));
  for (Descriptor& operation : operations) {
    if (!operation.try_finalize()) return nullptr;
  }
  return Plan::find(target, operations, {input, weight, output, sums, square_sums},
                    usable_workspace_bytes, max_trials,
                    {CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION});
}

}  // namespace trireme::ops::cuda
