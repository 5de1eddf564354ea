#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "schedule/schedule.h"

namespace isthmus::proof {

inline constexpr std::uint32_t kNone = 0xffffffffU;

// What the dependencies of one rank's schedule order: which steps precede which, and where each step
// stands between the rank's Publish and Await steps (its line events, which form one chain).
class LocalOrder {
 public:
  // The schedule must outlive this. Fails when dependencies are malformed, line events are not
  // ordered, or a line's values do not grow.
  static Result<LocalOrder> make(const Schedule& schedule);

  // Step `earlier` is over before `later` starts.
  bool before(std::uint32_t earlier, std::uint32_t later) const {
    if (in_order_) {
      return earlier < later;
    }
    return (row(later)[earlier / 64] >> (earlier % 64) & 1U) != 0;
  }

  // Steps that are line events, in their order.
  std::span<const std::uint32_t> events() const { return events_; }

  // Index in events() of a step, kNone when it is none.
  std::uint32_t event_of(std::uint32_t step) const { return event_of_[step]; }

  // The latest Await (as an event) that is over before the step starts, and the earliest Publish that
  // starts after the step is over; kNone when there is none.
  std::uint32_t acquired(std::uint32_t step) const { return acquired_[step]; }

  std::uint32_t released(std::uint32_t step) const { return released_[step]; }

  // The first Publish step that gives `line` at least `value`; kNone when there is none.
  std::uint32_t publisher(std::uint8_t line, std::uint32_t value) const;

 private:
  const std::uint64_t* row(std::uint32_t step) const {
    return reach_.data() + static_cast<std::size_t>(step) * words_;
  }

  Status check_dependencies(const Schedule& schedule) const;
  void close(const Schedule& schedule);
  Status chain_events(const Schedule& schedule);
  void place_between_events(const Schedule& schedule);

  bool in_order_ = true;
  std::size_t words_ = 0;             // of one row
  std::vector<std::uint64_t> reach_;  // row i: the steps before step i; empty when in order
  std::vector<std::uint32_t> events_;
  std::vector<std::uint32_t> event_of_;
  std::vector<std::uint32_t> acquired_;
  std::vector<std::uint32_t> released_;
  std::vector<std::uint32_t> published_[kProgressLines];  // Publish steps of each line, in order
  const Schedule* schedule_ = nullptr;
};

// "rank 3, step 17 (Recv from rank 2, ...): " and what is wrong, as an Error.
Error fault(const Schedule& schedule, std::size_t step, std::string_view what);

}  // namespace isthmus::proof
