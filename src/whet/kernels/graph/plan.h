// Operations one after the other, in one region of the pool.
#pragma once

#include <atomic>

#include "../entry.h"
#include "../simd/denormals.h"
#include "attend.h"
#include "copy.h"
#include "elementwise.h"
#include "linear.h"
#include "multiply.h"
#include "rows.h"
#include "seen.h"

namespace whet::graph {

enum class Name : int32_t { linear = 0, normalise, embed, attend, multiply, softmax, reduce, elementwise, copy, fill, gather };

// `what` points to the structure of that name. `of`: which rows it works on where a call leaves some out; each row of the
// batch is then `each` rows of its views, whose first dimensions are those of the batch.
struct Operation {
  Name name;
  Of of;
  int64_t each;
  const void* what;
};

class Plan {
 public:
  // Keeps pointers to what the operations point to.
  Plan(const Operation* operations, int count) {
    for (int i = 0; i < count; i++) {
      Planned planned{operations[i], i, nullptr};
      if (const auto* op = of<Linear>(operations[i], Name::linear)) {
        if (!planned_.empty() && planned_.back().operation.of == operations[i].of)
          planned.before = norm_of(*op, planned_.back().operation);
        if (planned.before != nullptr) planned_.pop_back();
      }
      planned_.push_back(planned);
      add_work(operations[i]);
    }
  }

  // Returns -1, or the number of an operation that met an index outside its table. `seen`: null where no row is left out.
  // Raises std::bad_alloc.
  int run(const Seen* seen) {
    static thread_local Room room;  // plans of a thread share it: they run one after the other
    for (const Planned& planned : planned_)
      if (const auto* op = of<Linear>(planned.operation, Name::linear)) room.fit(*op);
    std::atomic<int> failed{-1};
    pool_for(work_)->run([&, &room = room](Team& team) {
      const WithoutDenormals flushed;
      for (const Planned& planned : planned_) {
        std::atomic<bool> met{false};
        perform(team, planned, seen, room, met);
        if (met.load(std::memory_order_relaxed)) failed.store(planned.number, std::memory_order_relaxed);
      }
    });
    return failed.load();
  }

 private:
  struct Planned {
    Operation operation;
    int number;
    const Normalise* before;  // done while rows are made ready for a linear layer
  };

  template <typename Structure>
  static const Structure* of(const Operation& operation, Name name) {
    return operation.name == name ? static_cast<const Structure*>(operation.what) : nullptr;
  }

  // The norm that an operation is, if it gives a linear layer its input.
  static const Normalise* norm_of(const Linear& linear, const Operation& operation) {
    const auto* norm = of<Normalise>(operation, Name::normalise);
    if (norm == nullptr || linear.has_norm || norm->out.data != linear.x.data) return nullptr;
    const bool is_same = std::equal(norm->out.shape, norm->out.shape + DIMS, linear.x.shape) &&
                         std::equal(norm->out.stride, norm->out.stride + DIMS, linear.x.stride);
    return is_same ? norm : nullptr;
  }

  void perform(Team& team, const Planned& planned, const Seen* seen, const Room& room, std::atomic<bool>& met) const {
    const void* what = planned.operation.what;
    const Chosen chosen = Chosen::of(planned.operation.of, planned.operation.each, seen);
    switch (planned.operation.name) {
      case Name::linear: return linear(team, *static_cast<const Linear*>(what), chosen, planned.before, room);
      case Name::normalise: return normalise(team, *static_cast<const Normalise*>(what), chosen);
      case Name::embed: return embed(team, *static_cast<const Embed*>(what), chosen, met);
      case Name::attend: return attend(team, *static_cast<const Attend*>(what), planned.operation.of == Of::seen ? seen : nullptr);
      case Name::multiply: return multiply(team, *static_cast<const Multiply*>(what));
      case Name::softmax: return softmax(team, *static_cast<const Softmax*>(what), chosen);
      case Name::reduce: return reduce(team, *static_cast<const Reduce*>(what), chosen);
      case Name::elementwise: return elementwise(team, *static_cast<const Elementwise*>(what), chosen);
      case Name::copy: return copy(team, *static_cast<const Copy*>(what), chosen);
      case Name::fill: return fill(team, *static_cast<const Fill*>(what), chosen);
      case Name::gather: return gather(team, *static_cast<const Gather*>(what), chosen, met);
    }
  }

  static double size(const View& view) { return static_cast<double>(view.num_rows()) * view.width(); }
  // What an operation has to do at least; of most, to read and write as many numbers as it gives.
  void add(double numbers, double num_ops) {
    work_.num_bytes += 2 * sizeof(float) * numbers;
    work_.num_ops += num_ops;
  }
  void add_work(const Operation& operation) {
    if (const auto* op = of<Linear>(operation, Name::linear)) {
      const Work work = work_of(op->weights, static_cast<int>(op->x.num_rows()));
      work_.num_bytes += work.num_bytes, work_.num_ops += work.num_ops;
    }
    if (const auto* op = of<Attend>(operation, Name::attend))
      add(size(op->out), 4 * size(op->q) * static_cast<double>(op->k.shape[DIMS - 2]));
    if (const auto* op = of<Multiply>(operation, Name::multiply)) add(size(op->out), 2 * size(op->out) * op->a.width());
    if (const auto* op = of<Normalise>(operation, Name::normalise)) add(size(op->out), 8 * size(op->out));
    if (const auto* op = of<Embed>(operation, Name::embed)) add(size(op->out), size(op->out) * op->num_tables);
    if (const auto* op = of<Softmax>(operation, Name::softmax)) add(size(op->out), 16 * size(op->out));
    if (const auto* op = of<Reduce>(operation, Name::reduce)) add(size(op->x), size(op->x));
    if (const auto* op = of<Elementwise>(operation, Name::elementwise)) add(size(op->out), size(op->out) * op->num_steps);
    if (const auto* op = of<Gather>(operation, Name::gather)) add(size(op->out), size(op->out));
    if (const auto* op = of<Copy>(operation, Name::copy)) add(size(op->out), 0);
    if (const auto* op = of<Fill>(operation, Name::fill)) add(size(op->out), 0);
  }

  std::vector<Planned> planned_;
  Work work_{0, 0};
};

}  // namespace whet::graph
