// What stands between the q, k, v matrix and attention: norm of each head (Qwen3), rotary positions, and the write of
// keys and values into the cache.
#pragma once

#include <algorithm>

#include "../paged_attention/cache.h"
#include "../pool.h"
#include "../rms_norm/kernel.h"

namespace whet {

// Tables [max_len][head_dim / 2], already multiplied by the attention factor. Null where nothing is rotated.
struct Rope {
  const float* cos;
  const float* sin;
};

namespace rope {

constexpr int TOKENS = 8;  // of an item of work

// x (i, i + H/2) turned by its angle; the products are rounded before they are added, as PyTorch does it.
inline void rotate(float* x, const float* cos, const float* sin, int head_dim) {
  const int half = head_dim / 2;
  int i = 0;
  for (; i + LANES <= half; i += LANES) {
    const F a = load(x + i), b = load(x + half + i), c = load(cos + i), s = load(sin + i);
    store(x + i, sub(mul(a, c), mul(b, s)));
    store(x + half + i, add(mul(b, c), mul(a, s)));
  }
  for (; i < half; i++) {
    const float a = x[i], b = x[half + i];
    x[i] = a * cos[i] - b * sin[i];
    x[half + i] = b * cos[i] + a * sin[i];
  }
}

// One token's numbers, rounded as the cache keeps them; of int8 the scale comes back.
template <typename T>
float rounded(const float* x, int size, T* to) {
  if constexpr (sizeof(T) == 4) {
    std::memcpy(to, x, 4ul * size);
  } else if constexpr (sizeof(T) == 2) {
    for (int i = 0; i < size; i += LANES) store_bf16(to + i, load(x + i));
  } else {
    F most = set1(0.0f);
    for (int i = 0; i < size; i += LANES) most = max(most, abs(load(x + i)));
    const float largest = reduce_max(most), inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
    for (int i = 0; i < size; i += LANES) store_s8(to + i, mul(load(x + i), set1(inverse)));
    return largest / 127.0f;
  }
  return 1.0f;
}

// Where a token's key and value go. `clear_after`: zero the value slots after it.
template <typename T, int PACK>
struct Slot {
  T *keys, *values;
  float *key_scale, *value_scale;  // of s8
  int offset, head_dim;
  bool clear_after;

  void write(const float* k, const float* v) const {
    alignas(64) T row[256];
    const float k_scale = rounded(k, head_dim, row);
    for (int d = 0; d < head_dim; d += PACK) std::memcpy(keys + d * BLOCK + offset * PACK, row + d, sizeof(T) * PACK);
    const float v_scale = rounded(v, head_dim, row);
    T* at = values + offset / PACK * PACK * head_dim + offset % PACK;
    for (int d = 0; d < head_dim; d++) at[d * PACK] = row[d];
    if (key_scale != nullptr) *key_scale = k_scale, *value_scale = v_scale;
    if (clear_after) clear();
  }

 private:
  void clear() const {
    if constexpr (PACK == 2)
      if (offset % 2 == 0)
        for (int d = 0; d < head_dim; d++) values[(offset * head_dim) + 2 * d + 1] = 0;
    T* rest = values + (offset / PACK + 1) * PACK * head_dim;
    std::memset(static_cast<void*>(rest), 0, (values + BLOCK * head_dim - rest) * sizeof(T));
    if (value_scale != nullptr) std::fill(value_scale + 1, value_scale + BLOCK - offset, 0.0f);
  }
};

template <typename T, int PACK>
Slot<T, PACK> slot_of(Heads heads, const Cache& cache, const Ragged& batch, int seq, int token, int kv_head) {
  const int position = batch.positions[token], offset = position % BLOCK;
  const int32_t block = batch.blocks(seq)[position / BLOCK];
  const size_t tile = tile_at(heads, block, kv_head), scales = scales_at(heads, block, kv_head) + offset;
  const bool scaled = cache.kind == Kv::s8;
  // Only where this step began the block: else what follows is zero already, or left by a sequence's own lost drafts.
  const bool last = token + 1 == batch.query_start[seq + 1];
  return {reinterpret_cast<T*>(cache.keys) + tile, reinterpret_cast<T*>(cache.values) + tile,
          scaled ? cache.key_scales + scales : nullptr, scaled ? cache.value_scales + scales : nullptr,
          offset, heads.head_dim, last && position - offset >= batch.first_position(seq)};
}

inline void write(Heads heads, const Cache& cache, const Ragged& batch, int seq, int token, int kv_head, const float* k,
                  const float* v) {
  switch (cache.kind) {
    case Kv::f32: return slot_of<float, 1>(heads, cache, batch, seq, token, kv_head).write(k, v);
    case Kv::bf16: return slot_of<uint16_t, 2>(heads, cache, batch, seq, token, kv_head).write(k, v);
    case Kv::s8: return slot_of<int8_t, 2>(heads, cache, batch, seq, token, kv_head).write(k, v);
  }
}

}  // namespace rope

// qkv [T][(num_heads + 2 * num_kv_heads) * head_dim]: q and k are normalised (where q_norm, k_norm [head_dim] are given)
// and rotated in place (where there are tables), k and v written into the cache. Ends with a barrier.
inline void write_qkv(Team& team, Heads heads, float* qkv, Rope tables, const float* q_norm, const float* k_norm,
                      float eps, const Cache& cache, const Ragged& batch) {
  const int H = heads.head_dim, group = heads.group();
  const int strips = (batch.num_tokens + rope::TOKENS - 1) / rope::TOKENS;
  team.each(strips * heads.num_kv_heads, [&](int item) {
    const int kv_head = item % heads.num_kv_heads, first = item / heads.num_kv_heads * rope::TOKENS;
    const int last = std::min(first + rope::TOKENS, batch.num_tokens);
    const int32_t* starts = batch.query_start;
    int seq = static_cast<int>(std::upper_bound(starts, starts + batch.num_seqs + 1, first) - starts) - 1;
    for (int token = first; token < last; token++) {
      while (token >= starts[seq + 1]) seq++;
      const size_t angle = static_cast<size_t>(batch.positions[token]) * (H / 2);
      float* row = qkv + static_cast<size_t>(heads.width()) * token;
      const auto turn = [&](float* x, const float* norm) {
        if (norm != nullptr) rms_norm_row(x, norm, H, eps, x);
        if (tables.cos != nullptr) rope::rotate(x, tables.cos + angle, tables.sin + angle, H);
      };
      for (int head = kv_head * group; head < (kv_head + 1) * group; head++) turn(row + head * H, q_norm);
      float* k = row + (heads.num_heads + kv_head) * H;
      turn(k, k_norm);
      rope::write(heads, cache, batch, seq, token, kv_head, k, k + heads.num_kv_heads * H);
    }
  });
}

}  // namespace whet
