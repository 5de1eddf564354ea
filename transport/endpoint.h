#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "transport/priority.h"

namespace isthmus {

// Names one message between two ranks. Sender and receiver compute the same tag; a tag is used once
// while it is in flight.
struct Tag {
  std::uint64_t operation = 0;  // see make_operation(): group and sequence number, or a p2p lane
  std::uint32_t message = 0;    // number of the message within the operation, between the two ranks

  bool operator==(const Tag&) const = default;
};

// group is the group's 32-bit identity, sequence wraps at 2^31; the top bit marks point to point.
constexpr std::uint64_t make_operation(std::uint32_t group, std::uint32_t sequence, bool p2p) {
  return (static_cast<std::uint64_t>(group) << 32) | (p2p ? 0x80000000U : 0U) |
         (sequence & 0x7fffffffU);
}

// Of the low word of an operation: whether it is point to point, and its tag then.
constexpr bool is_transfer(std::uint32_t sequence) {
  return (sequence & 0x80000000U) != 0;
}

// The whole sequence number that an operation's low word was made of: the one nearest to `near`.
constexpr std::uint32_t whole_sequence(std::uint32_t word, std::uint32_t near) {
  // Shifted left, the difference modulo 2^31 gets its sign.
  return near + static_cast<std::uint32_t>(static_cast<std::int32_t>((word - near) << 1) >> 1);
}

constexpr std::uint32_t transfer_tag(std::uint32_t sequence) {
  return sequence & 0x7fffffffU;
}

// OperationInfo::count of an operation in which each rank has lengths of its own.
inline constexpr std::uint64_t kCountVaries = ~std::uint64_t{0};

// What a rank says about the operation a message belongs to: in every frame's header, so that the
// receiver can refuse a message of another operation and name both sides.
struct OperationInfo {
  std::uint32_t signature = 0;  // hash of kind, dtype, reduction, count, root
  std::uint8_t kind = 0;        // OpKind
  std::uint8_t dtype = 0;
  std::uint8_t red_op = 0;
  Priority priority = Priority::kNormal;  // the rank's own, see Endpoint; need not reach the peer
  std::uint32_t root = 0;
  std::uint64_t count = 0;  // elements

  bool operator==(const OperationInfo&) const = default;
};

// Identifies a posted operation to its poster: opaque to the transport, given back in Completion.
struct Token {
  void* owner = nullptr;
  std::uint32_t step = 0;
};

struct Completion {
  Token token;
  Code code = Code::kInternal;  // meaningful only when failed
  bool failed = false;
  bool is_recv = false;
  std::size_t bytes = 0;         // moved
  OperationInfo peer_info;       // of a receive: what the sender said
  std::uint64_t peer_bytes = 0;  // of kMismatch, where known: size of the other side's message
};

// A tagged message lane to one peer rank. Messages with different tags are not ordered. Never
// blocks.
//
// Sizes of both sides must agree: a receive whose message has another size completes as failed with
// kMismatch on the receiver, and the sender's post completes as failed with kMismatch too.
// A zero-byte message is a message.
//
// Of several messages to one peer, that of the higher OperationInfo::priority may go first where
// they compete; the receiver's means nothing. A transport whose lanes never make anyone wait long
// (shared memory) may ignore it. No priority keeps another from ending.
//
// Buffers stay untouched by the caller from kPosted until the completion, or until cancel()
// returns. Thread rule: used only by the thread that holds the engine's token.
class Endpoint {
 public:
  enum class Post : std::uint8_t {
    kPosted,  // a Completion will follow
    kDone,    // finished at once; no Completion follows
    kBusy,    // no room now: poll and try again; not an error
  };

  virtual ~Endpoint() = default;

  virtual Result<Post> post_send(const Tag& tag, const OperationInfo& info,
                                 std::span<const std::byte> data, Token token) = 0;
  virtual Result<Post> post_recv(const Tag& tag, const OperationInfo& info,
                                 std::span<std::byte> data, Token token) = 0;

  // Whether a message with this tag has come, or was announced, and waits for its receive.
  virtual bool offers(const Tag& tag) const = 0;

  // Forgets everything posted with this operation: no completion follows, and no byte of its
  // buffers is touched after the return. Data that arrives for it later is dropped.
  virtual void cancel(std::uint64_t operation) = 0;
};

// A notice between ranks that is not data: "operation refused", "rank died", "I leave".
struct Notice {
  enum class Kind : std::uint8_t {
    kRefused = 1,  // `sequence` was refused; the group goes on
    kDead = 2,     // `culprit` died; the group is over
    kGoodbye = 3,  // the sender leaves
    kAborted = 4,  // the group is over for the reason in `text`
    kWaiting = 5,  // the sender waits in `sequence` for the world ranks in `text`: "3 12"
  };

  Kind kind = Kind::kGoodbye;
  std::uint32_t group = 0;
  std::uint32_t sequence = 0;
  std::int32_t culprit = -1;  // world rank
  int from = -1;              // world rank that sent it; filled by the receiver
  Code code = Code::kInternal;
  std::string text;  // the sender's sentence, at most kNoticeTextMax bytes

  // Of a refusal that the transport itself found after the send was done: what the receiver wanted.
  // Does not travel. With it, and only then, `sequence` is the low word of an operation (see
  // make_operation()), and may be a transfer's; else it is the whole number.
  std::optional<OperationInfo> peer_info = std::nullopt;
};

inline constexpr std::size_t kNoticeTextMax = 1024;

// What poll() hands to the engine.
struct Events {
  std::vector<Completion> completions;
  std::vector<Notice> notices;
  std::vector<int> dead;  // world ranks whose process or connection was seen to be gone

  bool empty() const { return completions.empty() && notices.empty() && dead.empty(); }

  void clear() {
    completions.clear();
    notices.clear();
    dead.clear();
  }
};

// All lanes of one kind from one rank of one world. Peers are world ranks. Connections are made on
// first use, in the background; a post before that answers kBusy or is queued.
//
// Sleeping. Whoever wants to sleep polls until poll() returned false after its last post, calls
// wait_descriptors(), and may then sleep until one of them is readable or writable: whatever comes
// after that false poll(), and was not taken by it, shows in a descriptor. The next poll() ends
// this promise. A descriptor may also show something that is not this transport's.
// A transport over shared memory has no kernel to look for it: its wait_descriptors() raises the
// flag by which peers know that they must ring, and looks once more itself. The engine, which asks
// for the descriptors once, raises the same flag (Bell::sleeping) before the last poll() of each
// sleep; and it sleeps a millisecond at most, so that a missed ring is a delay and not a hang.
//
// Goodbye. shutdown() delivers what completed sends carried, before the goodbye, however late the
// peer reads; the peer may post their receives after it. Everything else that was posted is
// dropped, without a completion here. On the peer, the posts that wait for this rank then fail with
// kPeerDead, a kGoodbye notice comes, Events::dead does not name the rank, and later posts are
// errors with the rank as culprit. A death ends the same way, but with Events::dead in place of
// the notice; of what the dead had sent, that which had reached this rank's side is delivered
// first.
//
// Thread rule: only the thread that holds the engine's token.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual std::string_view name() const = 0;

  // Can endpoint(peer) be had at all? A transport within a node reaches only the ranks of its node.
  virtual bool reaches(int /*peer*/) const { return true; }

  // What peers need to reach this rank; travels once, in the rendezvous.
  virtual std::vector<std::byte> address() const = 0;

  // The address of a peer, before endpoint(peer) is used. A malformed one is an error here.
  virtual Status set_address(int peer, std::span<const std::byte> address) = 0;

  // Of a peer that this reaches. Never blocks and never fails: problems show in the posts or in
  // Events::dead. Owned by this.
  virtual Endpoint& endpoint(int peer) = 0;

  // Moves data; appends what happened. Never blocks. True when anything was done.
  virtual bool poll(Events* events) = 0;

  // Sends a notice to a peer, best effort, without waiting.
  virtual void notify(int peer, const Notice& notice) = 0;

  // Descriptors that become readable (or writable) when poll() has something to do: see Sleeping.
  virtual void wait_descriptors(std::vector<int>* fds) = 0;

  // Tells connected peers goodbye and drops everything, without waiting for anyone.
  virtual void shutdown() = 0;
};

}  // namespace isthmus
