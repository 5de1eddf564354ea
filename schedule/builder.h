#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "schedule/schedule.h"

namespace isthmus {

// A number for each rank that was asked for: memory and time go with how many those are, whatever
// the size of the group.
class PeerCounts {
 public:
  // The peer's number so far, which then is one more.
  std::uint32_t next(std::uint32_t peer);

 private:
  struct Slot {
    std::uint32_t peer_plus_one = 0;  // 0: free
    std::uint32_t count = 0;
  };

  Slot& find(std::uint32_t peer);

  std::vector<Slot> slots_;  // open addressing; a power of two, at most half full
  std::size_t used_ = 0;
};

// The only maker of Schedules. An algorithm appends the steps of one rank in an order that would be
// correct if they ran one by one; the builder numbers messages, infers the dependencies from the
// spans that steps read and write, and bounds the size. Not thread-safe; one use.
//
// Inference: a step depends on the latest earlier steps whose spans conflict with its own (read
// after write, write after read, write after write). Steps that touch mapped spaces keep their
// order relative to publish() and await(), and those keep theirs. The input and the output are
// taken for the same memory (in place). A signal(), and a publish(), follows every earlier
// wait_signal() and await(); it does not follow earlier data messages. After gate_output() every
// write to the output depends on the steps before the gate that received or awaited something: no
// user byte is written before all signatures were seen.
class Builder {
 public:
  // Most steps of one rank: 65,536 steps of 48 bytes are 3 MiB; more means a wrong algorithm.
  static constexpr std::size_t kStepsMax = 1U << 16;

  struct Shape {
    OpKind op = OpKind::kBarrier;
    std::uint32_t rank = 0;
    std::uint32_t ranks = 1;
    std::uint32_t local = 0;
    std::uint32_t locals = 1;
    std::uint32_t root = 0;
    std::string_view algorithm;
    Partition partition;
  };

  explicit Builder(const Shape& shape);

  std::uint32_t rank() const { return schedule_.rank; }

  std::uint32_t ranks() const { return schedule_.ranks; }

  std::uint32_t local() const { return schedule_.local; }

  std::uint32_t locals() const { return schedule_.locals; }

  // Places.
  static Place input(std::uint32_t mark) { return {Space::kInput, 0, mark}; }

  static Place output(std::uint32_t mark) { return {Space::kOutput, 0, mark}; }

  static Place scratch(std::uint32_t unit) { return {Space::kScratch, 0, unit}; }

  Place line() const { return {Space::kLine, schedule_.local, 0}; }

  Place slot(std::uint32_t unit) const { return {Space::kSlot, schedule_.local, unit}; }

  Place stage(std::uint32_t unit) const { return {Space::kStage, schedule_.local, unit}; }

  // Where another local rank has its input and output, which this one only reads.
  static Place peer_input(std::uint32_t local, std::uint32_t mark) {
    return {Space::kPeerInput, local, mark};
  }

  static Place peer_output(std::uint32_t local, std::uint32_t mark) {
    return {Space::kPeerOutput, local, mark};
  }

  // The outputs of all local ranks, for a reduce_locals() from mapped buffers.
  static Place every_output(std::uint32_t mark) { return {Space::kPeerOutput, kEveryone, mark}; }

  // The same unit of another local rank's mapped space.
  static Place of_local(Place place, std::uint32_t local) {
    place.local = local;
    return place;
  }

  // Steps on the bytes of marks [begin, end).
  void send(std::uint32_t peer, Place src, std::uint32_t begin, std::uint32_t end);
  void recv(std::uint32_t peer, Place dst, std::uint32_t begin, std::uint32_t end);
  void copy(Place dst, Place src, std::uint32_t begin, std::uint32_t end);

  // dst = dst op src, or with src_first dst = src op dst.
  void reduce(Place dst, Place src, std::uint32_t begin, std::uint32_t end, bool finish,
              bool src_first = false);

  // dst = op over local ranks [0, locals) of src (a place with an owner, which is ignored), in
  // local order; own_input takes this rank's operand from the input at mark `begin` instead.
  void reduce_locals(Place dst, Place src, std::uint32_t begin, std::uint32_t end, bool own_input,
                     bool finish);

  // dst = op over `count` spans of (end - begin) scratch units from `src` on, in that order. With
  // own < count operand number `own` is taken from the input at mark `begin` instead.
  void reduce_units(Place dst, Place src, std::uint32_t count, std::uint32_t own,
                    std::uint32_t begin, std::uint32_t end, bool finish);

  void publish(std::uint8_t line, std::uint32_t value);

  // Awaits local ranks [first, first + count); this rank itself is skipped.
  void await(std::uint8_t line, std::uint32_t value, std::uint32_t first, std::uint32_t count);

  void await_all(std::uint8_t line, std::uint32_t value) { await(line, value, 0, locals()); }

  // An empty message: carries a signature, orders two ranks.
  void signal(std::uint32_t peer);
  void wait_signal(std::uint32_t peer);

  // From here on output is written only after every step so far.
  void gate_output();

  // Announces the caller's buffers to the ranks of the node, so that they can read them.
  void expose(Exposure exposure) { schedule_.exposure = exposure; }

  // Runs the steps in the order given; without it, as dependencies allow.
  void in_order() { schedule_.in_order = true; }

  // Finishes. Fails with kInvalidArgument when a bound is exceeded or a span cannot be addressed (a
  // multi-mark span of a ranked partition in unit-addressed space).
  Result<Schedule> build();

 private:
  void append(const Step& step);
  void note_units(const Place& place, const Step& step, std::uint32_t spans);

  Schedule schedule_;
  PeerCounts sent_;           // messages so far to each rank
  PeerCounts received_;       // and from each rank
  std::size_t gate_ = 0;      // steps before the output gate; 0 when none
  std::size_t acquires_ = 0;  // steps so far that received or awaited
  bool overflow_ = false;
  bool unaddressable_ = false;
  bool too_many_operands_ = false;
};

}  // namespace isthmus
