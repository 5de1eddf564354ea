#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "schedule/schedule.h"
#include "schedule/verify.h"
#include "schedule/verify_order.h"
#include "topology/topology.h"

namespace isthmus::proof {

// One operation of the group: everyone's schedule, what each orders, and which slot memory it uses.
struct Operation {
  std::span<const Schedule> schedules;
  std::span<const LocalOrder> orders;
  std::uint32_t slot = 0;
};

// Symbolic execution of operations that follow one another on every rank: one order of steps that
// the dependencies allow, with every access checked for its order against the conflicting ones
// before it. A mark's value is a pair of hashes: of the contributions, and of the tree that
// combined them. Schedules must have passed check_shape().
class Run {
 public:
  Run(std::span<const Operation> operations, const Topology& topology, Delivery delivery);

  Status run();

 private:
  struct Value {
    std::uint64_t sum = 0;
    std::uint64_t order = 0;

    bool operator==(const Value&) const = default;
  };

  // The same mark in the two cases: [0] input and output apart, [1] in place. Races are looked for
  // in the second, where more steps conflict.
  struct Ref {
    std::size_t apart = 0;
    std::size_t cell = 0;
  };

  // One rank's part of one operation.
  struct Part {
    const Schedule* schedule = nullptr;
    const LocalOrder* order = nullptr;
    std::uint32_t operation = 0;
    std::uint32_t rank = 0;
    std::uint32_t first_node = 0;
    std::uint32_t first_event = 0;  // among the rank's events of all operations
    std::size_t open = 0;           // steps that are not over
    std::size_t caller = 0;         // first cells of its memories
    std::size_t scratch = 0;
    std::size_t line = 0;
    std::size_t slot = 0;
    std::size_t stage = 0;
  };

  // A step that uses the caller's buffers of another part.
  struct PeerAccess {
    std::uint32_t node = 0;
    std::uint32_t owner = 0;  // index of the part
  };

  struct Reader {
    std::uint32_t node = 0;
    std::uint32_t next = kNone;
  };

  static Value word(std::uint32_t rank, std::uint32_t mark);
  static Value combine(const Value& a, const Value& b);
  static Value finished(const Value& value);

  Part& part_of(std::uint32_t node) { return parts_[part_index_[node]]; }

  const Step& step_of(std::uint32_t node) {
    const Part& part = part_of(node);
    return part.schedule->steps[node - part.first_node];
  }

  Error fault_at(std::uint32_t node, std::string_view what);

  // Set-up.
  void lay_out();
  void fill(const Part& part);
  Status pair_messages(std::uint32_t operation);
  Status pair(std::uint32_t send, std::uint32_t recv);
  Status link_awaits(Part& part);

  // Execution.
  void begin_part(Part& part);
  Status start(std::uint32_t node);
  Status complete(std::uint32_t node);
  void end_step(std::uint32_t node);
  void released_one(std::uint32_t node);
  Status meet(std::uint32_t send, std::uint32_t recv);
  void note_event(std::uint32_t node);
  Error stuck();

  // Memory.
  Ref ref(const Part& part, const Place& place) const;
  bool ordered(std::uint32_t earlier, std::uint32_t later);
  Status read(std::uint32_t node, const Place& place, std::uint32_t length);
  Status note_peer_access(std::uint32_t node, const Place& place);
  Status check_returns();
  Status write(std::uint32_t node, const Place& place, std::uint32_t length);
  Status copy(std::uint32_t node);
  Place operand_place(const Part& part, const Step& step, std::uint32_t number) const;
  Status read_operands(std::uint32_t node);
  Status reduce(std::uint32_t node);
  Status store_result(std::uint32_t node, const Place& place);
  Status take_message(std::uint32_t send, std::uint32_t recv);
  Status check_gate(std::uint32_t node, const std::uint64_t* more);

  // Results.
  Status check_results(std::uint32_t operation);
  Value expected(const Part& part, std::uint32_t mark) const;
  Status check_mark(const Part& part, std::uint32_t mark);
  Status check_started(const Part& part);

  std::uint64_t* known(std::uint32_t node) { return known_.data() + node * known_words_; }

  std::span<const Operation> operations_;
  const Topology& topology_;
  const Delivery delivery_;
  const std::uint32_t ranks_;
  const std::size_t known_words_;
  std::vector<Part> parts_;                // by operation, then rank
  std::vector<std::uint32_t> part_index_;  // of each node: a node is a step of a part
  std::vector<std::uint32_t> pending_;     // what a node still waits for
  std::vector<std::uint8_t> started_;
  std::vector<std::uint8_t> over_;
  std::vector<std::uint32_t> partner_;      // of a Send its Recv, and the reverse
  std::vector<std::size_t> payload_;        // of a Send: its words in messages_
  std::vector<std::uint32_t> awaits_head_;  // of a Publish: list in awaits_
  std::vector<Reader> awaits_;
  std::vector<std::uint64_t> known_;  // per node: ranks known to have started, before it ends
  std::vector<std::uint32_t> ready_;
  std::vector<std::vector<std::uint32_t>>
      clocks_;  // per rank: per event, events known of each local
  std::vector<Value> values_[2];
  std::vector<std::uint32_t> writer_;        // of a cell: the last step that wrote it
  std::vector<std::uint32_t> readers_head_;  // those that read it since: list in readers_
  std::vector<Reader> readers_;
  std::vector<PeerAccess> peer_accesses_;
  std::vector<Value> messages_[2];
  std::vector<Value> operands_[2];  // scratch memory of reduce()
};

// Agreement of the ranks' schedules, and that every step stays within its spaces.
Status check_shape(std::span<const Schedule> schedules, const Topology& topology);

}  // namespace isthmus::proof
