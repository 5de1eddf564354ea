#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "transport/endpoint.h"
#include "transport/shm/messages.h"
#include "transport/shm/ring.h"
#include "transport/shm/shm_node.h"

namespace isthmus::shm {

// The message lane to one rank of this node: matching, flow control, and a ring in each direction.
// The receiver drives, as over TCP (docs/wire.md): a message of at most kEagerBytes goes out at
// once while it fits the quota, a larger one is asked for and sent in chunks after the receiver's
// credit; sizes are compared where both meet. Chunks of several messages take turns.
//
// Bounds: kPostsMax posts a direction; kEagerQuota of unexpected eager data; kLaneCells frames and
// the piece's data on the way. Nothing here blocks, locks, allocates once settled, or makes a
// system call but to ring a peer that sleeps. Thread rule: the transport's.
class ShmLane final : public Endpoint {
 public:
  ShmLane(LaneShared* shared, int peer, const ShmNode::LanePeer& places);
  ~ShmLane() override = default;

  ShmLane(const ShmLane&) = delete;
  ShmLane& operator=(const ShmLane&) = delete;

  Result<Post> post_send(const Tag& tag, const OperationInfo& info, std::span<const std::byte> data,
                         Token token) override;
  Result<Post> post_recv(const Tag& tag, const OperationInfo& info, std::span<std::byte> data,
                         Token token) override;
  bool offers(const Tag& tag) const override;
  void cancel(std::uint64_t operation) override;

  void send_notice(const Notice& notice);

  // Moves data within the budgets. True when anything was done.
  bool pump();

  // Is there something for pump() to do?
  bool ready();

  // The peer's process is gone: takes what it still wrote, then ends.
  void on_peer_death();

  // Says goodbye and ends.
  void leave();

  bool over() const { return over_.has_value(); }

  int peer() const { return peer_; }

 private:
  // shm_lane.cc: posts, completions and the end.
  Post send_credited(Outgoing* out, const FrameBody& credit);
  bool within_quota(std::size_t bytes);
  Error tag_in_use(const Tag& tag, const char* direction) const;
  Outgoing* add_send(const Tag& tag, Outgoing::State state, std::size_t bytes);
  Post post_matched_recv(Incoming* in, std::span<std::byte> data);
  void complete_send(Outgoing* out);
  void fail_send(Outgoing* out, Code code, const FrameBody* refusal);
  void forget_send(Outgoing* out);
  void complete_recv(Incoming* in);
  void fail_recv(Incoming* in, Code code, std::uint64_t peer_bytes);
  void forget_recv(Incoming* in);
  void push(const Completion& completion, std::uint64_t operation);
  void end(Error why, bool dead);
  void broken(const std::string& what);

  // shm_lane_send.cc: what goes out.
  void push_control(FrameType type, const Tag& tag, const OperationInfo& info,
                    std::uint64_t message_bytes, std::uint8_t flags = 0);
  void refuse(Incoming* in, std::uint8_t flags);
  bool pump_output(std::size_t budget);
  bool write_next(std::size_t* used);
  bool write_control();
  bool write_eager(const Tag& tag, const OperationInfo& info, std::span<const std::byte> data);
  bool write_chunk(Outgoing* out);

  bool has_output() const { return !control_.empty() || !eager_.empty() || !bulk_.empty(); }

  void set_blocked(bool blocked);
  void free_eager(std::size_t bytes);
  void ring_peer() const;

  // shm_lane_receive.cc: what comes in.
  bool pump_input(std::size_t budget);
  std::size_t take(const Frame& frame);
  void take_eager(const Tag& tag, const OperationInfo& info, std::span<const std::byte> data);
  void take_chunk(const Tag& tag, const FrameBody& body, std::span<const std::byte> data);
  void on_request(const Tag& tag, const FrameBody& body);
  void on_credit(const Tag& tag, const FrameBody& body);
  void on_refuse(const Tag& tag, const FrameBody& body, std::uint8_t flags);
  void on_notice(std::span<const std::byte> bytes);
  void on_goodbye();

  LaneShared* shared_;
  int peer_;
  ShmNode::LanePeer places_;
  std::size_t chunk_bytes_;
  RingWriter writer_;
  RingReader reader_;
  std::optional<Error> over_;  // set once: why nothing can be posted any more
  bool blocked_ = false;       // waits for room: as told to the peer

  TagTable<Outgoing> outgoing_;
  TagTable<Incoming> incoming_;
  CancelledOperations cancelled_;
  Fifo<Control> control_;
  Fifo<Outgoing*> eager_;
  Fifo<Outgoing*> bulk_;
  std::size_t sends_ = 0;          // posted and unfinished
  std::size_t receives_ = 0;       // posted and unfinished
  std::size_t early_credits_ = 0;  // entries of outgoing_ that are not posted
  std::size_t requests_ = 0;       // entries of incoming_ in kRequested
  std::size_t eager_run_ = 0;      // eager bytes written since the last chunk
  std::size_t notices_ = 0;        // in control_

  // kInline frames carry the info of the last kEager frame before them, in each direction.
  std::optional<OperationInfo> sent_info_;
  std::optional<OperationInfo> got_info_;

  // Eager flow control in units of eager_cost(), totals over the lane's life.
  std::uint64_t eager_sent_ = 0;
  std::uint64_t peer_freed_ = 0;  // as last seen
  std::uint64_t eager_received_ = 0;
  std::uint64_t freed_ = 0;
};

}  // namespace isthmus::shm
