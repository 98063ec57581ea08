#include "convolution.hpp"

#include "library.hpp"
#include "status.hpp"

namespace trireme::ops::cuda {
namespace {

constexpr std::size_t most_trials = 6;  // engines; the heuristics rarely put the fastest further back

enum Number : std::int64_t { input = 1, weight = 2, output = 3 };

/// The attributes that name the operands of one of the three operations.
struct Form {
  cudnnBackendDescriptorType_t operation;
  cudnnBackendAttributeName_t convolution, alpha, beta, input, weight, output;
};

constexpr Form forward_form{CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y};
constexpr Form data_form{CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY};
constexpr Form weight_form{CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                           CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                           CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                           CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
                           CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                           CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                           CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY};

const Form& form_of(Problem::Kind kind) {
  switch (kind) {
    case Problem::Kind::convolution_forward: return forward_form;
    case Problem::Kind::convolution_backward_data: return data_form;
    case Problem::Kind::convolution_backward_weight: return weight_form;
    default: throw Failure("a product of another kind");
  }
}

}  // namespace

std::unique_ptr<Plan> make_convolution(const PlanTarget& target, Problem::Kind kind, const Convolution& c, bool tfloat32) {
  const Form& form = form_of(kind);
  const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
  const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
  const std::vector<std::int64_t> stride{c.stride, c.stride}, padding{c.padding, c.padding}, dilation{1, 1};
  Descriptor convolution(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  convolution.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, 2)
      .set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute)
      .set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode)
      .set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, stride)
      .set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, padding)
      .set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, padding)
      .set(CUDNN_ATTR_CONVOLUTION_DILATIONS, dilation)
      .finalize();
  const float one = 1, zero = 0;
  const Descriptor x = tensor_nhwc(input, c.dtype, {c.batch, c.in_channels, c.height, c.width}),
                   w = tensor_nhwc(weight, c.dtype, {c.out_channels, c.in_channels, c.kernel, c.kernel}),
                   y = tensor_nhwc(output, c.dtype, {c.batch, c.out_channels, c.out_height(), c.out_width()});
  Descriptor operation(form.operation);
  operation.set(form.convolution, convolution)
      .set(form.alpha, CUDNN_TYPE_FLOAT, 1, &one)
      .set(form.beta, CUDNN_TYPE_FLOAT, 1, &zero)
      .set(form.input, x)
      .set(form.weight, w)
      .set(form.output, y);
  // Of float32 the tensor cores keep 10 bits of the mantissa (tfloat32); an engine that converts its inputs may keep fewer still, or another range.
  NumericalNotes avoided;
  if (c.dtype == DType::float32) avoided.push_back(CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS);
  if (c.dtype == DType::float16) avoided.push_back(CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION);  // sums are float32
  if (c.dtype == DType::float32 && !tfloat32) avoided.push_back(CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
  std::unique_ptr<Plan> plan;
  if (operation.supported()) {
    std::vector<Descriptor> operations;
    operations.push_back(std::move(operation));
    plan = Plan::find(target, operations, {input, weight, output}, usable_workspace_bytes, most_trials, avoided);
  }
  ensure(plan != nullptr, "cuDNN has no engine for a convolution of {} to {} channels, kernel {}, stride {}, in {}", c.in_channels, c.out_channels, c.kernel,
         c.stride, to_string(c.dtype));
  return plan;
}

}  // namespace trireme::ops::cuda
