#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "transport/tcp/addresses.h"
#include "transport/tcp/lane.h"
#include "transport/tcp/rails.h"
#include "transport/tcp/sockets.h"
#include "transport/tcp/wire.h"

namespace isthmus::tcp {

// What an epoll entry stands for.
enum class Watched : std::uint8_t { kListener, kTimer, kHandshake, kLane };

constexpr std::uint64_t watch_key(Watched what, std::uint32_t generation, std::uint32_t index) {
  return static_cast<std::uint64_t>(what) << 56 |
         static_cast<std::uint64_t>(generation & 0xffffff) << 32 | index;
}

// Makes the connections of each pair of ranks: listens, dials, shakes hands, and gives a finished
// connection to its lane. docs/wire.md has the protocol and why both sides of a simultaneous
// connect come to the same decision: the lower rank alone decides. Further flows are called by the
// lower rank, when the lane asks for them, one on each rail or as many as options say.
//
// Bounds: kStrangersMax connections that have not said who they are, each for at most kHelloNs; one
// dialled and one accepted first connection a peer, kFlowsMax flows.
// Thread rule: the transport's.
class Connector {
 public:
  static constexpr std::size_t kStrangersMax = 256;
  static constexpr std::int64_t kHelloNs = 5'000'000'000;
  static constexpr std::int64_t kFlowAnswerNs = 10'000'000'000;

  static Result<std::unique_ptr<Connector>> create(LaneShared* shared, const Fd* epoll,
                                                   std::function<Lane&(int)> lane_of);

  const Address& address() const { return address_; }

  Status set_address(int peer, std::span<const std::byte> bytes);

  // The lane wants a connection. Idempotent.
  void want(int peer, bool urgent);

  // The lane, which is connected, wants further flows. Idempotent. The higher rank waits for them.
  void widen(int peer);

  // A flow of a lane that goes on is lost: calls for it, or for one like it, again and again.
  void flow_lost(int peer, std::uint8_t number);

  void on_listener();
  void on_handshake(std::uint64_t key);
  // Reads the timer and does what is due.
  void on_timer();

  // Nobody is connecting: no handshake is under way.
  bool idle() const { return meetings_.empty() && strangers_ == 0 && flow_slots_ == 0; }

  // Closes the listener and everything unfinished.
  void close();

 private:
  enum class Phase : std::uint8_t {
    kConnecting,  // dialled; TCP is not there yet
    kGreeted,     // dialled; hello sent, waits for the welcome
    kStranger,    // accepted; waits for the hello
    kParked,      // accepted; our own call to this peer is to be answered first
    kWelcomed,    // accepted; welcome sent, waits for the start
  };

  struct Handshake {
    Fd fd;
    Phase phase = Phase::kStranger;
    int peer = -1;
    std::uint8_t flow = 0;  // number of the flow to be made; 0 is the first
    std::uint32_t generation = 0;
    std::int64_t deadline_ns = Deadline::kNever;
    std::size_t got = 0;
    std::array<std::byte, kHeaderBytes + kRejectTextMax> in;
  };

  // What goes on between this rank and one peer until they are connected.
  struct Meeting {
    int dialled = -1;   // slot of our call
    int accepted = -1;  // slot of its call
    bool wanted = false;
    std::int64_t deadline_ns = 0;  // for reaching the peer's machine
    std::int64_t retry_ns = 0;     // when to dial next
    std::int64_t backoff_ns = 0;
    std::vector<Candidate> order;
    std::size_t next = 0;    // candidate to try
    int refused = 0;         // candidates of this round whose machine answered: nobody listens
    int refused_rounds = 0;  // rounds in a row in which no candidate did better
    bool refused_only = true;
    std::string last;  // what the last attempt met
  };

  // A further flow of a peer, and our calls for it.
  struct FlowCall {
    std::uint8_t number = 0;
    Rail rail;
    int slot = -1;
    bool settled = false;  // it is there, or the peer refused it for good
    std::int64_t retry_ns = 0;
    std::int64_t backoff_ns = 0;
  };

  Connector(LaneShared* shared, const Fd* epoll, std::function<Lane&(int)> lane_of);

  // connector.cc: the listener, slots, time.
  Status watch(const Fd& fd, std::uint32_t events, std::uint64_t key);
  int new_slot(Fd fd, Phase phase, std::uint32_t events);
  void drop_slot(int slot);
  void arm_timer();
  void drop_oldest_stranger();
  void welcome_next(int peer);
  void finish_meeting(int peer, Fd fd);
  void give_up(int peer, Error why);
  Error unreachable(int peer, const Address& theirs) const;

  // dial.cc: our calls.
  void dial(int peer, Meeting* meeting);
  void dial_due(int peer, Meeting* meeting, std::int64_t now);
  void on_connected(int slot);
  void dial_failed(int slot, int sys_errno, std::string what);
  void attempt_failed(int peer, Meeting* meeting, bool refused, std::string what);
  void end_round(int peer, Meeting* meeting);
  void on_answer(int slot);

  // widen.cc: further flows.
  void call_flow(int peer, FlowCall* call);
  void call_due_flows(std::int64_t now);
  bool flows_missing() const;
  FlowCall* call_of(const Handshake& handshake);
  void flow_failed(int slot, const std::string& what);
  void on_flow_answer(int slot);
  void on_flow_hello(int slot, int peer, std::uint8_t number);
  void finish_flow(int slot);

  // answer.cc: reading, and calls of others.
  bool read_frame(int slot);
  void on_bytes(int slot);
  void on_hello(int slot);
  void on_broken(int slot, const std::string& what);
  void welcome(int slot);
  void reject(int slot, std::uint32_t reason, const std::string& sentence);
  bool send_frame(const Handshake& handshake, FrameType type, std::uint32_t reason,
                  std::span<const std::byte> payload);
  Hello our_hello(int expected) const;
  FrameHeader header_of(const Handshake& handshake) const;

  LaneShared* shared_;
  const Fd* epoll_;
  std::function<Lane&(int)> lane_of_;
  Listener listener_;
  bool listener_paused_ = false;
  Fd timer_;
  std::int64_t tick_ns_ = 0;  // what the timer is set to
  Address address_;
  std::unordered_map<int, Address> addresses_;
  std::unordered_map<int, Meeting> meetings_;
  std::unordered_map<int, std::vector<FlowCall>> calls_;
  std::size_t flow_slots_ = 0;  // slots of further flows
  std::vector<std::unique_ptr<Handshake>> slots_;
  std::vector<int> free_slots_;
  std::uint32_t generation_ = 0;
  std::size_t strangers_ = 0;
};

// FrameHeader::chunk of a kReject: what the caller should do.
inline constexpr std::uint32_t kRejectForGood = 0;       // the two ranks cannot talk
inline constexpr std::uint32_t kRejectOtherAddress = 1;  // this is another rank: try elsewhere
inline constexpr std::uint32_t kRejectNotNow = 2;        // a connection exists or existed

}  // namespace isthmus::tcp
