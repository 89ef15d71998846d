// Rows: softmax, sums, means and maxima, embeddings, and numbers by index.
#pragma once

#include <atomic>
#include <limits>

#include "../rms_norm/kernel.h"
#include "activations.h"
#include "norm.h"

namespace whet::graph {

struct Softmax {
  View x, out;
};

// A row of only -inf becomes NaN, as in torch.
inline void softmax_row(const float* x, int width, float* out) {
  const float unseen = -std::numeric_limits<float>::infinity();
  F most = set1(unseen);
  for (int i = 0; i < width; i += LANES) most = max(most, load_part(x + i, std::min(LANES, width - i), unseen));
  const F largest = set1(reduce_max(most));
  F sum = set1(0.0f);
  for (int i = 0; i < width; i += LANES) {
    const int count = std::min(LANES, width - i);
    const F p = exp_of(sub(load_part(x + i, count, unseen), largest));
    sum = add(sum, keep(p, 0, count, 0.0f));
    store_part(out + i, p, count);
  }
  const F total = set1(reduce_add(sum));
  for (int i = 0; i < width; i += LANES) {
    const int count = std::min(LANES, width - i);
    store_part(out + i, div(load_part(out + i, count, 0.0f), total), count);
  }
}

inline void softmax(Team& team, const Softmax& op, const Chosen& chosen) {
  each_row(team, chosen, op.x.num_rows(), [&](int64_t r) { softmax_row(op.x.row(r), op.x.width(), op.out.row(r)); });
}

enum class Reduction : int32_t { sum = 0, mean, max };

// out: a row of one number for each row of x.
struct Reduce {
  View x, out;
  Reduction kind;
};

inline F joined(Reduction kind, F a, F b) { return kind == Reduction::max ? max(a, b) : add(a, b); }

// `count` up to sixteen rows that begin side by side, a lane each.
inline void reduce_columns(const Reduce& op, int64_t row, int count) {
  const int64_t stride = op.x.stride[DIMS - 1];
  const float* x = op.x.row(row);
  F result = load_part(x, count, 0.0f);
  for (int i = 1; i < op.x.width(); i++) result = joined(op.kind, result, load_part(x + stride * i, count, 0.0f));
  if (op.kind == Reduction::mean) result = div(result, set1(static_cast<float>(op.x.width())));
  float lanes[LANES];
  store(lanes, result);
  for (int i = 0; i < count; i++) *op.out.row(row + i) = lanes[i];
}

inline float reduced(const Reduce& op, const float* x) {
  const int width = op.x.width();
  const int64_t stride = op.x.stride[DIMS - 1];
  float result = op.kind == Reduction::max ? x[0] : 0.0f;
  if (stride == 1 && op.kind == Reduction::max) {
    F most = set1(x[0]);
    for (int i = 0; i < width; i += LANES) most = max(most, load_part(x + i, std::min(LANES, width - i), x[0]));
    return reduce_max(most);
  }
  if (stride == 1) {
    result = sum_of_row(x, width, 0.0f, [](F total, F value) { return add(total, value); });
  } else {
    for (int i = 0; i < width; i++)
      result = op.kind == Reduction::max ? std::max(result, x[stride * i]) : result + x[stride * i];
  }
  return op.kind == Reduction::mean ? result / static_cast<float>(width) : result;
}

inline void reduce(Team& team, const Reduce& op, const Chosen& chosen) {
  const int64_t inner = op.x.shape[DIMS - 2];
  if (chosen.rows == nullptr && op.x.stride[DIMS - 1] != 1 && op.x.stride[DIMS - 2] == 1) {
    const int parts = static_cast<int>((inner + LANES - 1) / LANES), outer = static_cast<int>(op.x.num_rows() / std::max<int64_t>(inner, 1));
    team.each(outer * parts, [&](int item) {
      const int64_t first = static_cast<int64_t>(item % parts) * LANES;
      reduce_columns(op, item / parts * inner + first, static_cast<int>(std::min<int64_t>(LANES, inner - first)));
    });
    return;
  }
  each_row(team, chosen, op.x.num_rows(), [&](int64_t r) { *op.out.row(r) = reduced(op, op.x.row(r)); });
}

// out = the sum of one row of each table [num][width], float or bf16, by indices [rows, 1] of int64.
struct Embed {
  int32_t num_tables;
  const View *tables, *indices;
  View out;
};

// Returns false where an index lies outside its table; the row is then not finished.
inline bool embed_row(const Embed& op, int64_t r) {
  static thread_local Floats wide;
  const int width = op.out.width();
  float* to = op.out.row(r);
  wide.resize(width);
  for (int t = 0; t < op.num_tables; t++) {
    const View &table = op.tables[t], &indices = op.indices[t];
    const int64_t index = reinterpret_cast<const int64_t*>(indices.data)[indices.offset(r)];
    if (index < 0 || index >= table.shape[DIMS - 2]) return false;
    read_floats(table, index * table.stride[DIMS - 2], width, t == 0 ? to : wide.data());
    if (t > 0) add_row(to, wide.data(), width);
  }
  return true;
}

// Sets `failed` where an index lies outside its table.
inline void embed(Team& team, const Embed& op, const Chosen& chosen, std::atomic<bool>& failed) {
  each_row(team, chosen, op.out.num_rows(), [&](int64_t r) {
    if (!embed_row(op, r)) failed.store(true, std::memory_order_relaxed);
  });
}

// out [rows, n] = the numbers of each row of x that indices [rows, n] of int64 name.
struct Gather {
  View x, indices, out;
};

// Returns false where an index lies outside the row; the row is then not finished.
inline bool gather_row(const Gather& op, int64_t r) {
  const int64_t from = op.x.stride[DIMS - 1], step = op.indices.stride[DIMS - 1], to = op.out.stride[DIMS - 1];
  const float* x = op.x.row(r);
  const int64_t* indices = reinterpret_cast<const int64_t*>(op.indices.data) + op.indices.offset(r);
  float* out = op.out.row(r);
  for (int i = 0; i < op.out.width(); i++) {
    const int64_t index = indices[step * i];
    if (index < 0 || index >= op.x.width()) return false;
    out[to * i] = x[from * index];
  }
  return true;
}

// Sets `failed` where an index lies outside its row.
inline void gather(Team& team, const Gather& op, const Chosen& chosen, std::atomic<bool>& failed) {
  each_row(team, chosen, op.out.num_rows(), [&](int64_t r) {
    if (!gather_row(op, r)) failed.store(true, std::memory_order_relaxed);
  });
}

}  // namespace whet::graph
