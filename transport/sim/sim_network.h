#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <queue>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "transport/endpoint.h"

namespace isthmus {

// One direction between two simulated ranks.
struct SimLink {
  std::int64_t latency_ns = 1000;
  std::int64_t ns_per_kib = 100;  // time the link is occupied by 1024 bytes; 0 is infinitely fast
};

struct SimConfig {
  static constexpr std::int64_t kAllEager = std::numeric_limits<std::int64_t>::max();
  static constexpr std::int64_t kNoneEager = -1;

  int ranks = 2;
  std::uint64_t seed = 1;
  SimLink link;
  // At most this much is added at random to each delivery: messages overtake each other.
  std::int64_t jitter_ns = 4000;
  // Sends up to this size are copied and are over at once; larger ones wait for their receive.
  std::int64_t eager_bytes_max = kAllEager;
  // An eager send answers kDone; false: kPosted, with its completion in the next poll.
  bool eager_done = true;
  // Bulk is copied in pieces of this size, each with a delivery time of its own.
  std::size_t chunk_bytes = std::size_t{64} << 10;
  // Bounds per lane; a post beyond answers kBusy.
  std::size_t lane_posts_max = std::size_t{1} << 16;
  std::size_t lane_eager_bytes_max = std::size_t{64} << 20;
  // From a death to the moment at which the survivors see it.
  std::int64_t death_notice_ns = 100'000;
  // poll() moves the clock on when nobody has anything to do; false: only step() and advance_to().
  bool auto_advance = true;
};

// A network of ranks within one thread, with a virtual clock and a seeded order of events: the same
// calls give the same run. Hands out one Transport per rank, which this must outlive.
// A rank that dies is seen by all others; one that shuts down says goodbye to those it talked to.
// Thread rule: this and all its transports belong to one thread.
class SimNetwork {
 public:
  explicit SimNetwork(const SimConfig& config);
  ~SimNetwork();

  SimNetwork(const SimNetwork&) = delete;
  SimNetwork& operator=(const SimNetwork&) = delete;

  // Once per rank. Its destruction without shutdown() counts as the rank's death.
  std::unique_ptr<Transport> transport(int rank);

  void set_link(int from, int to, const SimLink& link);

  std::int64_t now_ns() const { return now_ns_; }

  int ranks() const { return config_.ranks; }

  // Runs the next event, at its time. False when there is none.
  bool step();

  // Runs everything up to this time.
  void advance_to(std::int64_t at_ns);

  // The rank's process ends, now or at a time to come: it does nothing more.
  void kill(int rank);
  void kill_at(int rank, std::int64_t at_ns);

  // The rank neither receives nor sees anything until then; then it goes on.
  void stall(int rank, std::int64_t until_ns);

  // The connection between two ranks drops for good: each sees the other as gone.
  void disconnect(int a, int b);

 private:
  friend class SimTransport;
  friend class SimEndpoint;

  // Bytes that a frame without data occupies the link for.
  static constexpr std::size_t kControlBytes = 64;

  struct Message {
    int from = -1;
    int to = -1;
    Tag tag;
    OperationInfo info;
    std::size_t bytes = 0;
    bool eager = false;
    bool withdrawn = false;       // the sender cancelled it or is gone
    bool matched = false;         // a receive took it
    bool dropped = false;         // the receiver cancelled: its data goes nowhere
    std::vector<std::byte> copy;  // of an eager message
    const std::byte* source = nullptr;
    Token sender;
    std::size_t chunks_left = 0;
    std::size_t receive_bytes = 0;  // of the receive that refused it
  };

  struct Receive {
    std::span<std::byte> data;
    OperationInfo info;
    Token token;
    std::uint64_t message = 0;  // the one being moved into it, 0 none
  };

  struct TagLess {
    bool operator()(const Tag& a, const Tag& b) const {
      return a.operation != b.operation ? a.operation < b.operation : a.message < b.message;
    }
  };

  // What one rank holds about one peer.
  struct Lane {
    std::map<Tag, Receive, TagLess> receives;
    std::map<Tag, std::uint64_t, TagLess> sends;       // that wait for their receive
    std::map<Tag, std::uint64_t, TagLess> unexpected;  // came before their receive
    std::unordered_set<std::uint64_t> cancelled;       // operations whose data is dropped
    std::queue<std::uint64_t> cancelled_order;         // bounds `cancelled`
    std::size_t eager_bytes = 0;                       // sent and not yet taken
    SimLink link;
    std::int64_t free_ns = 0;          // when the link to the peer is free again
    std::int64_t last_arrival_ns = 0;  // of what was sent
    bool used = false;
    bool down = false;  // the peer was seen to be gone
    bool left = false;  // the peer said goodbye
  };

  struct PendingCompletion {
    int peer = -1;
    std::uint64_t operation = 0;
    Completion completion;
  };

  struct Rank {
    std::vector<PendingCompletion> completions;
    std::vector<Notice> notices;
    std::vector<int> dead;
    std::int64_t stalled_until_ns = 0;
    bool taken = false;  // its transport was handed out
    bool gone = false;   // killed
    bool left = false;   // shut down
    bool idle = false;   // polled in vain since the last event
  };

  struct Event {
    enum class Kind : std::uint8_t {
      kArrive,
      kClear,
      kChunk,
      kSettle,
      kRefuse,
      kNotice,
      kGoodbye,
      kDeath,
      kKill,
      kWake
    };

    std::int64_t at_ns = 0;
    std::uint64_t order = 0;  // decides between events of the same time
    Kind kind = Kind::kArrive;
    int rank = -1;  // where it happens
    int peer = -1;
    std::uint64_t message = 0;
    std::size_t offset = 0;
    std::shared_ptr<const Notice> notice =
        nullptr;  // shared by the copies that the event queue makes
  };

  struct Later {
    bool operator()(const Event& a, const Event& b) const {
      return a.at_ns != b.at_ns ? a.at_ns > b.at_ns : a.order > b.order;
    }
  };

  Result<Endpoint::Post> post_send(int from, int to, const Tag& tag, const OperationInfo& info,
                                   std::span<const std::byte> data, Token token);
  Result<Endpoint::Post> post_recv(int at, int from, const Tag& tag, const OperationInfo& info,
                                   std::span<std::byte> data, Token token);

  bool offers(int rank, int peer, const Tag& tag) {
    return lane(rank, peer).unexpected.contains(tag);
  }

  void cancel(int rank, int peer, std::uint64_t operation);
  void cancel_receives(int rank, int peer, std::uint64_t operation);
  void cancel_sends(int rank, int peer, std::uint64_t operation);
  void notify(int from, int to, const Notice& notice);
  void leave(int rank);
  bool poll(int rank, Events* events);
  bool idle(int rank);

  Status usable(int rank, int peer, std::string_view what, std::size_t bytes, const Tag& tag);

  Rank& rank_state(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }

  Lane& lane(int rank, int peer);
  std::uint64_t random(std::uint64_t below);
  void schedule(Event event, std::int64_t at_ns);
  void postpone(Event event, std::int64_t at_ns);
  void transmit(Event event, int from, int to, std::size_t bytes);
  void complete(int rank, int peer, const Tag& tag, const Completion& completion);
  void erase_message(std::uint64_t id);

  void run(const Event& event);
  void arrive(const Event& event);
  void match(std::uint64_t id, Lane& at, std::map<Tag, Receive, TagLess>::iterator receive);
  void refuse(std::uint64_t id, const Receive& receive);
  void clear_to_send(const Event& event);
  void chunk(const Event& event);
  void settle(const Event& event, bool refused);
  void lose(int rank, int peer);
  void fail_posted(int rank, int peer);
  void forget_posted(int rank);

  SimConfig config_;
  std::uint64_t random_state_;
  std::int64_t now_ns_ = 0;
  std::uint64_t next_message_ = 1;
  std::uint64_t postponed_ = 0;
  std::vector<Rank> ranks_;
  std::map<std::pair<int, int>, Lane> lanes_;
  std::unordered_map<std::uint64_t, Message> messages_;
  std::priority_queue<Event, std::vector<Event>, Later> events_;
};

}  // namespace isthmus
