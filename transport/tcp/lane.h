#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "transport/endpoint.h"
#include "transport/tcp/bulk_queue.h"
#include "transport/tcp/flow.h"
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
  BulkBoard bulk;             // of all lanes
  std::vector<Lane*> held;    // have chunks that wait for those of other lanes
  // Starts to connect to a peer; `urgent` false: waits a little, the peer may come by itself.
  std::function<void(int peer, bool urgent)> connect;
  // Starts to open further flows to a connected peer.
  std::function<void(int peer)> widen;
  // A further flow of a connected peer is lost; the lane goes on with the others.
  std::function<void(int peer, std::uint8_t flow)> flow_lost;
  int wide = 0;  // lanes that have, or had, several flows
  // How many lanes wait for input, and the exclusive or of their peers: with one it is that peer.
  int waiting = 0;
  int waiting_xor = 0;
  int blocked = 0;  // flows whose socket took no more
};

// The message lane to one peer: matching, flow control, framing, over a first connection and, once
// much data has passed, further ones (flows): chunks are taken by whichever is free. Sends are
// driven by post_send() itself where the socket takes them, else by pump(). Bounds: kPostsMax posts
// a direction; kEagerQuota of unexpected eager data. Thread rule: the transport's.
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

  // The handshake is over: takes the first connection into use.
  void attach(Fd fd);

  // Takes a further one into use; the lane is connected and has no flow of this number.
  void attach_flow(std::uint8_t number, Fd fd);
  bool has_flow(std::uint8_t number) const;

  std::size_t flow_count() const;

  // Closes flows whose machine does not answer, while another one is there. Called about every
  // 100 ms while LaneShared::wide is not 0.
  void check_rails();

  // The socket of the first flow of a connected lane.
  const Fd& first_socket() const { return main_->fd; }

  // No connection, now and later: fails all posts and refuses new ones with `why`. `dead`: also
  // told to the engine as a death. What had arrived completely can still be received.
  void end(Error why, bool dead);

  // Says goodbye as far as the socket takes it at once, and ends.
  void leave();

  // Ends the lane when the peer's machine has been silent for too long.
  void check_silence();

  // Whether the chunks of a held lane may go on; ends the holding then.
  bool let_go(std::int64_t now_ns);

  // Events of epoll for a flow, before pump().
  void on_events(std::uint32_t flow, std::uint32_t events);

  // The next poll pumps this lane.
  void mark_active();

  // Moves data within the budgets. True when anything was done.
  bool pump();

  // As pump() without an event: looks at the socket itself.
  bool pump_unasked();

  bool connected() const { return main_ != nullptr && main_->fd.valid(); }

  bool over() const { return over_.has_value(); }

  int peer() const { return peer_; }

 private:
  friend struct LaneTestAccess;

  // A frame without a message behind it, waiting to be sent.
  struct Control {
    FrameHeader header;
    std::unique_ptr<std::byte[]> payload;
    std::size_t payload_bytes = 0;
    bool again = false;  // was sent on a flow that is lost; the header is complete
  };

  // A copy of a numbered frame that the peer has not acknowledged.
  struct Kept {
    FrameHeader header;
    std::vector<std::byte> payload;
  };

  // lane.cc: posts, completions and the end.
  Result<Post> post_matched_recv(Incoming* in);
  void take_stored(Incoming* in);
  void want_connection(bool urgent);
  void count_bulk(std::size_t bytes);
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
  bool write_batch(Flow* flow);
  void fill_batch(Flow* flow);
  bool chunk_may_go();
  bool held_long(std::int64_t now_ns) const;
  std::int64_t yield_ns() const;
  void limit_sockets();
  void finish_control(Control* control);
  void say_goodbye(Flow* flow);
  void add_eager(Flow* flow, Outgoing* out);
  void add_chunk(Flow* flow, Outgoing* out);
  void finish_header(FrameHeader* header, std::span<const std::byte> payload);
  void on_written(Outgoing* out);
  void set_blocked(Flow* flow, bool blocked);
  void free_eager(std::size_t bytes);

  // lane_receive.cc: what comes in.
  bool pump_input(Flow* flow, std::size_t budget);
  bool begin_frame(Flow* flow, std::byte** place);
  bool end_frame(Flow* flow);
  bool begin_eager(Flow* flow, std::byte** place);
  bool begin_chunk(Flow* flow, std::byte** place);
  void end_eager(Flow* flow);
  void end_chunk(Flow* flow);
  bool on_request(const FrameHeader& header);
  bool on_credit(const FrameHeader& header);
  void on_refuse(const FrameHeader& header);
  bool on_notice(const FrameHeader& header);
  bool broken(std::string what);
  void on_ack(const FrameHeader& header);

  // lane_failover.cc: what several flows need when one of them goes.
  void number(FrameHeader* header);
  void keep(const FrameHeader& header, std::span<const std::byte> payload);
  void forget_kept(const Outgoing& out);
  void on_acked(std::uint32_t acked);
  bool begin_numbered(Flow* flow);
  void end_numbered(Flow* flow);
  void abandon_frame(Flow* flow);
  bool dispensable(const Flow& flow) const;
  void drop_flow(Flow* flow, const std::string& why);
  void send_again(std::uint8_t flow);
  void change_main();
  std::string lost_rails() const;
  void on_goodbye(Flow* flow, const FrameHeader& header);
  void farewell();
  void lost(Flow* flow, int sys_errno);

  LaneShared* shared_;
  int peer_;
  std::optional<Error> over_;  // set once: why nothing can be posted any more
  std::vector<std::unique_ptr<Flow>> flows_;
  Flow* main_ = nullptr;  // the first of flows_
  std::size_t turn_ = 0;  // which of flows_ takes the next batch
  bool active_ = false;
  bool wide_ = false;           // has, or had, several flows
  bool widened_ = false;        // further flows were asked for
  std::size_t bulk_bytes_ = 0;  // posted in either direction, until widened_

  TagTable<Outgoing> outgoing_;
  TagTable<Incoming> incoming_;
  CancelledOperations cancelled_;
  Fifo<Control> control_;
  Fifo<Outgoing*> eager_;
  BulkQueue bulk_;
  bool limited_ = false;           // its messages had priorities: kUnsentOfPriorities
  bool held_ = false;              // in LaneShared::held
  std::int64_t held_ns_ = 0;       // since when its next chunk waits; 0: it does not
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

  std::vector<std::byte> scratch_;  // payload of a notice that is being read

  // Numbered frames, once the lane is wide.
  std::deque<Kept> kept_;            // sent, not acknowledged
  std::uint32_t numbered_ = 0;       // number of the last one sent
  std::uint32_t peer_acked_ = 0;     // of the last one that the peer has
  std::uint32_t received_ = 0;       // of the last one that came
  std::uint32_t received_told_ = 0;  // of the last one that the peer was told of
  std::vector<std::pair<std::uint8_t, std::string>> lost_;  // flows that are gone, and why

  // The post that is being made: completes by post_send()'s own answer.
  Outgoing* inline_ = nullptr;
  bool inline_done_ = false;
};

}  // namespace isthmus::tcp
