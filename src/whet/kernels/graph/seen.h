// Rows of a batch of sequences: a call may leave out those that are padding.
#pragma once

#include <cstdint>
#include <utility>

namespace whet::graph {

// Which of the rows b * length + l of a batch a call works on.
struct Seen {
  const int32_t* rows;     // those that are seen, in order, then the others
  const uint8_t* is_seen;  // [num_rows]
  int32_t num_seen, num_rows, length;

  // From the first place of a sequence that is seen to behind the last.
  std::pair<int, int> range(int sequence) const {
    const uint8_t* own = is_seen + static_cast<int64_t>(length) * sequence;
    int first = 0, end = length;
    while (end > 0 && !own[end - 1]) end--;
    while (first < end && !own[first]) first++;
    return {first, end};
  }
};

enum class Of : int32_t { all = 0, seen, hidden };

// Which rows of a view an operation works on.
struct Chosen {
  const int32_t* rows;  // of the batch; null: all
  int64_t num_rows, each;  // rows of the view for a row of the batch

  // `seen`: null where a call leaves out no row.
  static Chosen of(Of which, int64_t each, const Seen* seen) {
    if (which == Of::all || (which == Of::seen && seen == nullptr)) return {nullptr, 0, 1};
    static constexpr int32_t NONE = 0;
    if (seen == nullptr) return {&NONE, 0, each};
    return which == Of::seen ? Chosen{seen->rows, seen->num_seen, each}
                             : Chosen{seen->rows + seen->num_seen, seen->num_rows - seen->num_seen, each};
  }
  int64_t count(int64_t all) const { return rows == nullptr ? all : num_rows * each; }
  int64_t operator[](int64_t i) const {
    return rows == nullptr ? i : each == 1 ? rows[i] : rows[i / each] * each + i % each;
  }
};

}  // namespace whet::graph
