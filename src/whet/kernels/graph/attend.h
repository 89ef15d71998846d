// Attention of whole sequences: out = softmax(scale q k^T + mask) v for each batch and head.
//
// An item of work is some query rows of one head. Keys and values are packed 512 at a time, in which they stay in the
// second-level cache: keys sixteen side by side, so that products give scores without sums across lanes. Up to six rows
// then go through them together. A row's scores of 512 keys have a maximum of their own and are joined in order (Milakov and
// Gimelshein, 2018, arXiv:1805.02867): the result does not depend on how rows are shared out, nor on keys at the end
// that the row may not see.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "../linear/tile.h"
#include "../paged_attention/tile.h"
#include "../pool.h"
#include "seen.h"
#include "view.h"

namespace whet::graph {

// q, out [B][H][T][width]; k, v [B][kv heads][S][width]; mask [B][H][T][S], bool (seen) or float (added), data null where
// there is none. causal: row i sees the keys 0..i.
struct Attend {
  View q, k, v, out, mask;
  float scale;
  int32_t is_causal, is_bf16;
};

namespace attention_of_rows {

using attention::Bf16s;
using attention::MAX_ROWS;
using attention::WIDE;

constexpr int KEYS = 512;  // packed at once
constexpr int MIN_ROWS = 48, MOST_ROWS = 192;  // of an item: packing costs as much as four rows
constexpr float UNSEEN = -std::numeric_limits<float>::infinity();
constexpr float LOG2_E = 1.44269504088896341f;

inline int padded(int width) { return (width + LANES - 1) / LANES * LANES; }

// Query rows of one batch and head.
struct Item {
  int batch, head, kv_head, row, num_rows;
};

// Room of one thread.
template <typename Type>
struct Desk {
  using Element = typename Type::Element;
  Element *keys, *values, *q, *weights;
  float *row, *scores, *mask, *out, *most, *sum;  // out [rows][width of values], most and sum [rows]

  Desk(const Attend& op, int num_rows) {
    const size_t D = padded(op.q.width()), Dv = padded(op.v.width()), rows = padded(num_rows);
    static thread_local Floats room;
    room.resize(KEYS * (D + Dv) + D + MAX_ROWS * (D + 3 * KEYS) + rows * (Dv + 2));
    float* at = room.data();
    const auto take = [&](size_t count) { return std::exchange(at, at + count); };
    keys = reinterpret_cast<Element*>(take(KEYS * D)), values = reinterpret_cast<Element*>(take(KEYS * Dv));
    q = reinterpret_cast<Element*>(take(MAX_ROWS * D)), weights = reinterpret_cast<Element*>(take(MAX_ROWS * KEYS));
    row = take(D), scores = take(MAX_ROWS * KEYS), mask = take(MAX_ROWS * KEYS);
    out = take(rows * Dv), most = take(rows), sum = take(rows);
  }
};

inline int64_t offset(const View& view, int batch, int head, int row) {
  return batch * view.stride[2] + head * view.stride[3] + row * view.stride[4];
}

// Whether rows are floats side by side.
inline bool is_plain(const View& view) { return view.type == whet::graph::Type::f32 && view.stride[DIMS - 1] == 1; }

// One row of `width` numbers, times a factor, then zeros to whole lanes.
inline void gather(const View& view, int64_t at, int width, float factor, float* to) {
  if (is_plain(view)) {
    const float* from = view.floats(at);
    for (int i = 0; i < width; i += LANES)
      store(to + i, mul(load_part(from + i, std::min(LANES, width - i), 0.0f), set1(factor)));
    return;
  }
  read_floats(view, at, width, to);
  std::fill(to + width, to + padded(width), 0.0f);
  for (int i = 0; i < padded(width); i += LANES) store(to + i, mul(load(to + i), set1(factor)));
}

// What follows packs keys and values: `is_seen` says which of them count, null that all do. The others become zeros.
inline bool is_there(const uint8_t* is_seen, int i, int count) { return i < count && (is_seen == nullptr || is_seen[i]); }

// Sixteen keys, of which `count` are there, as [D / PACK][16][PACK].
template <typename Type>
void pack_keys(const View& k, int64_t at, int count, const uint8_t* is_seen, int D, typename Type::Element* to) {
  static thread_local Floats rows, narrow;
  const int stride = padded(D);
  const auto are_all_seen = [&] { return is_seen == nullptr || std::all_of(is_seen, is_seen + LANES, [](auto is) { return is; }); };
  if constexpr (Type::PACK == 1)
    if (count == LANES && D == stride && is_plain(k) && are_all_seen()) {
      for (int d = 0; d < D; d += LANES) transpose_16(k.floats(at) + d, k.stride[DIMS - 2], to + LANES * d);
      return;
    }
  rows.resize(LANES * stride), narrow.resize(LANES * stride);
  for (int i = 0; i < LANES; i++) {
    float* row = rows.data() + stride * i;
    is_there(is_seen, i, count) ? gather(k, at + i * k.stride[DIMS - 2], D, 1.0f, row) : std::fill(row, row + stride, 0.0f);
  }
  if constexpr (Type::PACK == 1) {
    for (int d = 0; d < stride; d += LANES) transpose_16(rows.data() + d, stride, to + LANES * d);
  } else {
    auto* pairs = reinterpret_cast<uint16_t*>(narrow.data());
    const int wide = (stride / 2 + LANES - 1) / LANES * LANES;  // pairs of a row
    std::memset(pairs, 0, sizeof(float) * LANES * wide);
    for (int i = 0; i < LANES; i++)
      for (int d = 0; d < stride; d += LANES) store_bf16(pairs + 2 * wide * i + d, load(rows.data() + stride * i + d));
    alignas(64) float turned[LANES * LANES];
    for (int d = 0; 2 * d < stride; d += LANES) {
      transpose_16(narrow.data() + d, wide, turned);
      std::memcpy(to + 2 * LANES * d, turned, sizeof(float) * LANES * std::min(LANES, stride / 2 - d));
    }
  }
}

// PACK values as [width][PACK]; those from `count` on are zeros.
template <typename Type>
void pack_values(const View& v, int64_t at, int count, const uint8_t* is_seen, int width, typename Type::Element* to) {
  if constexpr (Type::PACK == 1) {
    is_there(is_seen, 0, count) ? gather(v, at, width, 1.0f, to) : std::fill(to, to + padded(width), 0.0f);
  } else {
    static thread_local Floats rows;
    const int wide = padded(width);
    rows.resize(3 * wide);
    float *first = rows.data(), *second = first + wide;
    auto* narrow = reinterpret_cast<uint16_t*>(second + wide);
    is_there(is_seen, 0, count) ? gather(v, at, width, 1.0f, first) : std::fill(first, first + wide, 0.0f);
    is_there(is_seen, 1, count) ? gather(v, at + v.stride[DIMS - 2], width, 1.0f, second) : std::fill(second, second + wide, 0.0f);
    for (int d = 0; d < wide; d += LANES) store_bf16(narrow + d, load(first + d)), store_bf16(narrow + wide + d, load(second + d));
    for (int d = 0; d < wide; d++) to[2 * d] = narrow[d], to[2 * d + 1] = narrow[wide + d];
  }
}

// scores [R][KEYS] of C blocks of sixteen keys.
template <typename Type, int R, int C>
void score(const typename Type::Element* q, const typename Type::Element* keys, int D, float* scores) {
  const int stride = padded(D);
  F sum[R][C];
  unrolled<R>([&](auto r) { unrolled<C>([&](auto c) { sum[r][c] = set1(0.0f); }); });
  for (int d = 0; d < D; d += Type::PACK) {
    typename Type::Vector k[C];
    unrolled<C>([&](auto c) { k[c] = Type::many(keys + (stride * c + d) * LANES); });
    unrolled<R>([&](auto r) {
      const auto x = Type::one(q + stride * r + d);
      unrolled<C>([&](auto c) { sum[r][c] = Type::dot(sum[r][c], x, k[c]); });
    });
  }
  unrolled<R>([&](auto r) { unrolled<C>([&](auto c) { store(scores + KEYS * r + LANES * c, sum[r][c]); }); });
}

// out [R][width] = old * out + fresh * (weights [R][KEYS] times values), of 16 * C dimensions and the keys from..to - 1.
template <typename Type, int R, int C>
void mix(const typename Type::Element* weights, const typename Type::Element* values, int width, int from, int to,
         const float* old, const float* fresh, float* out) {
  F sum[R][C];
  unrolled<R>([&](auto r) { unrolled<C>([&](auto c) { sum[r][c] = set1(0.0f); }); });
  for (int s = from; s < to; s += Type::PACK) {
    typename Type::Vector v[C];
    unrolled<C>([&](auto c) { v[c] = Type::many(values + (width * (s / Type::PACK) + LANES * c) * Type::PACK); });
    unrolled<R>([&](auto r) {
      const auto x = Type::one(weights + KEYS * r + s);
      unrolled<C>([&](auto c) { sum[r][c] = Type::dot(sum[r][c], x, v[c]); });
    });
  }
  unrolled<R>([&](auto r) {
    unrolled<C>([&](auto c) {
      float* at = out + width * r + LANES * c;
      store(at, fma(load(at), set1(old[r]), mul(sum[r][c], set1(fresh[r]))));
    });
  });
}

// What of a mask is added to the scores of the keys first..first + count - 1; UNSEEN up to whole lanes.
inline void read_mask(const View& mask, int64_t at, int first, int count, float* to) {
  const int64_t from = at + first * mask.stride[DIMS - 1];
  read_floats(mask, from, count, to);
  if (mask.type == Type::boolean)
    for (int i = 0; i < count; i++) to[i] = to[i] != 0.0f ? 0.0f : UNSEEN;
  std::fill(to + count, to + padded(count), UNSEEN);
}

// Keys that are packed: first..first + count - 1, of which blocks from..to - 1 hold one that some row sees.
struct Chunk {
  int first, count, from, to;
};

template <typename Type>
class QueryRows {
 public:
  // seen: null where no key is left out.
  QueryRows(const Attend& op, const Item& item, const Seen* seen) : op_(op), item_(item), desk_(op, item.num_rows) {
    D_ = op.q.width(), S_ = static_cast<int>(op.k.shape[DIMS - 2]), width_ = padded(op.v.width());
    if (seen != nullptr) is_seen_ = seen->is_seen + static_cast<int64_t>(S_) * item.batch, S_ = seen->range(item.batch).second;
    shares_mask_ = op.mask.data != nullptr && mask_rows_are_equal();
  }

  void run() {
    std::fill(desk_.out, desk_.out + width_ * item_.num_rows, 0.0f);
    std::fill(desk_.most, desk_.most + item_.num_rows, UNSEEN);
    std::fill(desk_.sum, desk_.sum + item_.num_rows, 0.0f);
    const int end = op_.is_causal ? std::min(S_, item_.row + item_.num_rows) : S_;
    for (int first = 0; first < end; first += KEYS) {
      const Chunk chunk = open(first, std::min(KEYS, end - first));
      if (chunk.from >= chunk.to) continue;
      const int tiles = (item_.num_rows + MAX_ROWS - 1) / MAX_ROWS;
      for (int tile = 0; tile < tiles; tile++) {
        const int row = item_.num_rows * tile / tiles, next = item_.num_rows * (tile + 1) / tiles;
        of_rows(next - row, std::make_integer_sequence<int, MAX_ROWS>())(*this, chunk, row);
      }
    }
    for (int r = 0; r < item_.num_rows; r++) finish(r);
  }

 private:
  using Element = typename Type::Element;
  using Step = void (*)(QueryRows&, const Chunk&, int);

  template <int... COUNT>
  static Step of_rows(int count, std::integer_sequence<int, COUNT...>) {
    static constexpr Step table[] = {step<COUNT + 1>...};
    return table[count - 1];
  }

  // Whether all rows see the same keys: masks are often given for each row where one for each sequence would do.
  bool mask_rows_are_equal() const {
    const View& mask = op_.mask;
    if (mask.stride[DIMS - 2] == 0) return true;
    if (mask.stride[DIMS - 1] != 1) return false;
    const size_t bytes = mask.type == whet::graph::Type::boolean ? 1 : sizeof(float);
    const uint8_t* first = mask.data + bytes * offset(mask, item_.batch, item_.head, item_.row);
    for (int r = 1; r < item_.num_rows; r++)
      if (std::memcmp(first, first + bytes * r * mask.stride[DIMS - 2], bytes * S_) != 0) return false;
    return true;
  }

  // Pack keys and values; those that the mask hides from all rows stay as they are.
  Chunk open(int first, int count) {
    Chunk chunk{first, count, 0, (count + LANES - 1) / LANES};
    if (shares_mask_) {
      read_mask(op_.mask, offset(op_.mask, item_.batch, item_.head, item_.row), first, count, desk_.mask);
      const auto hides = [&](int block) { return reduce_max(load(desk_.mask + LANES * block)) == UNSEEN; };
      while (chunk.from < chunk.to && hides(chunk.from)) chunk.from++;
      while (chunk.from < chunk.to && hides(chunk.to - 1)) chunk.to--;
    }
    for (int s = chunk.from * LANES; s < std::min(count, chunk.to * LANES); s += LANES) {
      const int64_t at = offset(op_.k, item_.batch, item_.kv_head, first + s);
      pack_keys<Type>(op_.k, at, std::min(LANES, count - s), seen_from(first + s), D_, desk_.keys + padded(D_) * s);
    }
    for (int s = chunk.from * LANES; s < std::min(count, chunk.to * LANES); s += Type::PACK) {
      const int64_t at = offset(op_.v, item_.batch, item_.kv_head, first + s);
      pack_values<Type>(op_.v, at, count - s, seen_from(first + s), op_.v.width(), desk_.values + width_ * s);
    }
    return chunk;
  }

  const uint8_t* seen_from(int key) const { return is_seen_ == nullptr ? nullptr : is_seen_ + key; }

  template <int R>
  static void step(QueryRows& rows, const Chunk& chunk, int row) {
    rows.attend<R>(chunk, row);
  }

  template <int R>
  void attend(Chunk chunk, int row) {
    const int first_row = item_.row + row, stride = padded(D_);
    if (op_.is_causal) chunk.to = std::min(chunk.to, (first_row + R - chunk.first + LANES - 1) / LANES);
    if (chunk.from >= chunk.to) return;
    for (int r = 0; r < R; r++) {
      const int64_t at = offset(op_.q, item_.batch, item_.head, first_row + r);
      if constexpr (Type::PACK == 1) {
        gather(op_.q, at, D_, op_.scale, desk_.q + stride * r);
      } else {
        gather(op_.q, at, D_, op_.scale, desk_.row);
        for (int d = 0; d < stride; d += LANES) Type::put(desk_.q + stride * r + d, load(desk_.row + d));
      }
    }
    int b = chunk.from;
    for (; b + WIDE <= chunk.to; b += WIDE)
      score<Type, R, WIDE>(desk_.q, desk_.keys + stride * LANES * b, D_, desk_.scores + LANES * b);
    for (; b < chunk.to; b++)
      score<Type, R, 1>(desk_.q, desk_.keys + stride * LANES * b, D_, desk_.scores + LANES * b);
    float old[R], fresh[R];
    for (int r = 0; r < R; r++) weigh(chunk, row + r, r, old[r], fresh[r]);
    const int from = LANES * chunk.from, to = std::min(chunk.count, LANES * chunk.to);
    float* out = desk_.out + width_ * row;
    int d = 0;
    for (; d + WIDE * LANES <= width_; d += WIDE * LANES)
      mix<Type, R, WIDE>(desk_.weights, desk_.values + d * Type::PACK, width_, from, to, old, fresh, out + d);
    for (; d < width_; d += LANES)
      mix<Type, R, 1>(desk_.weights, desk_.values + d * Type::PACK, width_, from, to, old, fresh, out + d);
  }

  // Scores of a row become weights relative to their maximum, and are joined to the row's maximum and sum: what is there
  // counts `old` times, the chunk `fresh` times.
  void weigh(const Chunk& chunk, int row, int r, float& old, float& fresh) {
    float* scores = desk_.scores + KEYS * r;
    Element* weights = desk_.weights + KEYS * r;
    const float* mask = nullptr;
    if (shares_mask_) mask = desk_.mask;
    if (op_.mask.data != nullptr && !shares_mask_) {
      float* of_row = desk_.mask + KEYS * r;
      read_mask(op_.mask, offset(op_.mask, item_.batch, item_.head, item_.row + row), chunk.first, chunk.count, of_row);
      mask = of_row;
    }
    const int seen = op_.is_causal ? std::min(chunk.count, item_.row + row + 1 - chunk.first) : chunk.count;
    F largest = set1(UNSEEN);
    for (int b = chunk.from; b < chunk.to; b++) {
      F s = load(scores + LANES * b);
      if (mask != nullptr) s = add(s, load(mask + LANES * b));
      if (LANES * (b + 1) > seen) s = keep(s, 0, seen - LANES * b, UNSEEN);
      store(scores + LANES * b, s);
      largest = max(largest, s);
    }
    const float most = reduce_max(largest), before = desk_.most[row];
    if (most == UNSEEN) {
      for (int b = chunk.from; b < chunk.to; b++) Type::put(weights + LANES * b, set1(0.0f));
      old = 1.0f, fresh = 0.0f;
      return;
    }
    F sum = set1(0.0f);
    for (int b = chunk.from; b < chunk.to; b++) {
      const F below = mul(sub(load(scores + LANES * b), set1(most)), set1(LOG2_E));
      const F p = attention::power2(max(set1(-200.0f), below));
      sum = add(sum, p);
      Type::put(weights + LANES * b, p);
    }
    const float now = before > most ? before : most;
    old = before == UNSEEN ? 0.0f : std::exp(before - now);
    fresh = now == most ? 1.0f : std::exp(most - now);
    desk_.sum[row] = desk_.sum[row] * old + reduce_add(sum) * fresh;
    desk_.most[row] = now;
  }

  // A row that sees nothing becomes zeros, as in torch's scaled_dot_product_attention.
  void finish(int r) {
    float* row = desk_.out + width_ * r;
    const float sum = desk_.sum[r];
    const F inverse = set1(sum == 0.0f ? 0.0f : 1.0f / sum);
    for (int d = 0; d < width_; d += LANES) store(row + d, mul(load(row + d), inverse));
    write_floats(op_.out, offset(op_.out, item_.batch, item_.head, item_.row + r), op_.out.width(), row);
  }

  const Attend& op_;
  const Item item_;
  Desk<Type> desk_;
  int D_, S_, width_;
  const uint8_t* is_seen_ = nullptr;  // by key of the sequence
  bool shares_mask_;  // among the rows of the item
};

}  // namespace attention_of_rows

// seen: the queries and keys that count, null where all do; the others get no results.
inline void attend(Team& team, const Attend& op, const Seen* seen) {
  using namespace attention_of_rows;
  constexpr int PIECES = 4;  // a thread, so that the last to finish is not far behind
  const int B = static_cast<int>(op.q.shape[2]), H = static_cast<int>(op.q.shape[3]);
  const int T = static_cast<int>(op.q.shape[4]), group = H / static_cast<int>(op.k.shape[3]);
  if (B * H * T == 0) return team.barrier();
  const int wanted = std::min((PIECES * team.size() + B * H - 1) / (B * H), (T + MIN_ROWS - 1) / MIN_ROWS);
  const int pieces = std::max(wanted, (T + MOST_ROWS - 1) / MOST_ROWS);
  team.each(B * H * pieces, [&](int i) {
    const int piece = i % pieces, head = i / pieces % H, batch = i / pieces / H;
    const auto [first, end] = seen == nullptr ? std::pair(0, T) : seen->range(batch);
    const int count = end - first, own = std::min(pieces, (count + MIN_ROWS - 1) / MIN_ROWS);
    if (piece >= own) return;
    const int row = first + count * piece / own;
    const Item item{batch, head, head / group, row, first + count * (piece + 1) / own - row};
    if (op.is_bf16)
      QueryRows<Bf16s>(op, item, seen).run();
    else
      QueryRows<attention::Floats>(op, item, seen).run();
  });
}

}  // namespace whet::graph
