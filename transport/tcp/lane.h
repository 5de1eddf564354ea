#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "transport/endpoint.h"
#include "transport/tcp/frame_reader.h"
#include "transport/tcp/frame_writer.h"
#include "transport/tcp/messages.h"
#include "transport/tcp/options.h"

namespace isthmus::tcp {

class Lane;

// What all lanes of one transport share. Owned by the transport, outlives the lanes.
struct LaneShared {
  // A completion that the next poll hands over; cancel() may still take it back.
  struct Pending {
    Completion completion;
    int peer = -1;
    std::uint64_t operation = 0;
  };

  TcpOptions options;
  ObjectPool<Outgoing> outgoing;
  ObjectPool<Incoming> incoming;
  BlockPool blocks;
  std::vector<Pending> completions;
  std::vector<Notice> notices;
  std::vector<int> dead;
  std::vector<Lane*> active;  // have work that no event will announce
  // Starts to connect to a peer; `urgent` false: waits a little, the peer may come by itself.
  std::function<void(int peer, bool urgent)> connect;
  // How many lanes wait for input, and the exclusive or of their peers: with one it is that peer.
  int waiting = 0;
  int waiting_xor = 0;
  int blocked = 0;  // lanes whose socket took no more
};

// The message lane to one peer: matching, flow control, framing, over at most one connection in its
// life. Sends are driven by post_send() itself where the socket takes them, else by pump().
// Bounds: kPostsMax posts a direction; kEagerQuota of unexpected eager data.
// Thread rule: the transport's.
class Lane final : public Endpoint {
 public:
  Lane(LaneShared* shared, int peer);
  ~Lane() override;

  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  Result<Post> post_send(const Tag& tag, const OperationInfo& info, std::span<const std::byte> data,
                         Token token) override;
  Result<Post> post_recv(const Tag& tag, const OperationInfo& info, std::span<std::byte> data,
                         Token token) override;
  bool offers(const Tag& tag) const override;
  void cancel(std::uint64_t operation) override;

  void send_notice(const Notice& notice);

  // The handshake is over: takes the connection into use.
  void attach(Fd fd);

  // No connection, now and later: fails all posts and refuses new ones with `why`. `dead`: also
  // told to the engine as a death. What had arrived completely can still be received.
  void end(Error why, bool dead);

  // Says goodbye as far as the socket takes it at once, and ends.
  void leave();

  // Ends the lane when the peer's machine has been silent for too long.
  void check_silence();

  // Events of epoll, before pump().
  void on_events(std::uint32_t events);

  // The next poll pumps this lane.
  void mark_active();

  // Moves data within the budgets. True when anything was done.
  bool pump();

  // As pump() without an event: looks at the socket itself.
  bool pump_unasked();

  bool connected() const { return fd_.valid(); }

  bool over() const { return over_.has_value(); }

  bool blocked() const { return blocked_; }

  int peer() const { return peer_; }

 private:
  friend class LaneTestAccess;

  // A frame without a message behind it, waiting to be sent.
  struct Control {
    FrameHeader header;
    std::unique_ptr<std::byte[]> payload;
    std::size_t payload_bytes = 0;
  };

  // lane.cc: posts, completions and the end.
  Result<Post> post_matched_recv(Incoming* in);
  void take_stored(Incoming* in);
  void want_connection(bool urgent);
  Error tag_in_use(const Tag& tag, const char* direction) const;
  void complete_send(Outgoing* out);
  void fail_send(Outgoing* out, Code code, const FrameHeader* refusal);
  void forget_send(Outgoing* out, bool dequeue = true);
  void complete_recv(Incoming* in);
  void fail_recv(Incoming* in, Code code, std::uint64_t peer_bytes);
  void forget_recv(Incoming* in);
  void push(const Completion& completion, std::uint64_t operation);
  void count_waiting(int change);

  // lane_send.cc: what goes out.
  void push_control(FrameType type, const Tag& tag, const OperationInfo& info,
                    std::uint64_t message_bytes, std::uint8_t flags = 0);
  void refuse(Incoming* in, std::uint8_t flags);
  bool pump_output(std::size_t budget);
  void fill_batch();
  void add_eager(Outgoing* out);
  void add_chunk(Outgoing* out);
  void finish_header(FrameHeader* header, std::span<const std::byte> payload);
  void on_written(Outgoing* out);
  void set_blocked(bool blocked);
  void free_eager(std::size_t bytes);

  // lane_receive.cc: what comes in.
  bool pump_input(std::size_t budget);
  bool begin_frame(std::byte** place);
  bool end_frame();
  bool begin_eager(std::byte** place);
  bool begin_chunk(std::byte** place);
  void end_eager();
  void end_chunk();
  bool on_request();
  bool on_credit();
  void on_refuse();
  bool on_notice();
  bool broken(std::string what);
  void lost(int sys_errno);

  LaneShared* shared_;
  int peer_;
  Fd fd_;
  std::optional<Error> over_;  // set once: why nothing can be posted any more
  std::unique_ptr<FrameReader> reader_;
  FrameWriter writer_;
  bool blocked_ = false;
  bool active_ = false;
  bool write_failed_ = false;

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
  std::size_t bulk_receives_ = 0;  // credited and unfinished
  int waiting_ = 0;                // posts that end by input
  std::size_t eager_run_ = 0;      // eager bytes sent since the last chunk
  std::size_t notices_ = 0;        // in control_
  std::uint32_t newest_ = 0;

  // Eager flow control in units of eager_cost(), totals over the connection.
  std::uint64_t eager_sent_ = 0;
  std::uint64_t peer_freed_ = 0;
  std::uint64_t eager_received_ = 0;
  std::uint64_t freed_ = 0;
  std::uint64_t freed_told_ = 0;
  bool freed_queued_ = false;

  // The frame being read.
  Incoming* current_ = nullptr;  // where its payload goes; null when it is dropped
  std::vector<std::byte> scratch_;

  // The post that is being made: completes by post_send()'s own answer.
  Outgoing* inline_ = nullptr;
  bool inline_done_ = false;
};

}  // namespace isthmus::tcp
