// SPDX-License-Identifier: Apache-2.0
//
// Casts of many tensors in one launch, for lists of small ones. Called by ops::cast_tensors().
// Plan: every tensor is cut into pieces of equal size. A host thread or a device team finds the
// tensor of its piece in the list, which is an argument of the kernel, and casts the piece.
// Memory traffic: each operand is read once, each result is written once.

#include "trireme/kernels/cast_tensors.hpp"

#include <type_traits>

#include "kernels/space/execution_space.hpp"
#include "kernels/space/pack_walk.hpp"

namespace trireme::kernels {
namespace {

const std::string cast_tensors_label = "trireme/kernels/cast_tensors";

// On a device four packs for each thread of a team.
constexpr std::int64_t cast_piece_elements = 4096;
constexpr int cast_lanes = pack_lanes<float>;

/// The walk (pack_walk.hpp) over one piece. Packs are used only without channels to skip. `adds` is
/// known to the compiler, which otherwise takes four times the registers.
template <class From, class To, bool adds>
struct CastStep {
  const From* x;
  To* y;
  std::int64_t begin;  ///< of the piece
  std::int64_t x_channels, y_channels;

  template <int lanes>
  struct Operands {
    float x[lanes], y[lanes];
  };
  KOKKOS_FUNCTION std::int64_t source_of(std::int64_t i) const {
    return x_channels == y_channels ? i : i / y_channels * x_channels + i % y_channels;
  }
  template <int lanes>
  KOKKOS_FORCEINLINE_FUNCTION void load(int i, Operands<lanes>& o) const {
    kernels::load<lanes>(x + (lanes == 1 ? source_of(begin + i) : begin + i), o.x);
    if constexpr (adds) kernels::load<lanes>(y + begin + i, o.y);
  }
  template <int lanes>
  KOKKOS_FORCEINLINE_FUNCTION void process(int i, Operands<lanes>& o) const {
    if constexpr (adds) {
      for (int k = 0; k < lanes; ++k) o.x[k] = o.y[k] + o.x[k];
    }
    store<lanes>(o.x, y + begin + i);
  }
  /// Host form: elements [first, last) of the tensor.
  KOKKOS_FUNCTION void run(std::int64_t first, std::int64_t last) const {
    if (x_channels != y_channels) {
      for (std::int64_t i = first; i < last; ++i) {
        const float value = to_float(x[source_of(i)]);
        y[i] = from_float<To>(adds ? to_float(y[i]) + value : value);
      }
    } else {
#pragma omp simd
      for (std::int64_t i = first; i < last; ++i) {
        const float value = to_float(x[i]);
        y[i] = from_float<To>(adds ? to_float(y[i]) + value : value);
      }
    }
  }
};

/// All pieces of all tensors. The list is copied with the functor.
class CastTensors {
 public:
  explicit CastTensors(std::span<const TensorCast> casts)
      : count_(static_cast<std::int64_t>(casts.size())) {
    for (std::size_t number = 0; number < casts.size(); ++number) {
      const TensorCast& cast = casts[number];
      const auto aligned = [](const void* pointer, ElementType type) {
        return reinterpret_cast<std::uintptr_t>(pointer) % (cast_lanes * size_of(type)) == 0;
      };
      tensors_[number] = {.x = cast.x,
                          .y = cast.y,
                          .elements = cast.elements,
                          .first_piece = static_cast<std::int32_t>(pieces_),
                          .x_channels = cast.x_channels,
                          .y_channels = cast.y_channels,
                          .x_type = cast.x_type,
                          .y_type = cast.y_type,
                          .add = cast.add,
                          .packed = cast.x_channels == cast.y_channels &&
                                    aligned(cast.x, cast.x_type) && aligned(cast.y, cast.y_type)};
      pieces_ += (cast.elements + cast_piece_elements - 1) / cast_piece_elements;
    }
  }
  std::int64_t pieces() const { return pieces_; }

  KOKKOS_FUNCTION std::int64_t extent(std::int64_t piece) const {
    return extent_of(tensors_[find(piece)], piece);
  }
  KOKKOS_FUNCTION void operator()(std::int64_t piece, std::int64_t begin, std::int64_t end) const {
    with_step(tensors_[find(piece)], piece,
              [=](const auto& step) { step.run(step.begin + begin, step.begin + end); });
  }
  template <class Group>
  KOKKOS_FUNCTION void operator()(std::int64_t piece, const Group& group) const {
    const Tensor tensor = tensors_[find(piece)];
    const auto count = static_cast<int>(extent_of(tensor, piece));
    with_step(tensor, piece, [&](auto step) {
      walk_packs<cast_lanes, 4>(group, tensor.packed ? 0 : count, count, step);
    });
  }

 private:
  struct Tensor {
    const void* x = nullptr;
    void* y = nullptr;
    std::int64_t elements = 0;
    std::int32_t first_piece = 0, x_channels = 1, y_channels = 1;
    ElementType x_type = ElementType::float32, y_type = ElementType::float32;
    bool add = false, packed = false;
  };

  KOKKOS_FUNCTION std::int64_t find(std::int64_t piece) const {
    std::int64_t number = 0;
    while (number + 1 < count_ && tensors_[number + 1].first_piece <= piece) ++number;
    return number;
  }
  KOKKOS_FUNCTION static std::int64_t extent_of(const Tensor& tensor, std::int64_t piece) {
    const std::int64_t left = tensor.elements - (piece - tensor.first_piece) * cast_piece_elements;
    return left < cast_piece_elements ? left : cast_piece_elements;
  }
  /// Calls run(step) with the step of a piece in the types of its tensor.
  template <class Run>
  KOKKOS_FUNCTION static void with_step(const Tensor& tensor, std::int64_t piece, const Run& run) {
    const std::int64_t begin = (piece - tensor.first_piece) * cast_piece_elements;
    const auto run_as = [&]<bool adds, class From, class To>(const From* x, To* y) {
      run(CastStep<From, To, adds>{x, y, begin, tensor.x_channels, tensor.y_channels});
    };
    if (tensor.y_type == ElementType::float32) {
      auto* const y = static_cast<float*>(tensor.y);
      with_type(tensor.x_type, [&]<class From>(From) {
        const auto* const x = static_cast<const From*>(tensor.x);
        tensor.add ? run_as.template operator()<true>(x, y)
                   : run_as.template operator()<false>(x, y);
      });
    } else {
      const auto* const x = static_cast<const float*>(tensor.x);
      with_type(tensor.y_type, [&]<class To>(To) {
        run_as.template operator()<false>(x, static_cast<To*>(tensor.y));
      });
    }
  }

  Tensor tensors_[max_tensor_casts];
  std::int64_t pieces_ = 0, count_;
};
// launch() clears the padding of a call. GCC 12 clears other bytes too if a structure with padding
// is in an array that other members follow.
static_assert(std::has_unique_object_representations_v<CastTensors>);

template <class Space>
void run_casts(const Space& space, const CastTensors& casts) {
  if constexpr (on_host<Space>) {
    for_each_piece(space, cast_tensors_label, casts.pieces(), casts);
  } else {
    if (casts.pieces() == 0) return;
    // The hint makes the list an argument of the launch, up to 4 KiB. Otherwise Kokkos copies a
    // functor of more than 512 bytes to constant memory, and the host waits for the last copy.
    const Kokkos::TeamPolicy<Space> teams(space, static_cast<int>(casts.pieces()),
                                          team_threads(space, default_team_size));
    enqueue(cast_tensors_label,
            Kokkos::Experimental::require(teams,
                                          Kokkos::Experimental::WorkItemProperty::HintLightWeight),
            OnTeamGroup<Space, CastTensors>{casts});
  }
}

}  // namespace

void cast_tensors(const Stream& stream, std::span<const TensorCast> casts) {
  const CastTensors all(casts);
  dispatch(stream, [=](const auto& space) { run_casts(space, all); });
}

}  // namespace trireme::kernels
