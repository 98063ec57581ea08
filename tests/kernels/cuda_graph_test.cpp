// SPDX-License-Identifier: Apache-2.0
//
// cuDNN's support for our graphs, queried with the device properties of an H200: engines for the
// convolutions and attention of the decks, deterministic engines, sums in the epilogue, engines by
// name, and plans built by several threads. The workspace of attention is queried for other
// devices, too. Convolution engines are precompiled and need no device. Attention kernels are
// compiled for the graph and loaded at once, so those tests need a device and are skipped without
// one.

#include "ops/cuda/attention_graph.hpp"

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ops/cuda/convolution.hpp"
#include "ops/cuda/library.hpp"
#include "ops/cuda/plan_builders.hpp"
#include "trireme/ops/image.hpp"

namespace trireme::ops::cuda {
namespace {

#if CUDNN_VERSION >= 90800

/// Returns the properties of an H200, or with those of another compute capability (80: 8.0).
Descriptor device_properties(int capability = 90) {
  const std::string properties =
      fmt::format(
          R"({{"deviceName":"NVIDIA H200","cudaDeviceId":0,"deviceVer":{},"driverVer":13000,)",
          10 * capability) +
      R"("multiProcessorCount":132,"maxGridSize":[2147483647,65535,65535],)"
      R"("maxBlockSize":[1024,1024,64],"regsPerBlock":65536,"warpSize":32,)"
      R"("maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":232448,)"
      R"("reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":32,)"
      R"("maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"pciDeviceId":0,)"
      R"("isTccDriver":0,"supportCoopLaunch":1,"smClockRateKHz":1980000,)"
      R"("memClockRateKHz":3201000,"l2CacheSize":62914560,"totalGlobalMem":150000000000})";
  Descriptor device(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  device.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
             static_cast<std::int64_t>(properties.size()), properties.data());
  return std::move(device.finalize());
}

/// Returns whether plans of other compute capabilities can be built: they load their kernels, which
/// a device refuses.
bool is_stand_in() {
  const char* const libraries = std::getenv("LD_PRELOAD");
  return libraries != nullptr &&
         std::string_view(libraries).find("stand_in_cuda") != std::string_view::npos;
}

int device_capability() {
  int major = 0, minor = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
  return 10 * major + minor;
}

bool has_device() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

Attention attention(std::int64_t batch, std::int64_t context, std::int64_t heads,
                    std::int64_t kv_heads, std::int64_t head_width) {
  return {batch, context, heads, kv_heads, head_width, DType::bfloat16};
}

/// Returns that of a vision transformer.
Attention unmasked(std::int64_t batch, std::int64_t context, std::int64_t heads,
                   std::int64_t head_width) {
  Attention a = attention(batch, context, heads, heads, head_width);
  a.mask = ops::AttentionMask::none;
  return a;
}

TEST(CudaGraph, EnginesForTheModelsOfTheDecks) {
  if (!has_device()) GTEST_SKIP() << "no CUDA device";
  const Descriptor device = device_properties();
  const PlanTarget target{nullptr, &device};
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    for (Attention a : {attention(8, 1024, 12, 12, 64), attention(2, 2048, 32, 8, 128),
                        attention(1, 1000, 4, 4, 64), unmasked(64, 197, 12, 64),
                        unmasked(128, 65, 3, 64), unmasked(8, 256, 16, 80)}) {
      a.dtype = dtype;
      EXPECT_NE(make_attention_forward(target, a, workspace_bytes), nullptr)
          << a.context << " positions, " << a.heads << " heads, " << a.kv_heads << " of keys, of "
          << a.head_width << " in " << to_string(dtype);
      const bool fits =
          a.context % attention_backward_rules(cudnnGetVersion()).context_multiple == 0;
      EXPECT_EQ(make_attention_backward(target, a, workspace_bytes) != nullptr, fits)
          << a.context << " positions, " << a.heads << " heads, " << a.kv_heads << " of keys, of "
          << a.head_width << " in " << to_string(dtype);
    }
  }
}

/// The formula is known without a device. cuDNN takes most on 8.0: there the formula is exact but
/// for the alignment, if the context is a multiple of its tile.
TEST(CudaGraph, AttentionsWorkspaceHasRoomForTheChosenPlan) {
  if (!has_device()) GTEST_SKIP() << "no CUDA device";
  const std::int64_t unlimited = std::int64_t{1} << 50;
  for (const int capability : {80, 90, 100}) {
    if (!is_stand_in() && capability != device_capability()) continue;
    const Descriptor device = device_properties(capability);
    const PlanTarget target{nullptr, &device};
    for (Attention a :
         {attention(4, 2048, 32, 8, 128), attention(1, 8192, 32, 8, 128),
          attention(8, 1024, 12, 12, 64), attention(2, 1000, 8, 1, 128),
          attention(1, 130, 8, 8, 72), attention(3, 100, 4, 1, 64), attention(1, 1, 4, 2, 16),
          unmasked(64, 197, 12, 64), unmasked(128, 65, 3, 64), unmasked(4, 256, 16, 128)}) {
      a.dtype = a.heads == 12 ? DType::float16 : DType::bfloat16;
      for (const auto kind :
           {Problem::Kind::attention_forward, Problem::Kind::attention_backward}) {
        const bool backward = kind == Problem::Kind::attention_backward;
        if (backward &&
            a.context % attention_backward_rules(cudnnGetVersion()).context_multiple != 0)
          continue;
        const auto plan =
            (backward ? make_attention_backward : make_attention_forward)(target, a, unlimited);
        const std::string what =
            fmt::format("{} of {} x {} positions, {} heads, {} of keys, of {}, on {}",
                        backward ? "backward" : "forward", a.batch, a.context, a.heads, a.kv_heads,
                        a.head_width, capability);
        ASSERT_NE(plan, nullptr) << what;
        const std::int64_t room = attention_workspace_bytes(kind, a) - workspace_alignment;
        EXPECT_LE(plan->workspace_bytes(), room) << what;
        if (capability == 80 && a.context % 128 == 0) {
          EXPECT_LE(room - plan->workspace_bytes(), 256) << what;
        }
      }
    }
  }
}

TEST(CudaGraph, OlderVersionsNeedZerosAndWholeTilesInBackward) {
  for (const auto& [version, zeros, multiple] :
       {std::tuple(90100, true, 128), std::tuple(90599, true, 128), std::tuple(90600, false, 128),
        std::tuple(91599, false, 128), std::tuple(91600, false, 1), std::tuple(100000, false, 1)}) {
    const AttentionBackwardRules rules =
        attention_backward_rules(static_cast<std::size_t>(version));
    EXPECT_EQ(rules.sums_must_be_zero, zeros) << version;
    EXPECT_EQ(rules.context_multiple, multiple) << version;
  }
}

TEST(CudaGraph, UnsupportedAttentionIsRefused) {
  const Descriptor device = device_properties();
  const PlanTarget target{nullptr, &device};
  Attention wide = attention(1, 128, 2, 2, 64), dropped = wide, odd = wide;
  wide.dtype = DType::float32;
  dropped.dropout = 0.1f;
  // A head's row does not begin at a multiple of 16 bytes.
  odd.head_width = 20;
  for (const Attention& a : {wide, dropped, odd}) {
    EXPECT_EQ(make_attention_forward(target, a, workspace_bytes), nullptr);
    EXPECT_EQ(make_attention_backward(target, a, workspace_bytes), nullptr);
  }
}

TEST(CudaGraph, EnginesOfOneOrderForTheConvolutionsOfAResNet) {
  const Descriptor device = device_properties();
  for (const bool deterministic : {false, true}) {
    const PlanTarget target{nullptr, &device, deterministic};
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
      for (const Convolution& c : {Convolution{16, 56, 56, 64, 64, 3, 1, 1, dtype},
                                   Convolution{16, 28, 28, 256, 128, 1, 1, 0, dtype},
                                   Convolution{16, 56, 56, 128, 128, 3, 2, 1, dtype},
                                   Convolution{16, 56, 56, 64, 64, 3, 1, 2, dtype, 0, 2},
                                   Convolution{16, 56, 56, 64, 64, 3, 2, 4, dtype, 0, 4}}) {
        for (const auto kind :
             {Problem::Kind::convolution_forward, Problem::Kind::convolution_backward_data,
              Problem::Kind::convolution_backward_weight}) {
          EXPECT_NO_THROW(make_convolution(target, kind, c))
              << static_cast<int>(kind) << " " << to_string(dtype) << " " << c.in_channels << " "
              << deterministic;
        }
      }
    }
  }
}

/// Returns ResNet-50's convolutions for this batch: 1x1 and 3x3, with stride 1 and 2.
std::vector<Convolution> resnet50(std::int64_t batch, DType dtype) {
  std::vector<Convolution> all;
  std::int64_t width = 64, in = 64, pixels = 56;
  for (const std::int64_t stride : {1, 2, 2, 2}) {
    const std::int64_t after = pixels / stride;
    all.insert(all.end(), {{batch, pixels, pixels, in, width, 1, 1, 0, dtype},
                           {batch, pixels, pixels, width, width, 3, stride, 1, dtype},
                           {batch, pixels, pixels, in, 4 * width, 1, stride, 0, dtype},
                           {batch, after, after, 4 * width, width, 1, 1, 0, dtype},
                           {batch, after, after, width, width, 3, 1, 1, dtype},
                           {batch, after, after, width, 4 * width, 1, 1, 0, dtype}});
    in = 4 * width;
    width *= 2;
    pixels = after;
  }
  return all;
}

std::string name_of(const Convolution& c) {
  return fmt::format("{} {} -> {} kernel {} stride {}", to_string(c.dtype),
                     to_string(c.input_shape()), to_string(c.output_shape()), c.kernel, c.stride);
}

/// Engines without the tensor cores take several times as long. The stem reads images of 8
/// channels: for 3 channels cuDNN pads them in its workspace, which is too small for that at a
/// batch of 256.
TEST(CudaGraph, EveryConvolutionOfAResNetHasAnEngineWithTensorCores) {
  const Descriptor device = device_properties();
  const PlanTarget target{nullptr, &device};
  const std::int64_t channels = channels_in_memory(DeviceKind::cuda, DType::bfloat16, 3);
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    for (const std::int64_t batch : {64, 128, 256, 512}) {
      std::vector<Convolution> all = resnet50(batch, dtype);
      all.push_back({batch, 224, 224, channels, 64, 7, 2, 3, dtype});
      for (const Convolution& c : all) {
        for (const auto kind :
             {Problem::Kind::convolution_forward, Problem::Kind::convolution_backward_data,
              Problem::Kind::convolution_backward_weight}) {
          EXPECT_TRUE(make_convolution(target, kind, c)->has_tensor_cores())
              << static_cast<int>(kind) << " " << name_of(c);
        }
      }
    }
  }
}

TEST(CudaGraph, SumsInTheEpilogueOfAResNetsConvolutionsInFloat16) {
  const Descriptor device = device_properties();
  const PlanTarget target{nullptr, &device};
  for (const std::int64_t batch : {64, 256}) {
    for (const Convolution& c : resnet50(batch, DType::float16))
      EXPECT_NE(make_convolution_with_sums(target, c), nullptr) << name_of(c);
  }
}

/// In bfloat16 these graphs are compiled at run time, and cuDNN requires a device for it.
TEST(CudaGraph, SumsInTheEpilogueOfAResNetsConvolutionsInBfloat16) {
  const Descriptor device = device_properties();
  const PlanTarget target{nullptr, &device};
  if (!has_device()) {
    EXPECT_EQ(make_convolution_with_sums(target, resnet50(64, DType::bfloat16).front()), nullptr);
    GTEST_SKIP() << "no CUDA device";
  }
  for (const Convolution& c : resnet50(64, DType::bfloat16))
    EXPECT_NE(make_convolution_with_sums(target, c), nullptr) << name_of(c);
  EXPECT_NE(make_convolution_with_sums(target, {64, 224, 224, 3, 64, 7, 2, 3, DType::bfloat16}),
            nullptr)
      << "the stem";
}

constexpr Problem::Kind convolutions[] = {Problem::Kind::convolution_forward,
                                          Problem::Kind::convolution_backward_data,
                                          Problem::Kind::convolution_backward_weight};

TEST(CudaGraph, AnEngineIsFoundAgainByItsName) {
  const Descriptor device = device_properties();
  const PlanTarget target{nullptr, &device};
  for (const Problem::Kind kind : convolutions) {
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
      const Convolution c{16, 56, 56, 64, 64, 3, 1, 1, dtype};
      const std::vector<std::string> names = make_convolution(target, kind, c)->engines();
      EXPECT_GT(names.size(), 1u);
      EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
      EXPECT_EQ(make_convolution(target, kind, c)->engines(), names);
      AlgorithmTable known;
      const PlanTarget knowing{nullptr, &device, false, {known, "the problem"}};
      for (const std::string& name : names) {
        known.set("the problem", name);
        EXPECT_EQ(make_convolution(knowing, kind, c)->engines(), std::vector<std::string>{name});
      }
      // This version has no such engine.
      known.set("the problem", "engine 12345");
      EXPECT_EQ(make_convolution(knowing, kind, c)->engines(), names);
    }
  }
}

TEST(CudaGraph, SeveralThreadsFindTheSameEnginesAsOne) {
  const Descriptor device = device_properties();
  PlanBuilders builders({DeviceKind::cuda, 0}, 4);
  PlanTarget several{nullptr, &device};
  several.builders = &builders;
  for (const Problem::Kind kind : convolutions) {
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
      const Convolution c{16, 56, 56, 64, 64, 3, 1, 1, dtype};
      const std::vector<std::string> alone =
          make_convolution({nullptr, &device}, kind, c)->engines();
      // Threads end in another order each time.
      for (int run = 0; run < 8; ++run)
        EXPECT_EQ(make_convolution(several, kind, c)->engines(), alone);
    }
  }
}

/// Waits in each call until so many calls wait at the same time. Returns whether they do within 30
/// seconds.
class Gathering {
 public:
  explicit Gathering(std::size_t count) : count_(count) {}
  bool wait(cudnnHandle_t handle) {
    std::unique_lock lock(mutex_);
    handles_.insert(handle);
    ++waiting_;
    changed_.notify_all();
    return changed_.wait_for(lock, std::chrono::seconds(30), [&] { return waiting_ == count_; });
  }
  const std::set<cudnnHandle_t>& handles() const { return handles_; }

 private:
  std::size_t count_, waiting_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<cudnnHandle_t> handles_;
};

TEST(PlanBuilders, WorkAtTheSameTime) {
  PlanBuilders builders({DeviceKind::cuda, 0}, 4), one({DeviceKind::cuda, 0}, 1);
  for (int run = 0; run < 2; ++run) {
    Gathering four(4), alone(1);
    builders.run(nullptr, [&](cudnnHandle_t handle) { EXPECT_TRUE(four.wait(handle)); });
    one.run(nullptr, [&](cudnnHandle_t handle) { EXPECT_TRUE(alone.wait(handle)); });
    EXPECT_EQ(four.handles(), std::set<cudnnHandle_t>{nullptr});
  }
  EXPECT_GE(PlanBuilders::default_threads(), 1);
  EXPECT_LE(PlanBuilders::default_threads(), 8);
}

TEST(PlanBuilders, AnErrorOfOneThreadIsThrown) {
  PlanBuilders builders({DeviceKind::cuda, 0}, 3);
  Gathering all(3);
  EXPECT_THROW(builders.run(nullptr,
                            [&](cudnnHandle_t handle) {
                              all.wait(handle);
                              throw std::runtime_error("an error");
                            }),
               std::runtime_error);
}

TEST(PlanBuilders, HaveAHandleEach) {
  if (!has_device()) GTEST_SKIP() << "no CUDA device";
  cudnnHandle_t own = nullptr;
  ASSERT_EQ(cudnnCreate(&own), CUDNN_STATUS_SUCCESS);
  {
    PlanBuilders builders({DeviceKind::cuda, 0}, 3);
    std::set<cudnnHandle_t> handles;
    for (int run = 0; run < 2; ++run) {
      Gathering all(3);
      builders.run(own, [&](cudnnHandle_t handle) { EXPECT_TRUE(all.wait(handle)); });
      EXPECT_EQ(all.handles().size(), 3u);
      EXPECT_TRUE(all.handles().contains(own));
      EXPECT_FALSE(all.handles().contains(nullptr));
      if (run == 1) {
        EXPECT_EQ(all.handles(), handles) << "they are made once";
      }
      handles = all.handles();
    }
  }
  cudnnDestroy(own);
}

TEST(CudaGraph, Tfloat32MayTakeEnginesThatFloat32MayNot) {
  const Descriptor device = device_properties();
  const PlanTarget target{nullptr, &device};
  for (const Problem::Kind kind : convolutions) {
    Convolution c{16, 56, 56, 64, 64, 3, 1, 1, DType::float32};
    EXPECT_NE(make_convolution(target, kind, c, true)->engines().front(),
              make_convolution(target, kind, c, false)->engines().front());
    // bfloat16 has no more digits to lose.
    c.dtype = DType::bfloat16;
    EXPECT_EQ(make_convolution(target, kind, c, true)->engines(),
              make_convolution(target, kind, c, false)->engines());
  }
}

#endif

}  // namespace
}  // namespace trireme::ops::cuda
