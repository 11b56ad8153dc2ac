// causal_conv1d on the CPU.
//
// Every path computes on rows: one channel, up to kTimeBlock positions, staged in the arithmetic
// type (float, or double for double) with the W-1 positions before them. Staging is what makes
// every layout, dtype and boundary give the same bits: a position's value depends on its taps
// alone, never on where the tensor, the block or the vector it lies in begins or ends.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/native/CausalConv1d.h>
#include <ATen/native/cpu/CausalConv1dUtils.h>

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace at::native {

namespace {

using vec::Vectorized;

// Positions in a block: whole rows where possible, since the output's pages are touched for the
// first time here; but scratch rows that stay in the first-level cache.
constexpr int64_t kTimeBlock = 2048;
// Where time is not the contiguous dimension, channels are staged together, a cache line of
// float at once, and fewer positions.
constexpr int64_t kChannelTile = 16;
constexpr int64_t kTileTime = 256;
// Channels that one task of the backward accumulates; more only dilutes the work.
constexpr int64_t kChannelsPerTask = 64;
// Elements worth a thread of their own.
constexpr int64_t kGrainSize = 32768;
// Positions summed into one partial weight gradient, at least. It depends on nothing but W, so
// that the order of summation does not depend on the number of threads.
constexpr int64_t kPositionsPerPartial = 8192;

// ---- Rows: the arithmetic ------------------------------------------------------------------

// Tap k of the outputs at t.. is x[t+k]; a masked-out tap is 0.
template <typename acc_t, bool kMasked>
Vectorized<acc_t> load_tap(const acc_t* x, const acc_t* mask, int64_t mask_stride, int64_t k, int64_t t) {
  auto tap = Vectorized<acc_t>::loadu(x + t + k);
  if constexpr (kMasked) {
    tap = tap & Vectorized<acc_t>::loadu(mask + k * mask_stride + t);
  }
  return tap;
}

// A row of `size` outputs and the taps they read. kWidth is W where it is known at compile time,
// else 0. `mask` holds, for each tap, all-ones or all-zeros words; the last tap's mask is the
// output's own (zero at padding). `cut` tells which vectors of outputs have a zero in it: few, as
// they lie across a border between sequences, and the others do not read the mask. Rows are read and written in whole vectors: all
// scratch rows have room for one more.
template <typename acc_t>
struct Row {
  const acc_t* x; // from W-1 positions before the first output
  const acc_t* weight; // [W]
  acc_t bias;
  const uint8_t* cut; // of each vector of outputs
  const acc_t* mask; // [W, mask_stride]
  int64_t mask_stride;
  int64_t width;
  int64_t size;

  // Whether one of the vectors is cut that the outputs [t, t + lanes + more) lie in, t being the first of one.
  bool is_cut(int64_t t, int64_t more = 0) const {
    constexpr int64_t lanes = Vectorized<acc_t>::size();
    uint8_t any = 0;
    for (const auto i : c10::irange(1 + (more + lanes - 1) / lanes)) {
      any |= cut[t / lanes + i];
    }
    return any != 0;
  }
};

template <typename acc_t, int kWidth, bool kMasked>
Vectorized<acc_t> preactivation(const Row<acc_t>& row, int64_t t) {
  const int64_t width = kWidth ? kWidth : row.width;
  auto z = Vectorized<acc_t>(row.bias);
  for (const auto k : c10::irange(width)) {
    const auto tap = load_tap<acc_t, kMasked>(row.x, row.mask, row.mask_stride, k, t);
    z = vec::fmadd(Vectorized<acc_t>(row.weight[k]), tap, z);
  }
  return z;
}

template <typename acc_t, int kWidth, bool kSilu, bool kMasked>
void forward_row(const Row<acc_t>& row, acc_t* out) {
  const int64_t width = kWidth ? kWidth : row.width;
  constexpr auto lanes = Vectorized<acc_t>::size();
  for (int64_t t = 0; t < row.size; t += lanes) {
    const bool cut = kMasked && row.is_cut(t);
    auto y = cut ? preactivation<acc_t, kWidth, true>(row, t) : preactivation<acc_t, kWidth, false>(row, t);
    if constexpr (kSilu) {
      y = silu(y);
    }
    if (cut) {
      y = y & Vectorized<acc_t>::loadu(row.mask + (width - 1) * row.mask_stride + t);
    }
    y.store(out + t);
  }
}

// The gradient of the pre-activation, in place of the gradient of the output.
template <typename acc_t, int kWidth, bool kSilu, bool kMasked>
void preactivation_grad_row(const Row<acc_t>& row, acc_t* grad) {
  const int64_t width = kWidth ? kWidth : row.width;
  constexpr auto lanes = Vectorized<acc_t>::size();
  for (int64_t t = 0; t < row.size; t += lanes) {
    const bool cut = kMasked && row.is_cut(t);
    auto g = Vectorized<acc_t>::loadu(grad + t);
    if constexpr (kSilu) {
      const auto z = cut ? preactivation<acc_t, kWidth, true>(row, t) : preactivation<acc_t, kWidth, false>(row, t);
      const auto s = sigmoid(z);
      g = g * (s * vec::fmadd(z, Vectorized<acc_t>(1) - s, Vectorized<acc_t>(1)));
    }
    if (cut) {
      g = g & Vectorized<acc_t>::loadu(row.mask + (width - 1) * row.mask_stride + t);
    }
    g.store(grad + t);
  }
}

// grad_in[s] = sum_k weight[k] * grad[s + W-1 - k] for s in [0, size); mask and grad are aligned.
template <typename acc_t, int kWidth, bool kMasked>
void input_grad_row(const Row<acc_t>& row, const acc_t* grad, acc_t* grad_in) {
  const int64_t width = kWidth ? kWidth : row.width;
  constexpr auto lanes = Vectorized<acc_t>::size();
  for (int64_t s = 0; s < row.size; s += lanes) {
    const bool cut = kMasked && row.is_cut(s, width - 1);
    auto sum = Vectorized<acc_t>(0);
    for (const auto k : c10::irange(width)) {
      const auto t = s + width - 1 - k;
      auto g = Vectorized<acc_t>::loadu(grad + t);
      if (cut) {
        g = g & Vectorized<acc_t>::loadu(row.mask + k * row.mask_stride + t);
      }
      sum = vec::fmadd(Vectorized<acc_t>(row.weight[k]), g, sum);
    }
    sum.store(grad_in + s);
  }
}

// Adds to sums[k] (a vector of partial sums each) grad * tap k, and to sums[W] grad itself.
template <typename acc_t, int kWidth, bool kMasked>
void weight_grad_row(const Row<acc_t>& row, const acc_t* grad, acc_t* sums) {
  using Vec = Vectorized<acc_t>;
  const int64_t width = kWidth ? kWidth : row.width;
  const auto load_grad = [&](int64_t t) {
    return t + Vec::size() <= row.size ? Vec::loadu(grad + t) : Vec::loadu(grad + t, row.size - t);
  };
  const auto load_input = [&](int64_t k, int64_t t, bool cut) {
    if (cut) {
      return load_tap<acc_t, true>(row.x, row.mask, row.mask_stride, k, t);
    }
    return t + Vec::size() <= row.size ? Vec::loadu(row.x + t + k) : Vec::loadu(row.x + t + k, row.size - t);
  };
  const auto is_cut = [&](int64_t t) { return kMasked && row.is_cut(t); };
  if constexpr (kWidth != 0) {
    std::array<Vec, kWidth + 1> sum;
    for (const auto k : c10::irange(kWidth + 1)) {
      sum[k] = Vec::loadu(sums + k * Vec::size());
    }
    for (int64_t t = 0; t < row.size; t += Vec::size()) {
      const auto g = load_grad(t);
      const bool cut = is_cut(t);
      for (const auto k : c10::irange(kWidth)) {
        sum[k] = vec::fmadd(g, load_input(k, t, cut), sum[k]);
      }
      sum[kWidth] = sum[kWidth] + g;
    }
    for (const auto k : c10::irange(kWidth + 1)) {
      sum[k].store(sums + k * Vec::size());
    }
  } else {
    for (const auto k : c10::irange(width + 1)) {
      auto sum = Vec::loadu(sums + k * Vec::size());
      for (int64_t t = 0; t < row.size; t += Vec::size()) {
        sum = k < width ? vec::fmadd(load_grad(t), load_input(k, t, is_cut(t)), sum) : sum + load_grad(t);
      }
      sum.store(sums + k * Vec::size());
    }
  }
}

// The four row functions of a width, picked once a call.
template <typename acc_t>
struct RowFunctions {
  void (*forward[2])(const Row<acc_t>&, acc_t*); // indexed by "masked"
  void (*preactivation_grad[2])(const Row<acc_t>&, acc_t*);
  void (*input_grad[2])(const Row<acc_t>&, const acc_t*, acc_t*);
  void (*weight_grad[2])(const Row<acc_t>&, const acc_t*, acc_t*);
};

template <typename acc_t, int kWidth, bool kSilu>
RowFunctions<acc_t> row_functions() {
  return {
      {forward_row<acc_t, kWidth, kSilu, false>, forward_row<acc_t, kWidth, kSilu, true>},
      {preactivation_grad_row<acc_t, kWidth, kSilu, false>, preactivation_grad_row<acc_t, kWidth, kSilu, true>},
      {input_grad_row<acc_t, kWidth, false>, input_grad_row<acc_t, kWidth, true>},
      {weight_grad_row<acc_t, kWidth, false>, weight_grad_row<acc_t, kWidth, true>}};
}

template <typename acc_t, bool kSilu>
RowFunctions<acc_t> row_functions(int64_t width) {
  switch (width) {
    case 2:
      return row_functions<acc_t, 2, kSilu>();
    case 3:
      return row_functions<acc_t, 3, kSilu>();
    case 4:
      return row_functions<acc_t, 4, kSilu>();
    default:
      return row_functions<acc_t, 0, kSilu>();
  }
}

// ---- Staging: between the tensors and the rows ---------------------------------------------

// rows[c * row_stride + i] = plane[channel + c, time + i]
template <typename scalar_t, typename acc_t>
void load_rows(
    const Plane<const scalar_t>& from,
    int64_t channel,
    int64_t channels,
    int64_t time,
    int64_t size,
    acc_t* rows,
    int64_t row_stride) {
  if (from.time_stride == 1) {
    for (const auto c : c10::irange(channels)) {
      widen(from.at(channel + c, time), rows + c * row_stride, size);
    }
    return;
  }
  if (from.channel_stride == 1 && channels == kChannelTile) {
    acc_t lane[kChannelTile];
    for (const auto i : c10::irange(size)) {
      widen(from.at(channel, time + i), lane, kChannelTile);
      for (int c = 0; c < kChannelTile; ++c) {
        rows[c * row_stride + i] = lane[c];
      }
    }
    return;
  }
  for (const auto i : c10::irange(size)) {
    for (const auto c : c10::irange(channels)) {
      rows[c * row_stride + i] = *from.at(channel + c, time + i);
    }
  }
}

// The reverse. `rows` is used up.
template <typename scalar_t, typename acc_t>
void store_rows(
    const Plane<scalar_t>& to,
    int64_t channel,
    int64_t channels,
    int64_t time,
    int64_t size,
    acc_t* rows,
    int64_t row_stride) {
  if (to.time_stride == 1) {
    for (const auto c : c10::irange(channels)) {
      narrow(rows + c * row_stride, to.at(channel + c, time), size);
    }
    return;
  }
  // Narrowed in place first, a vector at a time, then scattered.
  auto* narrowed = reinterpret_cast<scalar_t*>(rows);
  const int64_t narrowed_stride = row_stride * (sizeof(acc_t) / sizeof(scalar_t));
  if constexpr (!std::is_same_v<scalar_t, acc_t>) {
    for (const auto c : c10::irange(channels)) {
      narrow(rows + c * row_stride, narrowed + c * narrowed_stride, size);
    }
  }
  if (to.channel_stride == 1 && channels == kChannelTile) {
    scalar_t lane[kChannelTile];
    for (const auto i : c10::irange(size)) {
      for (int c = 0; c < kChannelTile; ++c) {
        lane[c] = narrowed[c * narrowed_stride + i];
      }
      std::memcpy(to.at(channel, time + i), lane, sizeof(lane));
    }
    return;
  }
  for (const auto i : c10::irange(size)) {
    for (const auto c : c10::irange(channels)) {
      *to.at(channel + c, time + i) = narrowed[c * narrowed_stride + i];
    }
  }
}

// ---- Sequences: what the rows are cut from -------------------------------------------------

// A stretch of one batch row with a state of its own.
struct Sequence {
  int64_t row; // of the input
  int64_t start;
  int64_t size;
  int64_t state; // row of the states
};

// kTimeBlock positions of a sequence; an empty sequence has one empty block.
struct Block {
  int64_t sequence;
  int64_t time; // relative to the sequence
  int64_t size;
};

std::vector<Sequence> list_sequences(const CausalConv1dArgs& args) {
  const int64_t time = args.input.size(2);
  std::vector<Sequence> sequences;
  if (!args.cu_seqlens.defined()) {
    for (const auto b : c10::irange(args.input.size(0))) {
      sequences.push_back({b, 0, time, b});
    }
    return sequences;
  }
  const Indices bounds(args.cu_seqlens);
  const int64_t segments = args.cu_seqlens.size(0) - 1;
  TORCH_CHECK_VALUE(
      bounds.get(0, 0) == 0 && bounds.get(0, segments) == time,
      "causal_conv1d(): expected cu_seqlens to run from 0 to T = ", time, ", but got ", bounds.get(0, 0), " to ",
      bounds.get(0, segments));
  for (const auto i : c10::irange(segments)) {
    const auto start = bounds.get(0, i);
    const auto end = bounds.get(0, i + 1);
    TORCH_CHECK_VALUE(
        start <= end && end <= time,
        "causal_conv1d(): expected cu_seqlens not to decrease, but got ", start, " before ", end, " at segment ", i);
    sequences.push_back({0, start, end - start, i});
  }
  return sequences;
}

std::vector<Block> list_blocks(const std::vector<Sequence>& sequences) {
  std::vector<Block> blocks;
  for (const auto i : c10::irange(static_cast<int64_t>(sequences.size()))) {
    int64_t time = 0;
    do {
      blocks.push_back({i, time, std::min(kTimeBlock, sequences[i].size - time)});
      time += kTimeBlock;
    } while (time < sequences[i].size);
  }
  return blocks;
}

// Where the places of a sequence's final state come from.
class FinalState {
 public:
  static constexpr int64_t kZero = std::numeric_limits<int64_t>::min();

  FinalState(const Sequence& sequence, const Indices& seq_idx, int64_t width)
      : sequence_(sequence), seq_idx_(seq_idx), width_(width), last_(sequence.size - 1) {
    if (seq_idx_.defined()) {
      while (last_ >= 0 && at(last_) < 0) {
        --last_;
      }
    }
  }

  // The position that place j holds: below 0 it is place W-1 + position of the initial state.
  int64_t source(int64_t j) const {
    const auto position = last_ - (width_ - 2) + j;
    if (!seq_idx_.defined() || sequence_.size == 0) {
      return position;
    }
    const bool counts = last_ >= 0 && at(std::max<int64_t>(position, 0)) == at(last_);
    return counts ? position : kZero;
  }

 private:
  int64_t at(int64_t time) const {
    return seq_idx_.get(sequence_.row, sequence_.start + time);
  }

  const Sequence& sequence_;
  const Indices& seq_idx_;
  int64_t width_;
  int64_t last_;
};

// The taps that count, for `size` outputs of a sequence from `time` on: those whose seq_idx is
// the output's. The initial state has the index of position 0.
template <typename acc_t>
class TapMask {
 public:
  TapMask(int64_t width, int64_t capacity)
      : width_(width),
        stride_(capacity + kLanes),
        words_(width * stride_, 0),
        cut_(at::divup(stride_, kLanes) + 1, 0) {}

  // Whether any tap is masked out.
  bool plan(const Sequence& sequence, const Indices& seq_idx, int64_t time, int64_t size) {
    if (!seq_idx.defined() || size == 0) {
      return false;
    }
    const auto end = std::min(time + size, sequence.size);
    // index[t - time] belongs to position t, from W before the first one on.
    index_.resize(width_ + end - time);
    for (const auto i : c10::irange(static_cast<int64_t>(index_.size()))) {
      index_[i] = seq_idx.get(sequence.row, sequence.start + std::max<int64_t>(time - width_ + i, 0));
    }
    const auto* index = index_.data() + width_;
    const auto differs = [&](int64_t t) { return index[t] != index[t - 1]; };
    int64_t border = -width_; // the last position so far that differs from the one before
    for (const auto t : c10::irange(1 - width_, 0)) {
      border = differs(t) ? t : border;
    }

    bool any = false;
    const auto count = end - time;
    for (int64_t start = 0; start < count; start += kLanes) {
      const auto lanes = std::min(kLanes, count - start);
      bool borders = false;
      for (const auto lane : c10::irange(lanes)) {
        borders |= differs(start + lane);
      }
      const bool uniform = !borders && border <= start - (width_ - 1) && index[start] >= 0;
      for (auto lane = lanes - 1; borders && lane >= 0; --lane) {
        if (differs(start + lane)) {
          border = start + lane;
          break;
        }
      }
      any |= !uniform;
      cut_[start / kLanes] = !uniform || lanes < kLanes; // what a last vector holds beyond its row is masked out
      for (const auto k : c10::irange(width_)) {
        auto* word = words_.data() + k * stride_ + start;
        for (const auto lane : c10::irange(kLanes)) {
          const auto t = start + lane;
          word[lane] = lane < lanes && (uniform || (index[t] >= 0 && index[t + k - (width_ - 1)] == index[t])) ? kOnes : 0;
        }
      }
    }
    return any;
  }

  // Whether tap k of the planned output t counts.
  bool counts(int64_t k, int64_t t) const {
    return words_[k * stride_ + t] != 0;
  }

  const uint8_t* cut() const {
    return cut_.data();
  }

  const acc_t* data() const {
    return reinterpret_cast<const acc_t*>(words_.data());
  }

  int64_t stride() const {
    return stride_;
  }

 private:
  using word_t = std::conditional_t<sizeof(acc_t) == 8, uint64_t, uint32_t>;
  static constexpr word_t kOnes = ~word_t(0);
  static constexpr int64_t kLanes = Vectorized<acc_t>::size();
  int64_t width_;
  int64_t stride_;
  std::vector<word_t> words_;
  std::vector<uint8_t> cut_;
  std::vector<int64_t> index_;
};

// Scratch rows: `rows` of them, each of `size` and one vector more. Zeroed once, so that what a
// last vector holds beyond its row is never a denormal or a NaN left over.
template <typename acc_t>
struct Scratch {
  Scratch(int64_t rows, int64_t size)
      : stride(size + Vectorized<acc_t>::size()), data(rows * stride, acc_t(0)) {}

  acc_t* row(int64_t c) {
    return data.data() + c * stride;
  }

  int64_t stride;
  std::vector<acc_t> data;
};

// The positions [from, from + size) of a sequence, for the channels of a tile: before 0 the
// initial state (or 0), beyond the end 0.
template <typename scalar_t, typename acc_t>
void load_window(
    const Plane<const scalar_t>& input,
    const Plane<const scalar_t>& state,
    const Sequence& sequence,
    int64_t width,
    int64_t channel,
    int64_t channels,
    int64_t from,
    int64_t size,
    Scratch<acc_t>& rows) {
  const auto begin = std::clamp<int64_t>(-from, 0, size);
  const auto end = std::clamp<int64_t>(sequence.size - from, begin, size);
  for (const auto c : c10::irange(channels)) {
    auto* row = rows.row(c);
    for (const auto i : c10::irange(begin)) {
      row[i] = state.data ? static_cast<acc_t>(*state.at(channel + c, width - 1 + from + i)) : acc_t(0);
    }
    std::fill(row + end, row + size, acc_t(0));
  }
  load_rows(
      input, channel, channels, sequence.start + from + begin, end - begin, rows.row(0) + begin, rows.stride);
}

// How a call's blocks are staged: row by row, or in tiles of several channels if any of its
// tensors has time strided.
struct Staging {
  Staging(std::initializer_list<Tensor> tensors) {
    for (const auto& tensor : tensors) {
      if (tensor.defined() && tensor.stride(2) != 1) {
        channels = kChannelTile;
        time = kTileTime;
      }
    }
  }

  // Calls f with the parts of a block that are staged at once; an empty block is one part.
  template <typename F>
  void for_each_part(const Block& block, const F& f) const {
    int64_t offset = 0;
    do {
      f(Block{block.sequence, block.time + offset, std::min(time, block.size - offset)});
      offset += time;
    } while (offset < block.size);
  }

  int64_t channels = 1;
  int64_t time = kTimeBlock;
};

// ---- Forward -------------------------------------------------------------------------------

template <typename scalar_t>
void write_final_state(
    const CausalConv1dArgs& args,
    const std::vector<Sequence>& sequences,
    const Indices& seq_idx,
    const Tensor& final_state) {
  const int64_t channels = args.input.size(1);
  const int64_t width = args.weight.size(1);
  at::parallel_for(0, static_cast<int64_t>(sequences.size()), 1, [&](int64_t begin, int64_t end) {
    for (const auto i : c10::irange(begin, end)) {
      const auto& sequence = sequences[i];
      const auto input = plane<const scalar_t>(args.input, sequence.row);
      const auto initial = plane<const scalar_t>(args.initial_state, sequence.state);
      const auto output = plane<scalar_t>(final_state, sequence.state);
      const FinalState final(sequence, seq_idx, width);
      for (const auto j : c10::irange(width - 1)) {
        const auto source = final.source(j);
        for (const auto c : c10::irange(channels)) {
          *output.at(c, j) = source >= 0 ? *input.at(c, sequence.start + source)
              : source != FinalState::kZero && initial.data ? *initial.at(c, width - 1 + source)
                                                           : scalar_t(0);
        }
      }
    }
  });
}

template <typename scalar_t>
void forward(const CausalConv1dArgs& args, const Tensor& output, const Tensor& final_state) {
  using acc_t = at::opmath_type<scalar_t>;
  const int64_t channels = args.input.size(1);
  const int64_t width = args.weight.size(1);
  const auto sequences = list_sequences(args);
  const Indices seq_idx(args.seq_idx);
  if (output.numel() > 0) {
    const auto functions = args.silu ? row_functions<acc_t, true>(width) : row_functions<acc_t, false>(width);
    const Parameter<scalar_t, acc_t> weight(args.weight), bias(args.bias);
    const auto blocks = list_blocks(sequences);
    const Staging staging({args.input, output});
    const auto tasks_per_block = at::divup(channels, kChannelsPerTask);
    const auto tasks = static_cast<int64_t>(blocks.size()) * tasks_per_block;
    const auto grain = at::divup(kGrainSize, std::min(kTimeBlock, args.input.size(2)) * kChannelsPerTask);

    at::parallel_for(0, tasks, grain, [&](int64_t begin, int64_t end) {
      Scratch<acc_t> x(staging.channels, width - 1 + staging.time), y(staging.channels, staging.time);
      TapMask<acc_t> mask(width, staging.time);
      std::vector<acc_t> taps(width);
      for (const auto task : c10::irange(begin, end)) {
        const auto& block = blocks[task / tasks_per_block];
        const auto& sequence = sequences[block.sequence];
        const auto input = plane<const scalar_t>(args.input, sequence.row);
        const auto state = plane<const scalar_t>(args.initial_state, sequence.state);
        const auto out = plane<scalar_t>(output, sequence.row);
        const auto first = task % tasks_per_block * kChannelsPerTask;
        const auto last = std::min(first + kChannelsPerTask, channels);
        staging.for_each_part(block, [&](const Block& part) {
          const bool masked = mask.plan(sequence, seq_idx, part.time, part.size);
          for (auto channel = first; channel < last; channel += staging.channels) {
            const auto count = std::min(staging.channels, last - channel);
            load_window(
                input, state, sequence, width, channel, count, part.time - (width - 1), width - 1 + part.size, x);
            for (const auto c : c10::irange(count)) {
              for (const auto k : c10::irange(width)) {
                taps[k] = weight.get(channel + c, k);
              }
              functions.forward[masked](
                  {x.row(c), taps.data(), bias.get(channel + c), mask.cut(), mask.data(), mask.stride(), width,
                   part.size},
                  y.row(c));
            }
            store_rows(out, channel, count, sequence.start + part.time, part.size, y.row(0), y.stride);
          }
        });
      }
    });
  }
  if (final_state.defined()) {
    write_final_state<scalar_t>(args, sequences, seq_idx, final_state);
  }
}

// ---- Backward ------------------------------------------------------------------------------

// One task takes some channels through the blocks of one partial sum. Weight and bias gradients
// are summed per vector lane along time, block after block; then over the lanes; then over the
// partials: an order that neither the layout nor the number of threads changes.
template <typename scalar_t>
class Backward {
 public:
  Backward(
      const CausalConv1dArgs& args,
      const Tensor& grad_output,
      const Tensor& grad_final_state,
      const CausalConv1dGrads& grads)
      : args_(args),
        grad_output_(grad_output),
        grad_final_state_(grad_final_state),
        grads_(grads),
        channels_(args.input.size(1)),
        width_(args.weight.size(1)),
        sequences_(list_sequences(args)),
        blocks_(list_blocks(sequences_)),
        seq_idx_(args.seq_idx),
        weight_(args.weight),
        bias_(args.bias),
        functions_(args.silu ? row_functions<acc_t, true>(width_) : row_functions<acc_t, false>(width_)),
        staging_({args.input, grad_output, grads.input}) {
    // Whole blocks to a partial; `blocks_` is the same whatever the layout and the machine.
    const auto blocks = static_cast<int64_t>(blocks_.size());
    blocks_per_partial_ = at::divup(kPositionsPerPartial * at::divup(width_, 4), kTimeBlock);
    num_partials_ = std::max<int64_t>(at::divup(blocks, blocks_per_partial_), 1);
  }

  void run() {
    const bool parameters = grads_.weight.defined() || grads_.bias.defined();
    std::vector<acc_t> partials(parameters ? num_partials_ * channels_ * (width_ + 1) : 0);
    const auto channels_per_task = std::clamp<int64_t>(
        channels_ * num_partials_ / (8 * at::get_num_threads()) / kChannelTile * kChannelTile, kChannelTile, kChannelsPerTask);
    const auto tasks_per_partial = at::divup(channels_, channels_per_task);
    at::parallel_for(0, num_partials_ * tasks_per_partial, 1, [&](int64_t begin, int64_t end) {
      Task task(*this);
      for (const auto i : c10::irange(begin, end)) {
        const auto partial = i / tasks_per_partial;
        const auto first = i % tasks_per_partial * channels_per_task;
        const auto last = std::min(first + channels_per_task, channels_);
        task.run(partial, first, last, parameters ? partials.data() + partial * channels_ * (width_ + 1) : nullptr);
      }
    });
    if (parameters) {
      reduce(partials);
    }
  }

 private:
  using acc_t = at::opmath_type<scalar_t>;
  using Vec = Vectorized<acc_t>;

  // The scratch of one thread.
  struct Task {
    explicit Task(const Backward& call)
        : op(call),
          x(op.staging_.channels, 2 * (op.width_ - 1) + op.staging_.time),
          grad(op.staging_.channels, 2 * (op.width_ - 1) + op.staging_.time),
          grad_in(op.staging_.channels, op.width_ - 1 + op.staging_.time),
          mask(op.width_, op.width_ - 1 + op.staging_.time),
          taps(op.width_) {}

    void run(int64_t partial, int64_t first, int64_t last, acc_t* partial_sums) {
      sums.assign((last - first) * (op.width_ + 1) * Vec::size(), acc_t(0));
      const auto begin = partial * op.blocks_per_partial_;
      const auto end = std::min<int64_t>(begin + op.blocks_per_partial_, op.blocks_.size());
      for (const auto i : c10::irange(begin, end)) {
        const auto& sequence = op.sequences_[op.blocks_[i].sequence];
        op.staging_.for_each_part(op.blocks_[i], [&](const Block& part) {
          // The part's inputs reach the outputs up to W-1 positions later.
          const bool masked = mask.plan(sequence, op.seq_idx_, part.time, part.size + op.width_ - 1);
          for (auto channel = first; channel < last; channel += op.staging_.channels) {
            const auto count = std::min(op.staging_.channels, last - channel);
            tile(part, sequence, masked, channel, count, sums.data() + sums_offset(channel - first));
          }
        });
      }
      if (partial_sums) {
        for (const auto i : c10::irange((last - first) * (op.width_ + 1))) {
          const auto* lanes = sums.data() + i * Vec::size();
          acc_t sum = lanes[0];
          for (const auto lane : c10::irange(1, Vec::size())) {
            sum += lanes[lane];
          }
          partial_sums[first * (op.width_ + 1) + i] = sum;
        }
      }
    }

    int64_t sums_offset(int64_t channel) const {
      return channel * (op.width_ + 1) * Vec::size();
    }

    void tile(
        const Block& block,
        const Sequence& sequence,
        bool masked,
        int64_t channel,
        int64_t count,
        acc_t* sums) {
      const auto halo = op.width_ - 1;
      const auto reach = block.size + halo; // outputs that read the block
      const auto inside = std::min(reach, sequence.size - block.time); // of these, those that exist
      const bool before = block.time == 0 && halo > 0 && op.grads_.initial_state.defined();

      load_window(
          plane<const scalar_t>(op.args_.input, sequence.row),
          plane<const scalar_t>(op.args_.initial_state, sequence.state),
          sequence, op.width_, channel, count, block.time - halo, reach + halo, x);
      load_grad(block, sequence, channel, count, inside);
      for (const auto c : c10::irange(count)) {
        for (const auto k : c10::irange(op.width_)) {
          taps[k] = op.weight_.get(channel + c, k);
        }
        auto* g = grad.row(c) + halo; // before it: W-1 zeros, for the initial state's gradient
        Row<acc_t> row{
            x.row(c), taps.data(), op.bias_.get(channel + c), mask.cut(), mask.data(), mask.stride(), op.width_,
            inside};
        op.functions_.preactivation_grad[masked](row, g);
        std::fill(g + inside, g + reach + Vec::size(), acc_t(0));
        row.size = block.size;
        if (op.grads_.weight.defined() || op.grads_.bias.defined()) {
          op.functions_.weight_grad[masked](row, g, sums + sums_offset(c));
        }
        if (before) {
          initial_state_grad(row, g, masked, grad_in.row(c));
          finish_initial_state(sequence, channel + c, grad_in.row(c));
        }
        if (op.grads_.input.defined()) {
          op.functions_.input_grad[masked](row, g, grad_in.row(c));
          add_final_state(block, sequence, channel + c, grad_in.row(c));
        }
      }
      if (op.grads_.input.defined()) {
        store_rows(
            plane<scalar_t>(op.grads_.input, sequence.row),
            channel, count, sequence.start + block.time, block.size, grad_in.row(0), grad_in.stride);
      }
    }

    void load_grad(const Block& block, const Sequence& sequence, int64_t channel, int64_t count, int64_t inside) {
      const auto halo = op.width_ - 1;
      for (const auto c : c10::irange(count)) {
        std::fill_n(grad.row(c), op.grad_output_.defined() ? halo : halo + inside, acc_t(0));
      }
      if (op.grad_output_.defined()) {
        load_rows(
            plane<const scalar_t>(op.grad_output_, sequence.row),
            channel, count, sequence.start + block.time, inside, grad.row(0) + halo, grad.stride);
      }
    }

    // The W-1 positions before a sequence, by the formula of input_grad_row: few, so one by one.
    void initial_state_grad(const Row<acc_t>& row, const acc_t* g, bool masked, acc_t* out) const {
      const auto halo = op.width_ - 1;
      for (const auto s : c10::irange(halo)) {
        acc_t sum = 0;
        for (const auto k : c10::irange(op.width_)) {
          const auto t = s - k; // s + (W-1) - k, counted from the sequence's start
          if (t >= 0 && (!masked || mask.counts(k, t))) {
            sum += row.weight[k] * g[t];
          }
        }
        out[s] = sum;
      }
    }

    // What the final state passes on to the initial one, and the store.
    void finish_initial_state(const Sequence& sequence, int64_t channel, acc_t* out) const {
      const auto halo = op.width_ - 1;
      if (op.grad_final_state_.defined()) {
        const auto final_grad = plane<const scalar_t>(op.grad_final_state_, sequence.state);
        const FinalState final(sequence, op.seq_idx_, op.width_);
        for (const auto j : c10::irange(halo)) {
          const auto source = final.source(j);
          if (source < 0 && source != FinalState::kZero) {
            out[halo + source] += static_cast<acc_t>(*final_grad.at(channel, j));
          }
        }
      }
      const auto to = plane<scalar_t>(op.grads_.initial_state, sequence.state);
      for (const auto s : c10::irange(halo)) {
        *to.at(channel, s) = static_cast<scalar_t>(out[s]);
      }
    }

    // What the final state passes on to the inputs of the block.
    void add_final_state(const Block& block, const Sequence& sequence, int64_t channel, acc_t* out) const {
      if (!op.grad_final_state_.defined()) {
        return;
      }
      const auto final_grad = plane<const scalar_t>(op.grad_final_state_, sequence.state);
      const FinalState final(sequence, op.seq_idx_, op.width_);
      for (const auto j : c10::irange(op.width_ - 1)) {
        const auto i = final.source(j) - block.time;
        if (final.source(j) >= 0 && i >= 0 && i < block.size) {
          out[i] += static_cast<acc_t>(*final_grad.at(channel, j));
        }
      }
    }

    const Backward& op;
    Scratch<acc_t> x, grad, grad_in;
    TapMask<acc_t> mask;
    std::vector<acc_t> taps;
    std::vector<acc_t> sums; // [channels, W+1, lanes]
  };

  void reduce(const std::vector<acc_t>& partials) const {
    const auto sum = [&](int64_t channel, int64_t k) {
      acc_t total = 0;
      for (const auto partial : c10::irange(num_partials_)) {
        total += partials[(partial * channels_ + channel) * (width_ + 1) + k];
      }
      return total;
    };
    if (grads_.weight.defined()) {
      store_parameter(grads_.weight, [&](int64_t channel, int64_t k) { return sum(channel, k); });
    }
    if (grads_.bias.defined()) {
      store_parameter(grads_.bias.unsqueeze(1), [&](int64_t channel, int64_t) { return sum(channel, width_); });
    }
  }

  template <typename Value>
  static void store_parameter(const Tensor& grad, const Value& value) {
    const auto store = [&](auto* data) {
      for (const auto channel : c10::irange(grad.size(0))) {
        for (const auto k : c10::irange(grad.size(1))) {
          data[channel * grad.stride(0) + k * grad.stride(1)] =
              static_cast<std::remove_pointer_t<decltype(data)>>(value(channel, k));
        }
      }
    };
    if (grad.scalar_type() == c10::CppTypeToScalarType<scalar_t>::value) {
      store(grad.data_ptr<scalar_t>());
    } else {
      store(grad.data_ptr<acc_t>());
    }
  }

  const CausalConv1dArgs& args_;
  const Tensor& grad_output_;
  const Tensor& grad_final_state_;
  const CausalConv1dGrads& grads_;
  int64_t channels_;
  int64_t width_;
  std::vector<Sequence> sequences_;
  std::vector<Block> blocks_;
  Indices seq_idx_;
  Parameter<scalar_t, acc_t> weight_, bias_;
  RowFunctions<acc_t> functions_;
  Staging staging_;
  int64_t blocks_per_partial_;
  int64_t num_partials_;
};

void causal_conv1d_kernel(const CausalConv1dArgs& args, const Tensor& output, const Tensor& final_state) {
  AT_DISPATCH_FLOATING_TYPES_AND2(kHalf, kBFloat16, args.input.scalar_type(), "causal_conv1d_cpu", [&] {
    forward<scalar_t>(args, output, final_state);
  });
}

void causal_conv1d_backward_kernel(
    const CausalConv1dArgs& args,
    const Tensor& grad_output,
    const Tensor& grad_final_state,
    const CausalConv1dGrads& grads) {
  AT_DISPATCH_FLOATING_TYPES_AND2(kHalf, kBFloat16, args.input.scalar_type(), "causal_conv1d_backward_cpu", [&] {
    Backward<scalar_t>(args, grad_output, grad_final_state, grads).run();
  });
}

} // namespace

REGISTER_DISPATCH(causal_conv1d_stub, &causal_conv1d_kernel)
REGISTER_DISPATCH(causal_conv1d_backward_stub, &causal_conv1d_backward_kernel)

} // namespace at::native
